"""Requests and responses: frozen values, checked when they are made."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StrictFloat, StrictInt

__all__ = ["Request", "Response"]

_REPEATABLE: Final = frozenset({"GET", "HEAD", "PUT", "DELETE", "OPTIONS"})


def _pairs(value: object) -> object:
    return tuple(value.items()) if isinstance(value, Mapping) else value


Pairs = Annotated[tuple[tuple[str, str], ...], BeforeValidator(_pairs)]
"""Names and values; a mapping is taken, too."""
Amounts = Annotated[tuple[tuple[str, StrictInt | StrictFloat], ...], BeforeValidator(_pairs)]
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Request(_Frozen):
    """What is asked of an upstream.

    `path` begins with one slash and is below the address of the client: a request cannot lead a key astray.
    `amounts` is what it takes from a limit set, by key; calls and permits need not be named.
    `timeout_seconds` is for one answer, and `wait_seconds` for the turn before it (None: as long as it takes).
    `repeatable` says that the upstream may get it twice; by default that depends on the method.
    """

    method: Literal["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"] = "GET"
    path: Annotated[str, Field(pattern=r"^/([^/\\\s?#][^\s\\?#]*)?$")]
    params: Pairs = ()
    headers: Pairs = Field(default=(), repr=False)
    content: bytes = Field(default=b"", repr=False)
    amounts: Amounts = ()
    timeout_seconds: Seconds = 30.0
    wait_seconds: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = 60.0
    repeatable: bool | None = None

    @classmethod
    def with_json(cls, path: str, value: object, *, method: str = "POST", **fields: Any) -> Self:
        """A request whose content is `value` as JSON."""
        headers = {"Content-Type": "application/json"} | dict(fields.pop("headers", {}))
        return cls.model_validate(
            {"method": method, "path": path, "content": json.dumps(value).encode(), "headers": headers, **fields}
        )

    @property
    def may_repeat(self) -> bool:
        """Whether the upstream may get it twice."""
        return self.method in _REPEATABLE if self.repeatable is None else self.repeatable


class Response(_Frozen):
    """What an upstream answered, whatever the status; `seconds` is how long that took."""

    status: int
    headers: Pairs = Field(default=(), repr=False)
    content: bytes = Field(default=b"", repr=False)
    upstream: str = ""
    seconds: float = 0.0
    cached: bool = False

    @property
    def ok(self) -> bool:
        """Whether the upstream did what it was asked."""
        return 200 <= self.status < 300

    @property
    def refused(self) -> bool:
        """Whether the upstream refused because of a limit of its own, without doing anything."""
        return self.status == 429

    @property
    def failed(self) -> bool:
        """Whether the upstream says that it is at fault."""
        return self.status >= 500

    def header(self, name: str) -> str | None:
        """The value of a header; several of one name are joined by commas."""
        values = [value for key, value in self.headers if key.lower() == name.lower()]
        return ", ".join(values) if values else None

    def json_value(self) -> Any:
        """The content read as JSON; ValueError when it is none."""
        return json.loads(self.content)
