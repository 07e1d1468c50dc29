"""Log-in throttling: an authentication backend that counts failed attempts by account, by address and by both.

Two lines of settings: the backend comes first in AUTHENTICATION_BACKENDS, and MIDDLEWARE has `LimitsMiddleware`.
Every log-in through `django.contrib.auth.authenticate` or `aauthenticate` is counted, whichever backends the site has.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from contextvars import ContextVar
from functools import partial
from typing import Any, ClassVar, Final
from weakref import finalize

from asgiref.sync import sync_to_async
from django.apps import apps
from django.contrib.auth import get_user_model
from django.contrib.auth.signals import user_logged_in, user_login_failed
from django.core.exceptions import FieldError, PermissionDenied, ValidationError
from django.core.signals import got_request_exception, request_finished
from django.db.models import CharField, Q, TextField
from django.http import HttpRequest
from django.views.decorators.debug import sensitive_variables

from limits_app.engine.errors import InvalidRequest, LimitExceeded, StoreUnavailable
from limits_app.integrations.charges import NOTHING, refund
from limits_app.integrations.identity import (
    client_of,
    entity_of_account,
    normalize_entity,
    normalized_text,
    without_unstorable,
)
from limits_app.integrations.request import RequestLimits
from limits_app.integrations.request_access import is_exempt
from limits_app.services import Share, try_acquire_all
from limits_app.services.amounts import one_of_each
from limits_app.services.integration import Acquisition, prefixes
from limits_app.services.request import POLICIES, SetResolver

ACCOUNT: Final = "login.account"
"""The resource of attempts by account; its entities are those of `LoginLimitBackend.accounts_of`."""
ADDRESS: Final = "login.address"
"""The resource of attempts by address; its entities are those of `client_of`."""
ACCOUNT_AND_ADDRESS: Final = "login.account-address"
"""The resource of attempts by account and address; its entities have both, with a space between them."""

_NAMES: Final = frozenset({"email", "login", "phone", "username"})
"""Credentials that name an account, besides the unique fields of the user model."""
_MOST_ACCOUNTS: Final = 10
"""How many accounts one name may mean; a name of more accounts is counted by itself, to bound an attempt."""
_LONGEST_NAME: Final = 320
"""Longer than a user name of Django (150) and an e-mail address (254); longer names are not looked up."""
_NO_NAME: Final = entity_of_account("")
"""The entity of all names that are empty or too long, since some databases ignore any number of some characters."""


class _Attempt:
    """What one attempt was charged."""

    def __init__(self, acquisitions: Sequence[Acquisition] = ()) -> None:
        self.acquisitions = acquisitions

    def keep(self) -> None:
        """Keep the charge, after a failure."""
        for acquisition in self.acquisitions:
            acquisition.release()

    def refund(self) -> None:
        """Refund the charge, unless it was kept."""
        _refund_all(self.acquisitions)

    def end_with_request(self, **_: object) -> None:
        """Refund the charge when the request is over in which this attempt was the last one."""
        if _ATTEMPT.get() is self:
            self.refund()


_NO_ATTEMPT: Final = _Attempt()
_ATTEMPT: Final[ContextVar[_Attempt]] = ContextVar("limits_app_log_in", default=_NO_ATTEMPT)
"""The last attempt of this thread or task, in which Django announces its failure."""


class LoginLimitBackend:
    """Charges each attempt to log in before the other backends check it, and rejects those over the limit.

    A failed attempt stays charged, once for all backends. A successful one is refunded: by `user_logged_in`, or at the
    end of its request; outside of requests at the next attempt of its thread or task, or when that ends. A rejected
    one is charged nothing.
    `default_limits` apply to resources without limits in the admin. Refunds need a token bucket, GCRA or a quota.

    It does not authenticate, and has no users and no permissions. Subclasses may override `default_limits` and
    `accounts_of`.
    """

    default_limits: ClassVar[Mapping[str, str]] = {
        ACCOUNT: "calls=100/h",
        ADDRESS: "calls=50/h",
        ACCOUNT_AND_ADDRESS: "calls=5/15min",
    }
    """The limits of each resource, as text."""

    @sensitive_variables("credentials")
    def authenticate(self, request: HttpRequest | None, **credentials: Any) -> None:
        """Charge an attempt; raises PermissionDenied, which ends it, where a limit or its store rejects it."""
        _ATTEMPT.get().refund()  # it did not fail, or that is over
        _ATTEMPT.set(_NO_ATTEMPT)
        limits = _limits_of(request)
        try:
            if limits is not None:
                is_exempt(limits)  # where it is blocked, it is rejected, or counted as if it were not
            source = POLICIES if limits is None else limits.source
            attempt = _Attempt(_acquire_all(self._shares(request, credentials), source))
        except (LimitExceeded, StoreUnavailable) as error:
            if limits is not None:
                limits.rejected_log_in = error
            raise PermissionDenied("too many failed attempts to log in") from error
        _ATTEMPT.set(attempt)
        if limits is None:
            request_finished.connect(attempt.end_with_request)  # until the attempt is forgotten
            finalize(attempt, _refund_all, attempt.acquisitions)
        else:
            limits.log_ins += attempt.acquisitions

    @sensitive_variables("credentials")
    async def aauthenticate(self, request: HttpRequest | None, **credentials: Any) -> None:
        """`authenticate` for asyncio; a thread queries the database."""
        await sync_to_async(self.authenticate)(request, **credentials)

    @sensitive_variables("credentials", "names", "name", "spellings")
    def accounts_of(self, credentials: Mapping[str, Any]) -> list[str]:
        """Return the entities of the accounts that an attempt is for.

        That is `account:<primary key>` of each user whose name, e-mail address or other unique text is among the
        credentials, ignoring case, and `entity_of_account` of a name that no user has.
        """
        fields = [*_name_fields()]
        names = [str(value) for key, value in credentials.items() if value and (key in _NAMES or key in fields)]
        accounts: dict[str, None] = {}
        for name in names:
            spellings = _spellings(name)
            keys = _users(spellings, fields) if spellings else []
            is_known = 0 < len(keys) <= _MOST_ACCOUNTS
            unknown = entity_of_account(name) if spellings else _NO_NAME
            accounts |= dict.fromkeys([f"{prefixes.ACCOUNT}{key}" for key in keys] if is_known else [unknown])
        return [*accounts]

    def _shares(self, request: HttpRequest | None, credentials: Mapping[str, Any]) -> list[Share]:
        accounts = dict.fromkeys(map(normalize_entity, self.accounts_of(credentials)))
        address = client_of(request) if request is not None and hasattr(request, "META") else None
        counted = [(ACCOUNT, account) for account in accounts]
        if address is not None:
            both = [normalize_entity(f"{account} {address}") for account in accounts]
            counted += [(ADDRESS, address), *[(ACCOUNT_AND_ADDRESS, entity) for entity in both]]
        once = partial(one_of_each, NOTHING)
        return [Share(resource, entity, once, self.default_limits.get(resource, ())) for resource, entity in counted]


def _limits_of(request: HttpRequest | None) -> RequestLimits | None:
    """The limits of a request whose end the middleware sees."""
    limits = getattr(request, "limits", None)
    return limits if isinstance(limits, RequestLimits) and limits.has_middleware else None


def _acquire_all(shares: Sequence[Share], source: SetResolver) -> Sequence[Acquisition]:
    """Acquire all shares or none; in one step, where the resources are counted in one store.

    Raises LimitExceeded and StoreUnavailable.
    """
    if not shares:
        return ()
    try:
        return (_acquired(shares, source),)
    except InvalidRequest:  # an administrator has put the resources into several stores
        pass
    acquisitions: list[Acquisition] = []
    try:
        acquisitions.extend(_acquired([share], source) for share in shares)
    except BaseException:
        _refund_all(acquisitions)
        raise
    return acquisitions


def _acquired(shares: Sequence[Share], source: SetResolver) -> Acquisition:
    acquisition = try_acquire_all(shares, source)
    if not acquisition:
        raise LimitExceeded.of(acquisition)
    return acquisition


def _refund_all(acquisitions: Sequence[Acquisition]) -> None:
    for acquisition in acquisitions:
        refund(acquisition)


def _name_fields() -> Iterator[str]:
    """The text fields of the user model by which users log in: name, e-mail address, and all that are unique."""
    model = get_user_model()
    named = {model.USERNAME_FIELD, getattr(model, "EMAIL_FIELD", None)}
    for field in model._meta.concrete_fields:
        if isinstance(field, CharField | TextField) and (field.unique or field.name in named):
            yield field.name


@sensitive_variables("name", "stored", "spellings")
def _spellings(name: str) -> list[str]:
    """The name as it is, and as Django's forms normalize it, without what databases cannot store and may ignore.

    Also in lower case, since some databases ignore the case of ASCII only. None of a name that is empty or too long.
    """
    stored = without_unstorable(name)
    normalized = normalized_text(stored)
    spellings = dict.fromkeys((stored, normalized, normalized.lower()))
    return [spelling for spelling in spellings if spelling.strip() and len(spelling) <= _LONGEST_NAME]


@sensitive_variables("spellings", "matches")
def _users(spellings: Sequence[str], fields: Sequence[str]) -> list[object]:
    """The primary keys of the users who have a name in one of some fields, in one of its spellings."""
    lookups = [*fields, "emailaddress__email"] if apps.is_installed("allauth.account") else fields
    keys: dict[object, None] = {}
    for lookup in lookups:
        matches = Q()
        for spelling in spellings:  # databases differ in what they take as equal: see both
            matches |= Q(**{lookup: spelling}) | Q(**{f"{lookup}__iexact": spelling})
        with suppress(FieldError, ValidationError, TypeError, ValueError):  # the field cannot have such a value
            users = get_user_model()._default_manager.filter(matches).order_by("pk")
            keys |= dict.fromkeys(users.values_list("pk", flat=True)[: _MOST_ACCOUNTS + 1])
    return [*keys]


def forget_attempt() -> None:
    """Forget the last attempt of this thread or task, whose stores may be others now, as in the next test."""
    _ATTEMPT.set(_NO_ATTEMPT)


def _keep(**_: object) -> None:
    """Keep the charge of an attempt that has failed; one that was rejected has no charge."""
    _ATTEMPT.get().keep()


def _refund(request: HttpRequest | None = None, **_: object) -> None:
    """Refund the attempts of a request that did not fail, now that a user has logged in."""
    _ATTEMPT.get().refund()
    limits = _limits_of(request)
    if limits is not None:
        limits.refund_log_ins()
        limits.rejected_log_in = None


user_login_failed.connect(_keep, dispatch_uid="limits_app.log_in")
got_request_exception.connect(_keep, dispatch_uid="limits_app.log_in")  # an error hides whether it failed
user_logged_in.connect(_refund, dispatch_uid="limits_app.log_in")
