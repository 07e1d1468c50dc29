"""Acquisitions of several parts, and what accompanies them: one report and one release are for all of them."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AsyncExitStack, ExitStack
from typing import Generic, Protocol, TypeVar
from weakref import ref

from limits_app.acquiring.extension_shares import shares, used_before, used_of_sums
from limits_app.acquiring.held_part import HeldPart
from limits_app.acquiring.reported_use import beyond_first_request, is_requested
from limits_app.engine import NOTHING, GivenAmount
from limits_app.engine.outcome import Outcome

P = TypeVar("P", bound=HeldPart)


class Companion(Protocol):
    """What is updated, extended and released together with an acquisition, and shown in its outcome."""

    @property
    def must_settle(self) -> bool:
        """Whether its release settles something."""

    def shown_in(self, outcome: Outcome) -> Outcome:
        """Return the outcome of the acquisition with that of the companion."""

    def update(self, usage: Mapping[str, GivenAmount]) -> None:
        """See `Acquisition.update`."""

    def extend(self, requested: Mapping[str, GivenAmount]) -> None:
        """See `Acquisition.extend`."""

    async def aextend(self, requested: Mapping[str, GivenAmount]) -> None:
        """`extend` for asyncio."""

    def end(self, *, refunds_unreported: bool) -> None:
        """Release or cancel it."""

    async def aend(self, *, refunds_unreported: bool) -> None:
        """`end` for asyncio."""

    def undo(self, *, has_run: bool) -> None:
        """See `Acquisition.undo`."""


class HeldParts(Generic[P]):
    """The first part of an acquisition with its extensions and its companion, and the reported use of all of them.

    It is also what knows the use by key, where a limit adds up the amounts of several keys, or where the first request
    of an idempotency key reports its amounts. It does not keep the first part: permits of an acquisition that nothing
    refers to run out.
    """

    def __init__(self, first: P) -> None:
        self._first = ref(first)
        self.extensions: tuple[P, ...] = ()
        """What `extend` has acquired, in the order in which it was charged."""
        self.companion: Companion | None = None
        self.is_repeated = False
        """Whether the idempotency key was admitted before, so that only permits and extensions are held."""
        self.reports: Mapping[str, object] = NOTHING
        """The reported use by key."""

    def all(self) -> tuple[P, ...]:
        """Return the first part and its extensions, in the order in which they were charged."""
        first = self._first()
        return self.extensions if first is None else (first, *self.extensions)

    @property
    def must_settle(self) -> bool:
        """Whether the release settles extensions, or something of the companion."""
        return bool(self.extensions) or (self.companion is not None and self.companion.must_settle)

    def add(self, extension: P) -> None:
        """Add an extension."""
        # Without a call in between, so that no other thread adds one meanwhile.
        self.extensions = (*self.extensions, extension)
        self._note_extensions()

    def take_in(self, extension: P) -> None:
        """Add an extension that was just admitted, with the usage that was reported before, and renew its permits."""
        extension.used = used_before(self.all(), extension)
        self.add(extension)
        self._add_up()
        extension.track()

    def remove(self, extension: P) -> None:
        """Remove an extension, which was refunded."""
        self.extensions = tuple([part for part in self.extensions if part is not extension])
        self._note_extensions()
        self._add_up()

    def update(self, usage: Mapping[str, GivenAmount]) -> None:
        """Report the used amounts of all parts by key; see `Acquisition.update`."""
        parts = self.all()
        own = beyond_first_request(self.extensions, parts[0].requested, usage) if self.is_repeated else usage
        reports = {**self.reports, **{key: own[key] for key in own if is_requested(parts, key)}}
        for part, used in zip(parts, [part.used_with(own, reports, parts) for part in parts], strict=True):
            part.used = {**used, **used_of_sums(parts, part, reports)}
        self.reports = reports
        if self.companion is not None:
            self.companion.update(usage)

    def release(self, refunds_unreported: bool) -> None:
        """Settle the parts with their shares of the use, in the order of their charges; then the companion."""
        with ExitStack() as stack:  # everything is settled, also when one part of it fails
            if self.companion is not None:
                stack.callback(self.companion.end, refunds_unreported=refunds_unreported)
            for part, used in reversed(shares(self.all())):
                stack.callback(part.settle, used, refunds_unreported)

    async def arelease(self, refunds_unreported: bool) -> None:
        """`release` for asyncio."""
        async with AsyncExitStack() as stack:
            if self.companion is not None:
                stack.push_async_callback(self.companion.aend, refunds_unreported=refunds_unreported)
            for part, used in reversed(shares(self.all())):
                stack.push_async_callback(part.asettle, used, refunds_unreported)

    def undo(self, *, has_run: bool) -> None:
        """Refund all amounts of all parts with every algorithm; see `Acquisition.undo`."""
        with ExitStack() as stack:
            if self.companion is not None:
                stack.callback(self.companion.undo, has_run=has_run)
            for part in self.all():
                part.undoes, part.has_run = True, has_run
                stack.callback(part.settle_all)

    def _note_extensions(self) -> None:
        self.all()[0].is_extended = bool(self.extensions)

    def _add_up(self) -> None:
        """Add up the use of several keys again: what an extension has requested counts as used until it is reported."""
        parts = self.all()
        for part in parts if self.reports else ():
            part.used = {**part.used, **used_of_sums(parts, part, self.reports)}
