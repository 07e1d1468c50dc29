"""The demand of a task: which entity is charged how much of which resource, read from the arguments of each call."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from string import Formatter
from typing import Any

from limits_app.engine.errors import InvalidLimit
from limits_app.integrations.identity import normalize_entity
from limits_app.services import Share
from limits_app.services.amounts import one_client, one_of_each
from limits_app.services.integration import GivenAmount, check_entity, check_resource, checked_priority, checked_timeout

Payer = str | Callable[..., str | None] | None
"""An identifier, in which `{argument}` and `{argument.part}` stand for arguments; or a function of the arguments."""

Priority = str | Callable[..., str | None] | None
"""A priority, or a function of the arguments."""

AmountOfTask = GivenAmount | Callable[..., GivenAmount]
"""An amount, the name of an argument or of a part of one, or a function of the arguments."""


@dataclass(frozen=True)
class Demand:
    """Which entity is charged how much of `resource` for a call of a task.

    `entity` is an identifier such as `"tenant:acme"` or `"user:{user_id}"`, a callable that takes the arguments of the
    task, or None for the site itself. `requested` are amounts by limit key, each a number, the name of an argument
    (`"tokens"`, `"job.tokens"`) or a callable; or one callable for all of them. Of every limit that is not named
    it takes 1.
    `priority` is one of `LIMITS["PRIORITIES"]`, or a callable that takes the arguments and returns one;
    by default that of the plan or the resource.
    `patience_seconds` is how long eager and direct calls wait, which cannot be queued again.
    Raises InvalidLimit for an invalid resource or entity; for an entity made of arguments, when the task is called.
    """

    resource: str
    entity: Payer = None
    requested: Mapping[str, AmountOfTask] | Callable[..., Mapping[str, GivenAmount]] | None = None
    patience_seconds: float | None = 60.0
    priority: Priority = None

    def __post_init__(self) -> None:
        check_resource(self.resource)
        checked_timeout(self.patience_seconds)
        if isinstance(self.priority, str):
            checked_priority(self.priority)
        if isinstance(self.entity, str):
            check_entity(one_client(self.entity))

    def of_call(self, run: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Share:
        """Return what one call of `run` requests; TypeError for wrong arguments, InvalidLimit for an empty entity."""
        bound = inspect.signature(run).bind(*args, **kwargs)
        bound.apply_defaults()
        entity = self._of_arguments(self.entity, args, kwargs)
        if isinstance(self.entity, str) and "{" in self.entity:
            entity = _Identifier().vformat(self.entity, (), bound.arguments)
        if callable(self.requested):
            amounts = self.requested(*args, **kwargs)
        else:
            amounts = {
                key: _at(price, bound.arguments) if isinstance(price, str) else self._of_arguments(price, args, kwargs)
                for key, price in (self.requested or {}).items()
            }
        priority = self._of_arguments(self.priority, args, kwargs)
        client = None if entity is None else _checked(entity)
        return Share(self.resource, client, partial(one_of_each, amounts), priority=priority)

    @staticmethod
    def _of_arguments(value: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        return value(*args, **kwargs) if callable(value) else value


class _Identifier(Formatter):
    """Fills arguments into identifiers; an empty one is an error, since all such calls would share one bucket."""

    def get_field(self, field_name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:  # noqa: ARG002
        """Look parts up as amounts do: `{job.tenant}` is an attribute or a key."""
        value = _at(field_name, kwargs)
        if value is None or value == "":
            raise InvalidLimit(f"the argument {field_name} is {value!r}: an entity must not be empty, give it a value")
        return value, field_name

    def format_field(self, value: Any, format_spec: str) -> Any:
        """Format a value; InvalidLimit where nothing is left of it."""
        text = super().format_field(value, format_spec)
        if not text:
            raise InvalidLimit(f"{value!r} is empty in the format {format_spec!r}: an entity must not be empty")
        return text


def _at(path: str, arguments: Mapping[str, Any]) -> Any:
    """Return the part of an argument at a dotted path."""
    name, *parts = path.split(".")
    return reduce(_part, parts, arguments[name])


def _part(whole: Any, name: str) -> Any:
    """Return an attribute or a key, since what is an object in the sender is a dict in a message."""
    return whole[name] if isinstance(whole, Mapping) else getattr(whole, name)


def _checked(entity: object) -> str:
    """Return a valid identifier, a digest for one that is too long; InvalidLimit for anything else."""
    return check_entity(normalize_entity(entity) if isinstance(entity, str) and entity else entity)
