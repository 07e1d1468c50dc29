"""Reading lists of prices: CSV and JSON as `limits prices list` writes them, and the JSON that LiteLLM publishes."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from math import isfinite
from typing import Any, Final

from limits_app.engine import EXACT, PRICE_DECIMALS, PRICED_UNITS, check_price, shown
from limits_app.engine.errors import InvalidLimit
from limits_app.engine.limits import CallLimit
from limits_app.models.fields import decimal_text
from limits_app.services.definitions import InvalidDefinition
from limits_app.services.prices import ListedPrice, PriceChange, PriceKind, read_price, unit_price

MAX_PRICE_CHARACTERS: Final = 32_000_000
"""How large a list may be."""
LITELLM_UNITS: Final[Mapping[str, str]] = {
    "input_cost_per_token": "input_tokens",
    "output_cost_per_token": "output_tokens",
    "cache_read_input_token_cost": "cached_tokens",
    "input_cost_per_request": CallLimit.key,
}
"""The units of a model in LiteLLM's list that are imported, by its names for their prices.

Each priced unit has to be reported by every request, so that others are imported only where they are named.
"""
_EXAMPLE: Final = "sample_spec"
_FIELDS: Final = ("resource", "member", "unit", "amount", "per", "currency", "valid_from")
_NOT_JSON: Final = "the file must be CSV with a head line, or JSON: a list of prices, or LiteLLM's list of models"


@dataclass(frozen=True, slots=True)
class ImportOptions:
    """How a list is read.

    `valid_from` is the hour from which prices without a later one are valid (None: the next full hour). For LiteLLM's
    list: `providers` are those whose models are imported (none: all), `resource` is the name of a resource, made of
    `{name}` as in the list, `{model}` without its provider, and `{provider}`; `replaced` are texts in these names and
    what replaces them, `units` are further units by LiteLLM's name for the price, an empty one for none, and
    `currency` is that of the prices.
    """

    valid_from: datetime | None = None
    providers: frozenset[str] = frozenset()
    resource: str = "{name}"
    replaced: Mapping[str, str] = field(default_factory=dict)
    units: Mapping[str, str] = field(default_factory=dict)
    currency: str = "usd"


@dataclass(frozen=True, slots=True)
class PriceFile:
    """The prices of a list, and its skipped entries."""

    prices: Sequence[ListedPrice]
    skipped: Sequence[PriceChange]


class InvalidPriceFile(InvalidLimit):
    """A file that is not a list of prices."""


def read_prices(text: str, options: ImportOptions) -> PriceFile:
    """Read the text of a file; InvalidPriceFile if it is another list. Invalid prices are skipped."""
    if len(text) > MAX_PRICE_CHARACTERS:
        raise InvalidPriceFile(f"a list has at most {MAX_PRICE_CHARACTERS} characters: split it")
    if not text.lstrip("\ufeff \t\r\n").startswith(("{", "[")):
        return _listed(_csv_rows(text), options)
    data = _json(text)
    if isinstance(data, dict) and not isinstance(data.get("prices"), list):
        return _LiteLlm(data, options).read()
    return _listed(enumerate(data["prices"] if isinstance(data, dict) else data, 1), options)


def _json(text: str) -> Any:
    try:
        return json.loads(text.lstrip("\ufeff"))
    except (ValueError, RecursionError) as error:
        raise InvalidPriceFile(f"{_NOT_JSON}; {error}") from error


def _csv_rows(text: str) -> Iterator[tuple[int, Mapping[str, object]]]:
    """The rows of a table with their lines; numbers stay text."""
    reader = csv.DictReader(io.StringIO(text.lstrip("\ufeff")))
    missing = {"resource", "unit", "amount", "currency"} - {*(reader.fieldnames or ())}
    if missing:
        raise InvalidPriceFile(f"{_NOT_JSON}; the head line lacks {', '.join(sorted(missing))}")
    try:
        for values in reader:
            row: dict[str, object] = {name: values[name] for name in _FIELDS if values.get(name)}
            per = str(row.get("per", "")).replace(",", "")
            yield reader.line_num, row | ({"per": int(per)} if per.isascii() and per.isdigit() else {})
    except csv.Error as error:
        raise InvalidPriceFile(f"line {reader.line_num}: {error}") from error


def _listed(rows: Iterable[tuple[int, Any]], options: ImportOptions) -> PriceFile:
    """Prices that are written as in limits files."""
    prices, skipped = list[ListedPrice](), list[PriceChange]()
    for number, fields in rows:
        source = f"price {number}"
        try:
            values = {name: fields[name] for name in _FIELDS if fields.get(name) not in (None, "")}
            prices.append(ListedPrice(source, read_price(values, valid_from=options.valid_from)))
        except InvalidDefinition as error:
            skipped.append(PriceChange(PriceKind.SKIPPED, source, reason=str(error)))
        except (AttributeError, TypeError):
            reason = f"must be an object with fields such as “resource”, not {shown(fields)}"
            skipped.append(PriceChange(PriceKind.SKIPPED, source, reason=reason))
    return PriceFile(prices, skipped)


class _LiteLlm:
    """Reads LiteLLM's list: an object for each model, with the price of one unit under each name that has “cost”."""

    def __init__(self, data: Mapping[str, Any], options: ImportOptions) -> None:
        self._data = data
        self._options = options
        self._units = {name: unit for name, unit in {**LITELLM_UNITS, **options.units}.items() if unit}
        self._skipped: list[PriceChange] = []
        self._models: dict[str, tuple[str, Sequence[ListedPrice]]] = {}
        """The model that is a resource, and its prices, by the name of the resource."""
        self._others: dict[str, int] = {}

    def read(self) -> PriceFile:
        """The prices of all models; a model of which one price cannot be kept exactly is skipped as a whole."""
        if not any(isinstance(model, dict) for model in self._data.values()):
            raise InvalidPriceFile(_NOT_JSON)
        for name, model in self._data.items():
            provider = model.get("litellm_provider") if isinstance(model, dict) else None
            if name == _EXAMPLE or (self._options.providers and provider not in self._options.providers):
                continue
            try:
                self._add(name, [*self._prices_of(name, model, str(provider or ""))])
            except InvalidDefinition as error:
                self._skip(name, "; ".join(text for texts in error.errors.values() for text in texts) + _advice(error))
            except InvalidLimit as error:
                self._skip(name, str(error))
        for field_name, count in sorted(self._others.items(), key=lambda item: (-item[1], item[0])):
            reason = f"not imported, of {count} models; --unit {field_name}=KEY imports it as the price of a unit"
            self._skip(field_name, reason)
        return PriceFile([listed for _, prices in self._models.values() for listed in prices], self._skipped)

    def _prices_of(self, name: str, model: Any, provider: str) -> Iterator[ListedPrice]:
        if not isinstance(model, dict):
            raise InvalidLimit(f"must be an object, not {shown(model)}")
        costs = {key: value for key, value in model.items() if "cost" in key and value is not None}
        for key in costs.keys() - self._units.keys():
            self._others[key] = self._others.get(key, 0) + 1
        priced = {key: _decimal(key, costs[key]) for key in self._units if key in costs}
        if not priced:
            raise InvalidLimit("has no price of the units that are imported")
        is_free = not any(priced.values())
        for key, cost in priced.items():
            amount, per = _amount_of(key, cost)
            fields = {
                "resource": self._resource(name, provider),
                "unit": self._units[key],
                "amount": amount,
                "per": per,
                "currency": self._options.currency,
            }
            row = read_price(fields, valid_from=self._options.valid_from)
            yield ListedPrice(name, row, is_optional=not (cost or is_free))

    def _resource(self, name: str, provider: str) -> str:
        model = name.removeprefix(f"{provider}/") if provider else name
        resource = self._options.resource
        for word, text in (("{name}", name), ("{model}", model), ("{provider}", provider)):
            resource = resource.replace(word, text)
        for old, new in self._options.replaced.items():
            resource = resource.replace(old, new)
        return resource

    def _add(self, name: str, prices: Sequence[ListedPrice]) -> None:
        """Add the prices of a model, unless another model is the same resource at another price."""
        resource = prices[0].row.resource
        first, others = self._models.setdefault(resource, (name, prices))
        if {unit_price(listed.row) for listed in prices} != {unit_price(listed.row) for listed in others}:
            self._skip(name, f"is the resource {resource} too, as {first} is, at another price")

    def _skip(self, name: str, reason: str) -> None:
        self._skipped.append(PriceChange(PriceKind.SKIPPED, name, reason=reason))


def _advice(error: InvalidDefinition) -> str:
    return "; use --replace or --resource for another name" if ("resource",) in error.errors else ""


def _decimal(key: str, cost: Any) -> Decimal:
    """The price of one unit: a float stands for its shortest decimal form."""
    if isinstance(cost, bool) or not isinstance(cost, int | float) or not isfinite(cost):
        raise InvalidLimit(f"{key} must be a number, not {shown(cost)}")
    return Decimal(cost) if isinstance(cost, int) else Decimal(repr(cost))


def _amount_of(key: str, cost: Decimal) -> tuple[Decimal, int]:
    """The price as an amount for a number of units that has few enough digits: for tokens a million, else few."""
    numbers = PRICED_UNITS[::-1] if "token" in key else PRICED_UNITS
    for per in numbers:
        amount = EXACT.multiply(cost, per)
        try:
            check_price(amount, per)
        except InvalidLimit:
            continue
        return Decimal(decimal_text(amount)), per
    raise InvalidLimit(
        f"{key} is {decimal_text(cost)}, which has more than {PRICE_DECIMALS} decimals for 1,000,000 units or is too "
        "large: set this price by hand"
    )
