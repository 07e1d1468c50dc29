"""`request.limits`: the verbs of the service for who makes a request, and what came of them."""

from __future__ import annotations

from typing import Any

from asgiref.sync import sync_to_async
from django.http import HttpRequest

from limits_app import services
from limits_app.core.acquisition import Acquisition
from limits_app.core.outcome import Outcome
from limits_app.integrations.charging import ChargedRequest
from limits_app.services.asking import Resources

__all__ = ["RequestLimits", "limits_of"]


def limits_of(request: HttpRequest) -> RequestLimits:
    """The limits of a request, made when they are first asked for."""
    limits: RequestLimits | None = getattr(request, "limits", None)
    if limits is None:
        limits = request.limits = RequestLimits(request)  # type: ignore[attr-defined]  # it is there from now on
    return limits


class RequestLimits(ChargedRequest):
    """What a request was charged, and the verbs of the service for the entity that makes it.

    Whatever is acquired here is given back when the response has been sent, at the latest.
    """

    # Of the class, so that a request that acquires nothing by itself costs little.
    _given: tuple[tuple[str, Acquisition], ...] = ()  # by resource

    @property
    def acquisitions(self) -> dict[str, Acquisition]:
        """What was acquired, by resource; of several the latest, and what is of several resources under each of them.

        `request.limits.acquisitions["api"].update({"tpm": 312})` says how much was really used.
        """
        if self._reference() is not None:
            self.hear()
        found: dict[str, Acquisition] = {}
        for acquisition in self.acquired:
            names = [name for name, one in self._given if one is acquisition]
            found |= dict.fromkeys([*names, *self.charges.resources(acquisition)], acquisition)
        return found

    @property
    def outcomes(self) -> tuple[Outcome, ...]:
        """What was decided, in order."""
        return tuple(acquisition.outcome for acquisition in self.acquired)

    @property
    def degraded(self) -> bool:
        """Whether anything was decided without the store, because that was down."""
        return any(outcome.degraded for outcome in self.outcomes)

    def acquire(self, resource: Resources, **options: Any) -> Acquisition:
        """`limits.acquire` for the entity of the request; charges each time."""
        if options.get("timeout", 0) != 0:
            return self._give(resource, services.acquire(resource, **self._for_entity(options)))
        options.pop("timeout", None)
        return self._give(resource, self._admitted(services.try_acquire(resource, **self._for_entity(options))))

    def try_acquire(self, resource: Resources, **options: Any) -> Acquisition:
        """`limits.try_acquire` for the entity of the request; charges each time."""
        return self._give(resource, services.try_acquire(resource, **self._for_entity(options)))

    def check(self, resource: str, **options: Any) -> Outcome:
        """`limits.check` for the entity of the request; consumes nothing."""
        return services.check(resource, **self._for_entity(options))

    async def aacquire(self, resource: Resources, **options: Any) -> Acquisition:
        """`acquire` for asyncio."""
        if options.get("timeout", 0) != 0:
            return self._give(resource, await services.aacquire(resource, **await self._afor_entity(options)))
        options.pop("timeout", None)
        acquisition = await services.atry_acquire(resource, **await self._afor_entity(options))
        return self._give(resource, self._admitted(acquisition))

    async def atry_acquire(self, resource: Resources, **options: Any) -> Acquisition:
        """`try_acquire` for asyncio."""
        return self._give(resource, await services.atry_acquire(resource, **await self._afor_entity(options)))

    async def acheck(self, resource: str, **options: Any) -> Outcome:
        """`check` for asyncio."""
        return await sync_to_async(services.check)(resource, **await self._afor_entity(options))

    def _give(self, resource: Resources, acquisition: Acquisition) -> Acquisition:
        """Hold what the code asked for itself, which may report its usage."""
        self.hear()
        self._hold(acquisition)
        names = (resource,) if isinstance(resource, str) else resource
        self._given = (*self._given, *[(name, acquisition) for name in names])
        return acquisition

    def _for_entity(self, options: dict[str, Any]) -> dict[str, Any]:
        return options if "entity" in options else {**options, "entity": self.entity}

    async def _afor_entity(self, options: dict[str, Any]) -> dict[str, Any]:
        return options if "entity" in options else {**options, "entity": await self.aentity()}
