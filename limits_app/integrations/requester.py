"""Who makes a request, and for whom they were taken before."""

from __future__ import annotations

from typing import Any, Final
from weakref import ref

from asgiref.sync import sync_to_async
from django.http import HttpRequest

from limits_app.integrations.identity import aidentify, identify

__all__ = ["Requester"]

_NOT_ASKED: Final = object()


class Requester:
    """Who makes a request: found out when it is first asked, and anew once somebody else is logged in."""

    # The request refers to this: a cycle would leave all of it to the garbage collector, request by request.
    _reference: ref[HttpRequest]
    # Of the class, so that a request that nobody asks about costs little.
    _entity: Any = _NOT_ASKED  # then a text or None
    _user: object = None
    _taken_for: tuple[str | None, ...] = ()

    @property
    def _request(self) -> HttpRequest:
        request = self._reference()
        if request is None:
            raise RuntimeError("the request is over, and so are its limits: keep the request as long as you need them")
        return request

    @property
    def entity(self) -> str | None:
        """Who makes the request (None: the site itself); found out when it is first asked.

        And anew once `request.user` is somebody else, as where the REST framework authenticates inside of the view.
        """
        if self._reference() is None and self._entity is not _NOT_ASKED:  # the request is over
            known: str | None = self._entity
            return known
        return self.entity_of(self._request)

    def entity_of(self, request: HttpRequest) -> str | None:
        """`entity` for those who have the request at hand."""
        if self._entity is _NOT_ASKED:
            found = self._entity = identify(request)
            self._user = getattr(request, "user", None)
        elif getattr(request, "user", None) is not self._user:
            found = self._correct(identify(request))
        else:
            found = self._entity
        return found

    async def aentity(self) -> str | None:
        """`entity` for asyncio."""
        if self._entity is _NOT_ASKED:
            request = self._request
            self._entity = await aidentify(request)
            self._user = getattr(request, "user", None)
        elif self._is_mistaken():  # by somebody who tells `request.user`, and not always `request.auser`
            self._correct(await sync_to_async(identify)(self._request))
        found: str | None = self._entity
        return found

    def _is_mistaken(self) -> bool:
        """Whether somebody else is logged in than when it was found out who makes the request."""
        request = self._reference()
        return request is not None and getattr(request, "user", None) is not self._user

    def _correct(self, entity: str | None) -> str | None:
        """Take the request for that of another; what ways in charge the other for is given back to the former."""
        self._user = getattr(self._request, "user", None)
        if entity != self._entity:
            self._taken_for = (*self._taken_for, self._entity)
            self._entity = entity
        return entity
