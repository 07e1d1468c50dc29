"""Prices: the list of what applies, the history of each, and a table for the prices of one resource."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from decimal import Decimal
from typing import Any, Final

from django import forms
from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.forms import formset_factory
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import URLPattern, path, reverse
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from limits_app import conf
from limits_app.admin.base import AuditedAdmin, confirmation, moment_column
from limits_app.admin.changelists import CappedPaginator
from limits_app.admin.forms import DateTimeFormField, DateTimeWidget
from limits_app.models import Per, Price, write_alias
from limits_app.models.fields import decimal_text
from limits_app.models.price import next_full_hour, validate_new_hour
from limits_app.services.definitions import InvalidDefinition
from limits_app.services.display import moment
from limits_app.services.prices import (
    ListedPrice,
    PriceState,
    plan_prices,
    read_price,
    set_prices,
    state_of,
    with_states,
)
from limits_app.services.rights import may_change_rows

_EMPTY_ROWS: Final = 3
"""How many units can be added to a table at a time."""
_STATES: Final = {
    PriceState.PAST: _("replaced"),
    PriceState.CURRENT: _("applies now"),
    PriceState.FUTURE: _("in the future"),
}


def _currencies() -> list[tuple[str, str]]:
    return [(currency, currency.upper()) for currency in conf.get(conf.CURRENCIES)]


def _with_hour(price: Any) -> str:
    """A price of `with_states` in words, with the hour from which it is valid."""
    values = {"price": price.in_words, "hour": moment(price.valid_from), "state": _STATES[state_of(price)]}
    return gettext("%(price)s from %(hour)s (%(state)s)") % values


class PriceForm(forms.ModelForm):  # type: ignore[type-arg]  # generic only in its type stubs
    """A price, with the currencies of the site to choose from."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        if "currency" in self.fields:
            self.fields["currency"].widget = forms.Select(choices=_currencies())
        if "amount" in self.fields:
            self.fields["amount"].widget = forms.TextInput(attrs={"size": 16, "inputmode": "decimal"})
            if isinstance(amount := self.initial.get("amount"), Decimal):
                self.initial["amount"] = decimal_text(amount)


class TableForm(forms.Form):
    """What the prices of a table are for, and when they begin."""

    resource = forms.CharField(label=_("resource or pattern"), max_length=64, strip=False)
    member = forms.CharField(label=_("member of the pool"), max_length=100, required=False, strip=False)
    valid_from = DateTimeFormField(
        label=_("valid from"),
        required=False,
        widget=DateTimeWidget,
        help_text=_("A full hour that is not in the past; leave empty for the next one."),
    )

    def clean_valid_from(self) -> datetime | None:
        """Reject times from which no new price can be valid."""
        hour: datetime | None = self.cleaned_data["valid_from"]
        if hour is not None:
            validate_new_hour(hour)
        return hour


