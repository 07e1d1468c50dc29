"""`prices`: what units of resources cost, and importing lists of prices."""

from __future__ import annotations

import sys
from argparse import ArgumentTypeError, Namespace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from django.core.exceptions import ValidationError

from limits_app import conf
from limits_app.engine.errors import InvalidLimit
from limits_app.management.limits.arguments import argument, moment
from limits_app.management.limits.output import Format, Output, Table
from limits_app.management.limits.subcommand import SOURCE, ExitCode, Subcommand, actor, confirm, fail, subcommand
from limits_app.models import Price, write_alias
from limits_app.models.fields import aware, decimal_text
from limits_app.models.price import validate_new_hour
from limits_app.services.price_files import MAX_PRICE_CHARACTERS, ImportOptions, PriceFile, read_prices
from limits_app.services.prices import (
    ListedPrice,
    PriceKind,
    PricePlan,
    PriceState,
    plan_prices,
    read_price,
    set_prices,
    state_of,
    with_states,
)

_COLUMNS: Final = ("resource", "member", "unit", "amount", "per", "currency", "valid_from", "state")
_FOR_PEOPLE: Final = ("resource", "price", "valid_from", "state")
_CHANGES: Final = ("change", "resource", "before", "after", "valid_from", "reason")
_RESOURCE: Final = argument("resource", metavar="RESOURCE", help="such as openai/gpt-4o, or a pattern such as openai/*")
_MEMBER: Final = argument("--member", default="", help="of this member only; RESOURCE is then the name of its pool")


def _hour(text: str) -> datetime:
    """A full hour that is not in the past."""
    hour = moment(text)
    try:
        validate_new_hour(hour)
    except ValidationError as error:
        raise ArgumentTypeError(" ".join(error.messages)) from error
    return hour


def _per(text: str) -> int:
    units = {"1": 1, "1000": 1000, "1k": 1000, "1000000": 1_000_000, "1M": 1_000_000}
    if text.replace(",", "") not in units:
        raise ArgumentTypeError(f"{text!r} must be one of 1, 1k, 1M")
    return units[text.replace(",", "")]


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise ArgumentTypeError(f"{text!r} must be two texts with “=” between them")
    return name, value


_FROM: Final = argument(
    "--from",
    dest="valid_from",
    type=_hour,
    metavar="HOUR",
    help="valid from this full hour of UTC, not in the past; the default is the next one",
)
_CURRENCY: Final = argument("--currency", help="the currency; the default is the first one in LIMITS['CURRENCIES']")


@subcommand(
    "list the prices that apply now, and those of the future",
    argument("--resource", help="only of this resource or pattern"),
    argument("--unit", help="only of this unit"),
    argument("--history", action="store_true", help="earlier prices too"),
    examples=("prices list", "prices list --resource openai/gpt-4o --history", "prices list --format csv > prices.csv"),
)
def _list(options: Namespace, out: Output) -> None:
    rows = Price.objects.using(write_alias()).order_by("resource", "member", "unit", "currency", "valid_from")
    filters = {name: getattr(options, name) for name in ("resource", "unit") if getattr(options, name)}
    states = [(row, state_of(row)) for row in with_states(rows.filter(**filters))]
    shown = [(row, state.value) for row, state in states if options.history or state is not PriceState.PAST]
    nothing = "There are no prices: set one with `limits prices set` or import a list."
    if out.form is Format.TABLE:
        out.show(
            Table(_FOR_PEOPLE, [(row.priced, row.in_words, row.valid_from, state) for row, state in shown], nothing)
        )
        return
    columns = [
        (
            *(row.resource, row.member, row.unit, decimal_text(row.amount), row.per, row.currency),
            aware(row.valid_from).astimezone(UTC).isoformat(),
            state,
        )
        for row, state in shown
    ]
    out.show(Table(_COLUMNS, columns, nothing))


