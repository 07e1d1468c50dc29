"""Clients as people look for them: their names, what they used lately, and who changed their limits.

A client need not have a row: an entity that was counted once is a client.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from decimal import Decimal
from difflib import get_close_matches
from typing import Final

from django.core.exceptions import FieldError, ValidationError
from django.db.models import Case, F, Q, Subquery, Value, When, prefetch_related_objects
from django.db.models.functions import Lower
from django.utils import timezone
from django.utils.translation import gettext

from limits_app.engine import MEMBER_MARK, given_currency
from limits_app.models import AuditEvent, BucketKind, Entity, Policy, Resource, UsagePeriod, UsageSnapshot
from limits_app.models.fields import in_site_time
from limits_app.models.patterns import begins, is_pattern
from limits_app.models.policy_rules import has_ended
from limits_app.models.users import is_user, user_identifier, user_key, user_model
from limits_app.policies import PriceLists
from limits_app.services.costs import sums_of_client, with_costs
from limits_app.services.usage_sums import Chosen
from limits_app.usage.reading import By, Use, use_of, was_used
from limits_app.usage.units import requests_once

_MOST_FOUND: Final = 20
_MOST_SIMILAR: Final = 3
_FEWEST_LETTERS: Final = 2
"""How many clients with similar names are named, and how many letters they begin with in common."""
_MOST_ROWS_EACH: Final = 10
"""How many rows of usage of each client are looked at, to find those that used something last."""
_MOST_RESOURCES: Final = 12
_MOST_CHANGES: Final = 10
_RECENT_EVENTS: Final = 2000
_MOST_POLICIES: Final = 500
_RECENT_BY: Final = (By.RESOURCE, By.PLAN, By.BELOW, By.PERIOD)
RECENT: Final = timedelta(days=7)
"""How far back pages look at what a client used."""


def client_names(identifiers: Iterable[str]) -> dict[str, str]:
    """The names of clients, as far as they have one: that of their row, else that of their user."""
    asked = {identifier for identifier in identifiers if identifier}
    named = Entity.objects.filter(identifier__in=asked).exclude(name="") if asked else Entity.objects.none()
    names = dict(named.values_list("identifier", "name"))
    return names | user_names(asked - names.keys())


def user_names(identifiers: Iterable[str]) -> dict[str, str]:
    """The names of the users that some of these clients are."""
    keys = {
        key: identifier
        for identifier in identifiers
        if is_user(identifier) and (key := user_key(identifier)) is not None
    }
    users = user_model()._default_manager.in_bulk(list(keys)) if keys else {}
    return {keys[key]: str(user) for key, user in users.items() if key in keys}


def with_name(identifier: str, names: Mapping[str, str]) -> str:
    """A client with its name, if it has one: see `client_names`."""
    name = names.get(identifier, "")
    return f"{identifier} ({name})" if name and name != identifier else identifier


@dataclass(frozen=True, slots=True)
class FoundClient:
    """A client that was searched for, and its name, which may be empty."""

    identifier: str
    name: str


def find_clients(text: str) -> list[FoundClient]:
    """The clients whose identifier, name or name of the user begins with a text, at most 20; an exact one is first.

    Upper and lower case are the same, and identifiers that begin with the text as it is written come first. Those
    without a row are found by what they used as of the last roll-up, by the case in which it was counted.
    """
    text = text.strip()
    if not text:
        return []
    matches = [*_of_rows(text), *users_named(text), *_of_usage(text)]
    identifiers = sorted(dict.fromkeys(matches), key=lambda identifier: identifier != text)[:_MOST_FOUND]
    names = client_names(identifiers)
    return [
        FoundClient(identifier, names.get(identifier, "")) for identifier in identifiers if not is_pattern(identifier)
    ]


def _of_rows(text: str) -> list[str]:
    rows = Entity.objects.order_by("identifier").values_list("identifier", flat=True)
    exact = [*rows.filter(begins("identifier", text, rows.db))[:_MOST_FOUND]]  # by the index
    if len(exact) == _MOST_FOUND:
        return exact
    # Lowered by the database on both sides, since each compares case in its own way.
    lowered = rows.annotate(low_identifier=Lower("identifier"), low_name=Lower("name"), low_text=Lower(Value(text)))
    by_text = Q(low_identifier__startswith=F("low_text")) | Q(low_name__startswith=F("low_text"))
    return [*exact, *lowered.filter(by_text)[:_MOST_FOUND]]


def users_named(text: str, *, is_whole: bool = False) -> list[str]:
    """The identifiers of users whose log-in name or e-mail address begins with a text, or is it, at most 20.

    None where the model of users has no such fields, and for a text that no database can look for.
    """
    model, text = user_model(), text.strip()
    if not text or "\0" in text:
        return []
    comparison = "iexact" if is_whole else "istartswith"
    named = Q(**{f"{model.USERNAME_FIELD}__{comparison}": text})
    if email := getattr(model, "EMAIL_FIELD", ""):
        named |= Q(**{f"{email}__{comparison}": text})
    try:
        keys = model._default_manager.filter(named).order_by("pk").values_list("pk", flat=True)[:_MOST_FOUND]
        return [user_identifier(key) for key in keys]
    except FieldError:  # a name that is not a field of the table
        return []


def lately_used(*, most: int) -> list[str]:
    """The clients that used something last, as of the last roll-up; they need not have rows."""
    rows = UsageSnapshot.objects.filter(period="hour", bucket=BucketKind.ENTITY).exclude(entity="").order_by("-start")
    return [*dict.fromkeys(rows.values_list("entity", flat=True)[: most * _MOST_ROWS_EACH])][:most]


def with_names(identifiers: Iterable[str]) -> list[tuple[str, str]]:
    """Clients with their names, which may be empty."""
    clients = [*identifiers]
    names = client_names(clients)
    return [(identifier, names.get(identifier, "")) for identifier in clients]


def _of_usage(text: str) -> list[str]:
    rows = UsageSnapshot.objects.filter(period="day", bucket=BucketKind.ENTITY, start__gte=_since())
    seen = rows.filter(begins("entity", text, rows.db)).order_by().values_list("entity", flat=True)
    return [*seen.distinct()[:_MOST_FOUND]]


def client_of(text: str) -> str:
    """The client that people mean by a text: an identifier, or the name of the only client that has it."""
    if not text or _is_known(text):
        return text
    clients = _named(text)
    return clients[0] if len(clients) == 1 else text


def client_to_change(text: str, *, is_sure: bool = False, may_be_new: bool = False) -> str:
    """The client that is changed: a pattern, and a text with a colon, is always an identifier.

    Raises ValidationError where several clients could be meant, and unless it `may_be_new` also for a text that is
    neither the identifier nor the name of any. Who `is_sure` means an identifier, whatever clients are called.
    """
    text = text.strip()
    if not text or ":" in text or is_pattern(text):
        return text
    is_known, clients = _is_known(text), [client for client in _named(text) if client != text]
    if is_sure and (is_known or not clients):
        return text
    names = {"text": text, "clients": _in_words(clients)}
    if is_known and clients:
        problem = gettext(
            "“%(text)s” is the identifier of one client, and the name of %(clients)s. Enter that identifier, or send "
            "the form again for “%(text)s”."
        )
        raise ValidationError(problem % names)
    if len(clients) > 1:
        problem = gettext("Several clients have the name “%(text)s”: enter the identifier of one, %(clients)s.")
        raise ValidationError(problem % names)
    if not (is_known or clients or may_be_new):
        raise ValidationError(_unknown(text))
    return clients[0] if clients else text


def _is_known(identifier: str) -> bool:
    return Entity.objects.filter(identifier=identifier).exists() or was_used(identifier)


def _named(text: str) -> list[str]:
    """The clients whose name, log-in name or e-mail address is a text, in upper or lower case."""
    low = Lower(Value(text))
    rows = Entity.objects.annotate(low_name=Lower("name")).filter(low_name=low).order_by("identifier")
    identifiers = [*rows.values_list("identifier", flat=True)[:_MOST_FOUND], *users_named(text, is_whole=True)]
    return [*dict.fromkeys(identifiers)]


def _in_words(clients: Sequence[str]) -> str:
    names = client_names(clients)
    return ", ".join(with_name(client, names) for client in clients)


def _unknown(text: str) -> str:
    """Say that no client is meant by a text, and which ones have names like it."""
    similar = find_clients(text[: max(_FEWEST_LETTERS, len(text) // 2)])
    by_name = {(client.name or client.identifier).casefold(): client for client in similar}
    names = get_close_matches(text.casefold(), by_name, n=_MOST_SIMILAR)
    clients = _in_words([by_name[name].identifier for name in names])
    problem = gettext(
        "No client has the identifier or the name “%(text)s”. Correct it, or send the form again for a client that has "
        "made no request so far."
    ) % {"text": text}
    meant = gettext("Did you mean: %(clients)s?") % {"clients": clients}
    return f"{problem} {meant}" if clients else problem


class RecentUsage:
    """What a client used in the last 7 days, which is read once."""

    def __init__(self, identifier: str) -> None:
        self._chosen = Chosen(None, identifier, None, None, UsagePeriod.DAY, timezone.now() - RECENT, None)
        self._sums = sums_of_client(self._chosen, _RECENT_BY)
        self.uses = [use_of(row) for row in self._sums.days if MEMBER_MARK not in row["key"]]
        """By limit of a resource and by day; the latest day first."""

    def in_units(self, prices: PriceLists | None) -> list[Use]:
        """The uses by unit in place of limit, with their costs.

        `prices` are those that were read before; None where the site has none.
        """
        if prices is not None or any(given_currency(use.key) for use in self.uses):
            return requests_once(with_costs(self._chosen, _RECENT_BY, self.uses, prices=prices, read_before=self._sums))
        return requests_once(replace(use, cost={}) for use in self.uses)


def spent_on(uses: Iterable[Use]) -> dict[str, Decimal]:
    """What uses cost, by currency."""
    spent: dict[str, Decimal] = {}
    for use in uses:
        for currency, amount in (use.cost or {}).items():
            spent[currency] = spent.get(currency, Decimal(0)) + amount
    return spent


def resources_of(uses: Iterable[Use], policies: Iterable[Policy]) -> list[str]:
    """The resources that are about a client: those of its policies, then those that it used most; at most 12.

    Without any, the first ones of the site.
    """
    names = sorted({policy.resource.name for policy in policies if policy.resource is not None})[:_MOST_RESOURCES]
    used = Counter[str]()
    for use in uses:
        used[use.resource or ""] += use.admitted + use.refused  # type: ignore[assignment]  # amounts need not be whole
    names += [name for name, _ in used.most_common() if name]
    if not names:
        names = [*Resource.objects.order_by("name").values_list("name", flat=True)[:_MOST_RESOURCES]]
    return [*dict.fromkeys(names)][:_MOST_RESOURCES]


def with_members(identifier: str, *, most: int) -> tuple[Entity | None, list[Entity]]:
    """The row of a client with its plan and its parent, if it has one, and its first members, in one query."""
    own = Entity.objects.filter(identifier=identifier).order_by()
    with_own = Entity.objects.filter(Q(identifier=identifier) | Q(parent=own.values("pk")[:1]))
    is_member = Case(When(identifier=identifier, then=0), default=1)
    rows = [*with_own.select_related("plan", "parent").order_by(is_member, "identifier")[: most + 1]]
    if not rows or rows[0].identifier != identifier:
        return None, []
    return rows[0], rows[1:]


def own_policies(identifier: str) -> list[Policy]:
    """The policies of a client itself, at most 500."""
    return [*Policy.objects.filter(entity__identifier=identifier).select_related("resource", "entity")[:_MOST_POLICIES]]


def temporary(policies: Iterable[Policy]) -> tuple[list[Policy], list[Policy]]:
    """The temporary ones of these policies, such as boosts, with their limits.

    First those that have not ended, of which those that end first come first, then those that have ended in the last
    7 days, of which those that ended last come first.
    """
    now = in_site_time(timezone.now())
    lately = [row for row in policies if row.valid_until and not has_ended(row.valid_until, now - RECENT)]
    prefetch_related_objects(lately, "limits")
    lately.sort(key=lambda policy: policy.valid_until or now)
    ended = [policy for policy in lately if has_ended(policy.valid_until, now)]
    return lately[len(ended) :], ended[::-1]


def changes_of(identifier: str, row: Entity | None, policies: Collection[int]) -> list[AuditEvent]:
    """The last changes of a client's row, and of its policies by their primary keys; the latest first.

    Those of deleted rows, such as boosts that were ended, are among the last events of the site.
    """
    about = Q(object_type="policy", object_id__in=[str(key) for key in policies])
    if row is not None:
        about |= Q(object_type="entity", object_id=str(row.pk))
    events = AuditEvent.objects.order_by("-number")
    last = Subquery(AuditEvent.objects.order_by("-number").values("number")[:1])
    recent = Q(number__gt=last - _RECENT_EVENTS) & events_of([identifier], events.db)
    return [*events.filter(about | recent)[:_MOST_CHANGES]]


def events_of(identifiers: Iterable[str | None], using: str) -> Q:
    """The condition for the audit events of the rows and of the policies of some clients."""
    condition = Q(pk__in=[])
    for name in identifiers:
        condition |= Q(object_type=Entity._meta.model_name, object_label=name) | (
            Q(object_type=Policy._meta.model_name)
            & (
                Q(object_label__in=[f"entity {name}", f"entity {name} in total"])
                | begins("object_label", f"entity {name} on ", using)
            )
        )
    return condition


def _since() -> datetime:
    return timezone.now() - RECENT