class RowForm(forms.Form):
    """One unit of a table; without an amount, its price stays."""

    unit = forms.CharField(label=_("unit"), max_length=64, required=False)
    amount = forms.CharField(
        label=_("new price"), max_length=24, required=False, widget=forms.TextInput(attrs={"inputmode": "decimal"})
    )
    per = forms.TypedChoiceField(label=_("per"), choices=Per.choices, coerce=int, initial=Per.MILLION)
    currency = forms.ChoiceField(label=_("currency"), choices=_currencies)
    prices: Sequence[Any] = ()
    """The prices of the unit that apply or will apply."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        for name, field in self.fields.items():
            field.widget.attrs["aria-label"] = str(field.label)
            if name in {"unit", "currency"} and self.initial.get("unit"):
                field.disabled = True


RowFormSet: Final = formset_factory(RowForm, extra=_EMPTY_ROWS)


class StateFilter(admin.SimpleListFilter):
    """What applies now or later, or the history too."""

    title = _("history")
    parameter_name = "history"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        """What can be chosen besides the prices that apply now or later."""
        return [("all", _("with replaced prices"))]

    def choices(self, changelist: Any) -> Iterator[Any]:
        """Name the default."""
        first, *others = super().choices(changelist)
        yield {**first, "display": _("now and later")}
        yield from others

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        """Leave out replaced prices unless they are asked for."""
        return queryset if self.value() == "all" else queryset.filter(is_past=False)


@admin.register(Price)
class PriceAdmin(AuditedAdmin):
    """Prices; one that has begun can only be followed by a new one."""

    list_display = ["priced", "price", "begins", "state"]
    list_display_links = ["price"]
    list_filter = [StateFilter, "currency", "unit"]
    list_per_page = 50
    show_full_result_count = False
    paginator = CappedPaginator
    search_fields = ["resource", "member", "unit"]
    form = PriceForm
    fields = ["resource", "member", "unit", "amount", "per", "currency", "valid_from"]
    begins = moment_column("valid_from", _("valid from"))

    def get_urls(self) -> list[URLPattern]:
        """The pages, and the table of a resource."""
        view = self.admin_site.admin_view(self.table_view)
        return [path("table/", view, name="limits_app_price_table"), *super().get_urls()]

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        """The prices, with whether each was replaced."""
        return with_states(super().get_queryset(request))

    def get_list_display(self, request: HttpRequest) -> list[Any]:
        """Lead to the table of a resource where the user may set prices."""
        first = "priced_with_table" if may_change_rows(request.user, "add", Price) else "priced"
        return [first, *super().get_list_display(request)[1:]]

    def get_fields(self, request: HttpRequest, obj: Any = None) -> list[Any]:
        """Show the history of a stored price."""
        fields = [*super().get_fields(request, obj)]
        return fields if obj is None else [*fields, "history"]

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> list[str]:
        """The history is read."""
        return ["history"]

    def get_changeform_initial_data(self, request: HttpRequest) -> dict[str, Any]:
        """A new price is valid from the next full hour."""
        return {"valid_from": next_full_hour(), **super().get_changeform_initial_data(request)}

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """A price that has begun cannot be changed."""
        return super().has_change_permission(request, obj) and not (obj is not None and obj.has_begun)

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """A price that has begun cannot be deleted."""
        return super().has_delete_permission(request, obj) and not (obj is not None and obj.has_begun)

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Who may change prices may view those that have begun."""
        return super().has_view_permission(request, obj) or may_change_rows(request.user, "view", Price)

    @admin.display(description=_("for"), ordering="resource")
    def priced(self, row: Price) -> str:
        """What the price is for."""
        return row.priced

    @admin.display(description=_("for"), ordering="resource")
    def priced_with_table(self, row: Price) -> SafeString:
        """What the price is for, as a link to all prices of it."""
        return format_html('<a href="{}">{}</a>', self._table_url(row.resource, row.member), row.priced)

    @admin.display(description=_("price"), ordering="unit")
    def price(self, row: Price) -> str:
        """The price in words."""
        return row.in_words

    @admin.display(description=_("state"))
    def state(self, row: Price) -> str:
        """Whether it applies."""
        return str(_STATES[state_of(row)])

    @admin.display(description=_("history"))
    def history(self, row: Price) -> SafeString:
        """All prices of the unit in the currency, the latest first, and the way to a new one."""
        same = Price.objects.using(write_alias()).filter(resource=row.resource, member=row.member)
        prices = with_states(same.filter(unit=row.unit, currency=row.currency).order_by("-valid_from"))
        lines = format_html_join("", "<li>{}</li>", [(_with_hour(price),) for price in prices])
        table = self._table_url(row.resource, row.member)
        return format_html('<ul>{}</ul><a href="{}">{}</a>', lines, table, gettext("New price from a later hour"))

    def _table_url(self, resource: str, member: str) -> str:
        query = {"resource": resource, **({"member": member} if member else {})}
        return reverse(f"{self.admin_site.name}:limits_app_price_table", query=query)

    def table_view(self, request: HttpRequest) -> HttpResponse:
        """Show the prices of a resource with a field for each, or write those that were entered, all or none."""
        if not may_change_rows(request.user, "add", Price):
            raise PermissionDenied
        names = {name: request.GET.get(name, "").replace("\0", "") for name in ("resource", "member")}
        form = TableForm(request.POST or None, initial={**names, "valid_from": next_full_hour()})
        rows = self._rows(request, **names)
        if request.method == "POST" and form.is_valid() and rows.is_valid() and self._written(request, form, rows):
            return HttpResponseRedirect(self.list_or_index(request))
        title = gettext("Prices of %(resource)s") % names if names["resource"] else gettext("New prices")
        back = self.list_or_index(request)
        return confirmation(self, request, form, title=title, template="prices", rows=rows, back=back)

    def _rows(self, request: HttpRequest, resource: str, member: str) -> Any:
        """A row for each unit that has a price, and empty ones."""
        stored = Price.objects.using(write_alias()).filter(resource=resource, member=member)
        units: dict[tuple[str, str], list[Any]] = {}
        for price in with_states(stored.order_by("unit", "currency", "valid_from")).filter(is_past=False):
            units.setdefault((price.unit, price.currency), []).append(price)
        initial = [
            {"unit": unit, "currency": currency, "per": prices[-1].per} for (unit, currency), prices in units.items()
        ]
        formset: Any = RowFormSet(request.POST or None, initial=initial, prefix="rows")
        for row, prices in zip(formset.forms, units.values(), strict=False):
            row.prices = [*map(_with_hour, prices)]
        return formset

    def _written(self, request: HttpRequest, form: TableForm, rows: Any) -> bool:
        """Write the prices that were entered; errors are shown at their rows."""
        prices = [*self._read(form, rows)]
        if any(row.errors for row in rows) or form.errors:
            return False
        if not prices:
            form.add_error(None, gettext("Enter a price."))
            return False
        if problems := plan_prices(prices).problems:
            form.add_error(None, problems)
            return False
        plan = set_prices(prices, actor=request.user.get_username(), source="admin")
        text = gettext("%(count)d prices were set.") % {"count": len(plan.new)}
        self.message_user(request, text, messages.SUCCESS)
        return True

    def _read(self, form: TableForm, rows: Any) -> Iterator[ListedPrice]:
        data = form.cleaned_data
        common = {"resource": data["resource"], "member": data["member"], "valid_from": data["valid_from"]}
        for row in rows:
            entered = row.cleaned_data
            if not entered.get("amount"):
                continue
            try:
                yield ListedPrice(entered["unit"], read_price({**common, **entered}))
            except InvalidDefinition as error:
                for (name, *_rest), texts in error.errors.items():
                    owner: Any = row if name in row.fields else form
                    owner.add_error(name if name in owner.fields else None, texts)
