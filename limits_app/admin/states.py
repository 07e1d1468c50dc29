"""How much is used of what the rows of a list are about: one read of the store for a whole page."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from django.contrib import admin
from django.contrib.admin.views.main import ChangeList
from django.utils.html import format_html, format_html_join
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from limits_app import services
from limits_app.admin.figures import amount, bar
from limits_app.admin.large_lists import LargeListAdmin
from limits_app.core.errors import LimitsError
from limits_app.models import ENTITY_FLAGS, PolicyEffect, PolicyScope

if TYPE_CHECKING:
    from django.http import HttpRequest
    from django.utils.safestring import SafeString

    from limits_app.resolver import Pair
    from limits_app.services import LimitState, RowState

__all__ = ["StatefulAdmin", "limit_line", "shown_limits"]

_LEVELS: Final[Mapping[str, Any]] = {ENTITY_FLAGS: _("entity itself"), **{one.value: one.label for one in PolicyScope}}
_EFFECTS: Final = {PolicyEffect.BLOCKED: _("blocked"), PolicyEffect.UNLIMITED: _("unlimited")}


class StatefulList(ChangeList):
    """A page of rows, each with what is known about it."""

    def get_results(self, request: HttpRequest) -> None:
        """Fetch the rows of the page, and then what all of them use."""
        super().get_results(request)
        rows = list(self.result_list)
        self.result_list = rows
        page: Any = self.model_admin
        page.look(rows)


class StatefulAdmin(LargeListAdmin):
    """A list with a column of what is used now, and one of where the limits were set."""

    class Media:
        css = {"all": ["limits_app/lists.css"]}

    def get_changelist(self, request: HttpRequest, **options: Any) -> type[ChangeList]:
        """Give the list that looks at all rows of a page at once."""
        return StatefulList

    def look(self, rows: Sequence[Any]) -> None:
        """Tell each row the states that are shown in it; None where nobody can say."""
        pairs = {row.pk: list(pairs) for row, pairs in zip(rows, self.pairs(rows), strict=True)}
        try:
            states = iter(services.overview([pair for some in pairs.values() for pair in some]))
        except LimitsError:
            states = None
        for row in rows:
            row.states = None if states is None else [next(states) for _pair in pairs[row.pk]]

    def pairs(self, rows: Sequence[Any]) -> Iterable[Iterable[Pair]]:
        """Say which resources and entities each row is about."""
        raise NotImplementedError

    @admin.display(description=_("in use now"))
    def in_use(self, row: Any) -> str:
        """Show what is used and left of each limit."""
        if row.states is None:
            return gettext("unknown")
        return format_html_join("", "{}", ((self.state_in_words(row, state),) for state in row.states)) or "-"

    @admin.display(description=_("source"))
    def source(self, row: Any) -> str:
        """Say where the limits were set, and whether others are tried."""
        if row.states is None:
            return gettext("unknown")
        return ", ".join(dict.fromkeys(word for state in row.states for word in _source(state))) or "-"

    def state_in_words(self, row: Any, state: RowState) -> SafeString | str:
        """Show one state of a row."""
        return shown_limits(state, state.limits, named=False)


def shown_limits(state: RowState, limits: Iterable[LimitState], *, named: bool) -> SafeString | str:
    """Show limits with bars, under the name of their resource where there are several."""
    label = format_html("<strong>{}</strong> ", state.resource) if named else ""
    if state.effect != PolicyEffect.LIMITS:
        return format_html("<div>{}{}</div>", label, _EFFECTS[state.effect])
    lines = format_html_join("", "<li>{}</li>", ((limit_line(limit),) for limit in limits))
    return format_html('<div>{}<ul class="limits-state">{}</ul></div>', label, lines) if lines else ""


def limit_line(limit: LimitState) -> SafeString:
    """Show one limit: its key, a bar, and the numbers for whoever does not see bars."""
    key = gettext("%(key)s (shared)") % {"key": limit.key} if limit.shared else limit.key
    if limit.used is None or limit.available is None:
        return format_html("{}: {}", key, gettext("unknown of %(capacity)s") % {"capacity": amount(limit.capacity)})
    drawn = bar(key, limit.used, limit.capacity, limit.available)
    numbers = {"used": drawn.used, "capacity": drawn.capacity, "left": drawn.remaining}
    words = gettext("%(used)s of %(capacity)s used, %(left)s left") % numbers
    share = f"{min(max(limit.share, 0.0), 1.0):.3f}"
    meter = '<meter min="0" max="1" low="0.8" high="0.95" optimum="0" value="{}" aria-label="{}"></meter>'
    figures = '<span class="limits-figures">{}</span>'
    return format_html("{}: " + meter + " " + figures, key, share, f"{key}: {words}", words)


def _source(state: RowState) -> Iterable[str]:
    for level in state.levels:
        yield str(_LEVELS[level])
    for level in state.tried:
        yield gettext("%(level)s (tried in the shadow)") % {"level": _LEVELS[level]}
    if not state.levels:
        yield gettext("nothing is set")
