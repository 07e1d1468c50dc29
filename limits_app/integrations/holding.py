"""What a request holds: its charges, and the calls of decorated views that answer for them without a middleware."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextvars import ContextVar
from http import HTTPStatus
from operator import attrgetter
from types import TracebackType
from typing import TYPE_CHECKING, Final

from asgiref.sync import sync_to_async
from django.core.exceptions import BadRequest, PermissionDenied, SuspiciousOperation
from django.http import Http404, HttpRequest
from django.http.multipartparser import MultiPartParserError

from limits_app.engine.errors import LimitExceeded, StoreUnavailable
from limits_app.engine.outcome import Outcome
from limits_app.integrations.charges import Charge, are_held, missing, named_by, refund, refund_all
from limits_app.integrations.identity import entity_of_user
from limits_app.services.amounts import RequestedAmounts
from limits_app.services.integration import Acquisition

if TYPE_CHECKING:
    from limits_app.integrations.request import RequestLimits

_OUTCOME, ACQUISITION = attrgetter("outcome"), attrgetter("acquisition")
_RESPONSE_EXCEPTIONS: Final = (Http404, PermissionDenied, BadRequest, SuspiciousOperation, MultiPartParserError)
"""Exceptions that Django turns into a response; amounts stay charged, or failed log-ins could not be limited."""


class ChargedRequest:
    """What a request was charged, and what becomes of it; `RequestLimits` charges it."""

    refused: tuple[Outcome, ...] | None = None
    """The decisions that rejected the request; None as long as nothing did."""
    is_refunded = False
    """Whether the request was refunded what integrations charged, after it was rejected."""
    rejected_log_in: LimitExceeded | StoreUnavailable | None = None
    """What rejected an attempt to log in; the middleware then answers with its refusal."""

    is_charged = False
    """Whether integrations have charged anything, even if that was refunded."""
    charges: list[Charge]
    """What the request was charged by integrations and by code of the site, in order, and was not refunded."""
    log_ins: list[Acquisition]
    """The attempts to log in; those that did not fail are refunded at the end."""
    by_rules: Sequence[Charge] = ()
    """What URL rules charge, of which the response may change something."""
    uncounted: list[Acquisition]
    """What is undone with the response, which URL rules do not count, since it holds permits until then."""
    calls: list[ViewCall]
    """The outermost calls of decorated views that still hold what they were charged."""

    @property
    def acquired(self) -> list[Acquisition]:
        """The admitted acquisitions, in order, without those that were refunded."""
        return [*dict.fromkeys(map(ACQUISITION, self.charges))]

    @property
    def acquisitions(self) -> dict[str, Acquisition]:
        """The acquisitions by resource; of several acquisitions of one resource the latest.

        `request.limits.acquisitions["api"].update({"tpm": 312})` reports the amount that was used.
        """
        return {charge.resource: charge.acquisition for charge in self.charges if charge.acquisition is not None}

    @property
    def outcomes(self) -> tuple[Outcome, ...]:
        """The decisions that admitted the request, in order."""
        return tuple(map(_OUTCOME, self.acquired))

    @property
    def degraded(self) -> bool:
        """Whether anything was decided without the store, because that was unavailable."""
        return any(outcome.degraded for outcome in self.outcomes)

    def note(self, charge: Charge, acquisition: Acquisition) -> None:
        """Note an acquisition that was admitted for a charge; what it names replaces the 1 that was taken before."""
        charge.acquisition, self.is_charged = acquisition, True
        if self.charges:
            earlier = self.held(charge.resource, charge.entity)
            for other in earlier:
                other.report_unused(charge.named.keys() - named_by(earlier))
            for other in self._of(charge.resource, charge.entity) if not earlier else ():
                other.is_former = True
        self.add(charge)

    def add(self, charge: Charge) -> None:
        """Add a charge, for which the running call of a decorated view answers."""
        call = self.running_call()
        if call is not None:
            charge.calls = (call,)
        self.charges.append(charge)

    def held(self, resource: str, entity: str | None) -> list[Charge]:
        """What integrations have charged a resource for an entity, in order; empty where that was refunded."""
        if not self.charges:
            return []
        charges = self._of(resource, entity)
        return charges if are_held(charges) else []

    def _of(self, resource: str, entity: str | None) -> list[Charge]:
        return [
            charge
            for charge in self.charges
            if not (charge.by_view or charge.is_former) and charge.resource == resource and charge.entity == entity
        ]

    def left_of(self, charge: Charge) -> tuple[Acquisition | None, RequestedAmounts]:
        """Return what a charge still requests after earlier ones of the same key.

        Where that is nothing, the acquisition that holds everything comes first; else None. A running call of a
        decorated view then answers for the earlier ones too.
        """
        earlier = self.held(*charge.key)
        self.share(earlier)
        if not earlier:
            return None, charge.requested
        requested = missing(earlier, charge.named)
        return earlier[-1].acquisition if requested is None else None, requested

    def was_charged(self, resource: str, entity: str | None) -> bool:
        """Whether an integration has charged a resource for an entity, and that was not refunded."""
        return bool(self.held(resource, entity))

    def share(self, charges: Sequence[Charge]) -> None:
        """Let the running call of a decorated view answer for the charges of another one too, which it uses."""
        call = self.running_call()
        if call is not None:
            for charge in charges:
                if charge.calls and call not in charge.calls:
                    charge.calls += (call,)

    def running_call(self) -> ViewCall | None:
        """The call of a decorated view that is running here; None with a middleware, and outside of one."""
        call = _CALL.get()
        return call if call is not None and call.limits is self and not call.is_over else None

    def refund(self, acquisitions: Collection[Acquisition]) -> None:
        """Refund some acquisitions, which do not count for the request any more."""
        refund_all(self.charges, acquisitions)
        self.charges = [charge for charge in self.charges if charge.acquisition not in acquisitions]

    def refund_charges(self) -> None:
        """Refund what integrations charged before the user was known, who is exempt."""
        of_integrations = [charge.acquisition for charge in self.charges if not charge.by_view]
        self.refund([acquisition for acquisition in self.acquired if acquisition in of_integrations])

    def refuse(self, error: Exception) -> Sequence[Outcome]:
        """Note a rejection; return the decisions that rejected the request."""
        if isinstance(error, LimitExceeded) and error.refused is not None:
            self.refused = (error.outcome,)
        self.refused = self.refused or ()
        return self.refused

    def end(self) -> None:
        """Release all acquisitions: amounts that were not reported count as used."""
        for acquisition in self.acquired:
            if acquisition in self.uncounted:
                acquisition.undo(has_run=True)
            acquisition.release()
        if self.log_ins:
            self.refund_log_ins()

    def settle_log_ins(self, status: int, user: object) -> None:
        """Decide about the attempts to log in that no signal has reported, when the response was made.

        An error response to a client that is not logged in may hide that an attempt has failed: it counts.
        """
        if status >= HTTPStatus.BAD_REQUEST and entity_of_user(user) is None:
            for acquisition in self.log_ins:
                acquisition.release()
        else:
            self.refund_log_ins()

    def refund_log_ins(self) -> None:
        """Refund the attempts to log in that did not fail."""
        for acquisition in self.log_ins:
            refund(acquisition)

    def fail(self, error: BaseException) -> None:
        """Refund amounts that were not reported, after a view raised, unless the exception makes a response.

        Attempts to log in then count, since an error hides whether they failed. What a rule charges that counts certain
        responses is left to the response that Django makes of the error.
        """
        if not isinstance(error, _RESPONSE_EXCEPTIONS):
            for acquisition in self.log_ins:
                acquisition.release()
            by_response = [charge.acquisition for charge in self.by_rules if charge.counts_responses]
            for acquisition in self.acquired:
                if acquisition not in by_response:
                    acquisition.cancel()

    def undo(self) -> None:
        """Refund what integrations charged, calls included, after the request was rejected.

        Of what views acquired themselves, unreported amounts are refunded. Call it when no view runs any more.
        """
        if self.charges:
            refund_all(self.charges, self.acquired)
        self.is_refunded = True
        self.refused = self.refused or ()


class ViewCall:
    """A call of a decorated view, which answers for what it is charged where there is no middleware.

    An outermost call releases that with its response, and a call that raises refunds it. Concurrent calls of a request
    leave the charges of each other alone; one that several use is released with the last of them.
    """

    def __init__(self, limits: RequestLimits) -> None:
        self.limits = limits
        self.outer = limits.running_call()
        """The call around this one, which answers for its charges when this one has returned."""
        self.is_over = False
        if self.outer is None:
            limits.calls.append(self)

    @property
    def request(self) -> HttpRequest:
        """The request."""
        return self.limits.request

    @property
    def acquired(self) -> list[Acquisition]:
        """The acquisitions that no other call uses."""
        own = [charge for charge in self.limits.charges if charge.calls == (self,)]
        others = [charge.acquisition for charge in self.limits.charges if charge not in own]
        acquired = dict.fromkeys(map(ACQUISITION, own))
        return [acquisition for acquisition in acquired if acquisition is not None and acquisition not in others]

    def end(self) -> None:
        """Release what it holds: amounts that were not reported count as used."""
        acquired = self.acquired
        self._leave(has_returned=True)
        for acquisition in acquired:
            acquisition.release()

    def fail(self, error: BaseException) -> None:
        """Refund amounts that were not reported, unless the exception makes a response or another call has used them.

        Attempts to log in then count, since an error hides whether they failed.
        """
        makes_response = isinstance(error, _RESPONSE_EXCEPTIONS)
        acquired, used = self.acquired, [charge.acquisition for charge in self.limits.charges if charge.was_used]
        self._leave()
        for acquisition in () if makes_response else self.limits.log_ins:
            acquisition.release()
        for acquisition in acquired:
            if makes_response or acquisition in used:
                acquisition.release()
            else:
                acquisition.cancel()

    def undo(self) -> None:
        """See `ChargedRequest.undo`, for what it holds."""
        refund_all(self.limits.charges, self.acquired)
        self.limits.is_refunded = self.limits.calls == [self]
        self.limits.refused = self.limits.refused or ()

    def hand_over(self) -> None:
        """Let the call around this one, if there is one, answer for the charges of this one."""
        if self.outer is None:
            return
        for charge in self.limits.charges:
            if self in charge.calls and self.outer not in charge.calls:
                charge.calls += (self.outer,)
        self._leave()

    def _leave(self, *, has_returned: bool = False) -> None:
        """Answer for no charges any more; the last outermost call leaves what no call answers for released."""
        self.is_over = True
        for charge in self.limits.charges:
            if self in charge.calls:
                charge.calls = tuple([call for call in charge.calls if call is not self])
                charge.was_used = charge.was_used or has_returned
        if self in self.limits.calls:
            self.limits.calls.remove(self)
            # Such as what a thread without the context of the call has acquired.
            for charge in () if self.limits.calls else self.limits.charges:
                if charge.by_view and not charge.calls and charge.acquisition is not None:
                    charge.acquisition.release()


_CALL: Final[ContextVar[ViewCall | None]] = ContextVar("limits_app_view_call", default=None)
"""The call of a decorated view that is running, in the innermost one's request."""


class CallBlock:
    """A block in which a decorated view is called, for threads and tasks.

    It has the call; None with a middleware, which answers for all charges of the request.
    """

    def __init__(self, limits: RequestLimits) -> None:
        self._limits = limits
        self._call: ViewCall | None = None
        self._around: ViewCall | None = None

    def __enter__(self) -> ViewCall | None:
        if not self._limits.has_middleware:
            self._call, self._around = ViewCall(self._limits), _CALL.get()
            _CALL.set(self._call)
        return self._call

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        call = self._call
        try:
            if call is not None and error is not None:
                call.fail(error)
        finally:
            self._leave(call)

    async def __aenter__(self) -> ViewCall | None:
        return self.__enter__()

    async def __aexit__(self, kind: object, error: BaseException | None, traceback: TracebackType | None) -> None:
        call = self._call
        if call is None or not isinstance(error, Exception):  # a cancelled task must not wait for a thread
            self.__exit__(kind, error, traceback)
            return
        try:
            await sync_to_async(call.fail)(error)
        finally:
            error.__traceback__ = traceback  # asgiref has added its frames, which would keep the response
            self._leave(call)

    def _leave(self, call: ViewCall | None) -> None:
        if call is not None:
            call.hand_over()
            _CALL.set(self._around)
