"""What a task demands: who is charged how much of which resource, read from the arguments of each call."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from string import Formatter
from typing import Any

from limits_app.core.amounts import Amount
from limits_app.core.blocking import checked_timeout
from limits_app.core.errors import InvalidLimit
from limits_app.core.keys import check_entity, check_resource
from limits_app.integrations.amounts import one_of_each
from limits_app.integrations.identity import sound
from limits_app.services import Share

__all__ = ["Demand", "Payer", "Price"]

Payer = str | Callable[..., str | None] | None
"""An identifier, in which `{argument}` and `{argument.part}` stand for arguments; or what makes one of them."""

Price = Amount | str | Callable[..., Amount]
"""An amount, `"argument"` or `"argument.part"` that has it, or what makes it of the arguments."""


@dataclass(frozen=True)
class Demand:
    """Who is charged how much of `resource` for a call of a task.

    `entity` is an identifier such as `"tenant:acme"` or `"user:{user_id}"`, a callable that takes the arguments of the
    task, or None for the site itself. `requested` are amounts by limit key, each a number, the name of an argument
    (`"tokens"`, `"job.tokens"`) or a callable; or one callable for all of them. Of every limit that is not named
    it takes 1.
    `patience_seconds` is how long a call waits that cannot be queued again, since it is eager or direct.
    Raises InvalidLimit for a resource or an entity that cannot be; for one that an argument makes, with the call.
    """

    resource: str
    entity: Payer = None
    requested: Mapping[str, Price] | Callable[..., Mapping[str, Amount]] | None = None
    patience_seconds: float | None = 60.0

    def __post_init__(self) -> None:
        check_resource(self.resource)
        checked_timeout(self.patience_seconds)
        if isinstance(self.entity, str):
            check_entity(self.entity)

    def of_call(self, run: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Share:
        """What one call of `run` asks; TypeError for arguments that it does not take, InvalidLimit for nobody."""
        bound = inspect.signature(run).bind(*args, **kwargs)
        bound.apply_defaults()
        call = _Call(args, kwargs, bound.arguments)
        entity = call.named(self.entity) if isinstance(self.entity, str) else call.asked(self.entity)
        return Share(
            self.resource, None if entity is None else _sound(entity), partial(one_of_each, self._prices(call))
        )

    def _prices(self, call: _Call) -> Mapping[str, Amount]:
        if callable(self.requested):
            amounts: Mapping[str, Amount] = call.asked(self.requested)
            return amounts
        return {key: call.priced(price) for key, price in (self.requested or {}).items()}


@dataclass(frozen=True, slots=True)
class _Call:
    """The arguments of a call, as they came and by name."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    arguments: Mapping[str, Any]

    def asked(self, value: Any) -> Any:
        return value(*self.args, **self.kwargs) if callable(value) else value

    def named(self, pattern: str) -> str:
        return _Identifier().vformat(pattern, (), self.arguments) if "{" in pattern else pattern

    def priced(self, price: Price) -> Any:
        return _at(price, self.arguments) if isinstance(price, str) else self.asked(price)


class _Identifier(Formatter):
    """Writes identifiers, and nobody into none of them."""

    def get_field(self, field_name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:  # noqa: ARG002
        """Look parts up as prices do: `{job.tenant}` is an attribute or a key."""
        value = _at(field_name, kwargs)
        if value is None or value == "":
            raise InvalidLimit(f"the argument {field_name} is {value!r}, which names nobody and would be everybody's")
        return value, field_name

    def format_field(self, value: Any, format_spec: str) -> Any:
        """Write it as it says itself."""
        text = super().format_field(value, format_spec)
        if not text:
            raise InvalidLimit(f"nothing is left of {value!r} as {format_spec!r}, which names nobody")
        return text


def _at(path: str, arguments: Mapping[str, Any]) -> Any:
    """The part that a dotted path leads to."""
    name, *parts = path.split(".")
    return reduce(_part, parts, arguments[name])


def _part(whole: Any, name: str) -> Any:
    """Attributes and keys are alike, since what is an object here is a dict in a message."""
    return whole[name] if isinstance(whole, Mapping) else getattr(whole, name)


def _sound(entity: object) -> str:
    """Empty text would be everybody's; what is too long becomes a digest."""
    return check_entity(sound(entity) if isinstance(entity, str) and entity else entity)
