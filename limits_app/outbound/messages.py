"""Requests and responses: frozen values, checked when they are made."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, StrictFloat, StrictInt

__all__ = ["HEADER_NAME", "HEADER_VALUE", "Request", "Response"]

HEADER_NAME: Final = r"^[!#$%&'*+\-.^_`|~0-9A-Za-z]+$"
HEADER_VALUE: Final = r"^([!-~]([\t -~]*[!-~])?)?$"
"""What may be in a header: nothing that ends it, or that a library would have to guess the encoding of."""
_OF_CONNECTIONS: Final = frozenset({"host", "content-length", "transfer-encoding", "connection", "upgrade"})
_REPEATABLE: Final = frozenset({"GET", "HEAD", "PUT", "DELETE", "OPTIONS"})
_NOT_IN_PATHS: Final = r"\s\\?#\x00-\x1f\x7f\ud800-\udfff"
_PATH: Final = re.compile(rf"/([^/{_NOT_IN_PATHS}][^{_NOT_IN_PATHS}]*)?")
# A server may decode more than it should before it looks for these, and cut a name at more than slashes.
_UPWARDS: Final = re.compile(
    r"(?:/|%(?:25)*(?:2f|5c))(?:\.|%(?:25)*2e){1,2}(?:$|[/;]|%(?:25)*(?:[01][0-9a-f]|2[03f]|3[bf]|5c))", re.IGNORECASE
)


def _pairs(value: object) -> object:
    return tuple(value.items()) if isinstance(value, Mapping) else value


def _below(path: str) -> str:
    if not _PATH.fullmatch(path):
        raise ValueError(
            "a path begins with one slash, and has no space, '\\', '?' or '#': for a query there is params"
        )
    if _UPWARDS.search(path):
        raise ValueError("a path must stay below the address of the client: it cannot have '.' or '..' between slashes")
    return path


def _of_requests(name: str) -> str:
    if name.lower() in _OF_CONNECTIONS:
        raise ValueError(
            f"the header {name} is set by the client: a request cannot say where it goes or how long it is"
        )
    return name


Pairs = Annotated[tuple[tuple[str, str], ...], BeforeValidator(_pairs)]
"""Names and values; a mapping is taken, too."""
Headers = Annotated[
    tuple[
        tuple[
            Annotated[str, Field(pattern=HEADER_NAME), AfterValidator(_of_requests)],
            Annotated[str, Field(pattern=HEADER_VALUE)],
        ],
        ...,
    ],
    BeforeValidator(_pairs),
]
Amounts = Annotated[
    tuple[
        tuple[str, Annotated[StrictInt, Field(ge=0)] | Annotated[StrictFloat, Field(ge=0, allow_inf_nan=False)]], ...
    ],
    BeforeValidator(_pairs),
]
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class _Frozen(BaseModel):
    # What is refused may hold a secret.
    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)


class Request(_Frozen):
    """What is asked of an upstream.

    `path` begins with one slash and is below the address of the client: a request cannot lead a key astray. So it has
    no `.` or `..` between slashes, however these are written.
    `amounts` is what it takes from a limit set, by key; calls and permits need not be named.
    `timeout_seconds` is for one answer, and `wait_seconds` for the turn before it (None: as long as it takes).
    `repeatable` says that the upstream may get it twice; by default that depends on the method.
    """

    method: Literal["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"] = "GET"
    path: Annotated[str, AfterValidator(_below)]
    params: Pairs = ()
    headers: Headers = Field(default=(), repr=False)
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

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:  # noqa: ARG002
        """A copy with other fields, which are checked like those of any request."""
        return self.model_validate(dict(self) | dict(update or {}))

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