@subcommand(
    "set the prices of units of a resource, a pattern or a member",
    _RESOURCE,
    argument("prices", type=_pair, nargs="+", metavar="UNIT=AMOUNT", help="such as input_tokens=2.50"),
    argument("--per", type=_per, default=1_000_000, metavar="1|1k|1M", help="units that cost this; the default is 1M"),
    _CURRENCY,
    _MEMBER,
    _FROM,
    examples=(
        "prices set openai/gpt-4o input_tokens=2.50 output_tokens=10 --currency usd",
        "prices set 'openai/*' call_count=0.01 --per 1 --from 2026-04-01T00:00Z",
    ),
    writes=True,
)
def _set(options: Namespace, out: Output) -> None:
    common = {"resource": options.resource, "member": options.member, "per": options.per}
    prices = [
        ListedPrice(
            unit,
            read_price(
                {**common, "unit": unit, "amount": amount, "currency": _currency(options)},
                valid_from=options.valid_from,
            ),
        )
        for unit, amount in options.prices
    ]
    if problems := plan_prices(prices).problems:
        fail(" ".join(problems), ExitCode.USAGE)
    _write(PriceFile(prices, ()), options, out)


@subcommand(
    "import a list of prices: CSV or JSON as `prices list` writes it, or the JSON that LiteLLM publishes",
    argument("file", metavar="FILE", help="the list; - for stdin"),
    argument("--provider", action="append", default=[], help="of LiteLLM's list, only its models; may be repeated"),
    argument(
        "--resource",
        default="{name}",
        metavar="TEXT",
        help="name of a resource in LiteLLM's list, made of {name}, {model} (without provider) and {provider}; "
        "the default is {name}",
    ),
    argument(
        "--replace",
        type=_pair,
        action="append",
        default=[],
        metavar="OLD=NEW",
        help="replace a text in these names, such as :=- for names with a colon; may be repeated",
    ),
    argument(
        "--unit",
        type=_pair,
        action="append",
        default=[],
        metavar="FIELD=KEY",
        help="import a further price of LiteLLM's list as that of a unit; without KEY, leave it out; may be repeated",
    ),
    _CURRENCY,
    _FROM,
    examples=(
        "prices import prices.csv --dry-run",
        "prices import model_prices_and_context_window.json --provider openai --resource 'openai/{model}' --yes",
        "prices import model_prices_and_context_window.json --replace :=- --from 2026-04-01T00:00Z",
    ),
    writes=True,
)
def _import(options: Namespace, out: Output) -> None:
    chosen = ImportOptions(
        valid_from=options.valid_from,
        providers=frozenset(options.provider),
        resource=options.resource,
        replaced=dict(options.replace),
        units=dict(options.unit),
        currency=_currency(options),
    )
    with out.working(f"Reading {options.file}"):
        try:
            prices = read_prices(_text_of(options.file), chosen)
        except InvalidLimit as error:
            fail(f"{options.file}: {error}.", ExitCode.USAGE)
    _write(prices, options, out)


def _text_of(path: str) -> str:
    try:
        if path == "-":
            return sys.stdin.read(MAX_PRICE_CHARACTERS + 1)
        with Path(path).open(encoding="utf-8") as file:
            return file.read(MAX_PRICE_CHARACTERS + 1)
    except OSError as error:
        fail(f"{path} cannot be read: {error.strerror}.")
    except UnicodeDecodeError as error:
        fail(f"{path} must be UTF-8 text: {error.reason} at byte {error.start}.", ExitCode.USAGE)


def _currency(options: Namespace) -> str:
    return options.currency or conf.get(conf.CURRENCIES)[0]


def _write(prices: PriceFile, options: Namespace, out: Output) -> None:
    """Show what would change, ask, and write it; the changes are shown once."""
    plan = plan_prices(prices.prices, prices.skipped)
    _show(plan, out)
    if options.dry_run:
        out.note("This was a dry run: nothing was changed.")
        return
    if plan.new:
        if len(plan.new) > 1:
            confirm(f"Write {len(plan.new)} prices?", options, out)
        set_prices(
            prices.prices,
            prices.skipped,
            expected=plan,
            actor=actor(),
            source=SOURCE,
            reason=options.reason,
        )


def _show(plan: PricePlan, out: Output) -> None:
    changes = [change for change in plan.changes if change.kind is not PriceKind.UNCHANGED]
    rows = [
        (
            change.kind.value,
            change.source if change.after is None else change.after.priced,
            None if change.before is None else change.before.in_words,
            None if change.after is None else change.after.in_words,
            None if change.after is None else aware(change.after.valid_from),
            change.reason,
        )
        for change in changes
    ]
    out.show(Table(_CHANGES, rows, "No changes."), data={"counts": plan.counts(), "changes": plan.as_data()})
    out.note(", ".join(f"{count} {kind}" for kind, count in plan.counts().items()))


PRICES: Final = Subcommand("prices of units", verbs={"list": _list, "set": _set, "import": _import})
