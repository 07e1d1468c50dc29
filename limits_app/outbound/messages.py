"""Requests and responses: frozen values, checked when they are made."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, Self
from uuid import uuid4

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, StrictFloat, StrictInt

HEADER_NAME: Final = r"^[!#$%&'*+\-.^_`|~0-9A-Za-z]+$"
HEADER_VALUE: Final = r"^([!-~]([\t -~]*[!-~])?)?$"
"""Valid header values: ASCII without line breaks, so that no other header can be injected."""
_OF_CONNECTIONS: Final = frozenset({"host", "content-length", "transfer-encoding", "connection", "upgrade"})
_REPEATABLE: Final = frozenset({"GET", "HEAD", "PUT", "DELETE", "OPTIONS"})
_NOT_IN_PATHS: Final = r"\s\\?#\x00-\x1f\x7f\ud800-\udfff"
_PATH: Final = re.compile(rf"/([^/{_NOT_IN_PATHS}][^{_NOT_IN_PATHS}]*)?")
# Servers differ in how often they decode a path, and in the characters at which they split it.
_UPWARDS: Final = re.compile(
    r"(?:/|%(?:25)*(?:2f|5c))(?:\.|%(?:25)*2e){1,2}(?:$|[/;]|%(?:25)*(?:[01][0-9a-f]|2[03f]|3[bf]|5c))", re.IGNORECASE
)


def _pairs(value: object) -> object:
    return tuple(value.items()) if isinstance(value, Mapping) else value


def _checked_path(path: str) -> str:
    if not _PATH.fullmatch(path):
        raise ValueError("a path must begin with one slash, without a space, '\\', '?' or '#'; use params for a query")
    if _UPWARDS.search(path):
        raise ValueError("a path must stay below the address of the client, without '.' or '..' between slashes")
    return path


def _checked_header(name: str) -> str:
    if name.lower() in _OF_CONNECTIONS:
        raise ValueError(f"the header {name} is set by the client; leave it out of requests")
    return name


Pairs = Annotated[tuple[tuple[str, str], ...], BeforeValidator(_pairs)]
"""Names and values; a mapping is converted."""
PassedPairs = Mapping[str, str] | tuple[tuple[str, str], ...]
HeaderItems = Annotated[
    tuple[
        tuple[
            Annotated[str, Field(pattern=HEADER_NAME), AfterValidator(_checked_header)],
            Annotated[str, Field(pattern=HEADER_VALUE)],
        ],
        ...,
    ],
    BeforeValidator(_pairs),
]
RequestAmounts = Annotated[
    tuple[
        tuple[str, Annotated[StrictInt, Field(ge=0)] | Annotated[StrictFloat, Field(ge=0, allow_inf_nan=False)]], ...
    ],
    BeforeValidator(_pairs),
]
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]


def _now() -> datetime:
    return datetime.now(UTC)


def _new_id() -> str:
    return uuid4().hex


_OF_ONE_MESSAGE: Final = frozenset({"request_id", "timestamp"})


class _Frozen(BaseModel):
    """Messages are equal when they say the same, whatever their id and time."""

    # Errors do not show invalid values, which may be secrets.
    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Frozen) and type(self) is type(other) and self._content() == other._content()

    def __hash__(self) -> int:
        return hash(self._content())

    def _content(self) -> tuple[object, ...]:
        return tuple([value for name, value in self if name not in _OF_ONE_MESSAGE])


class Request(_Frozen):
    """A request to an upstream.

    - `path` begins with one slash and stays below the address of the client, so that a key is not sent elsewhere: it
      has no `.` or `..` between slashes, also when they are encoded.
    - `amounts` are acquired from a limit set, by key; calls and permits need not be named.
    - `timeout_seconds` is for one response, `wait_seconds` for the wait before it is sent (None: not bounded).
    - `repeatable`: the upstream may receive it twice; by default that depends on the method.
    - `request_id` names it in logs, and its response has the same; it is not sent. `timestamp` is when it was made.
    """

    method: Literal["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"] = "GET"
    path: Annotated[str, AfterValidator(_checked_path)]
    params: Pairs = ()
    headers: HeaderItems = Field(default=(), repr=False)
    content: bytes = Field(default=b"", repr=False)
    amounts: RequestAmounts = ()
    timeout_seconds: Seconds = 30.0
    wait_seconds: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = 60.0
    repeatable: bool | None = None
    request_id: Annotated[str, Field(min_length=1, max_length=200, default_factory=_new_id)]
    timestamp: Annotated[datetime, Field(default_factory=_now)]

    if TYPE_CHECKING:  # a mapping may be passed where the field is a tuple

        def __init__(
            self,
            *,
            path: str,
            method: Literal["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"] = "GET",
            params: PassedPairs = (),
            headers: PassedPairs = (),
            content: bytes = b"",
            amounts: Mapping[str, int | float] | tuple[tuple[str, int | float], ...] = (),
            timeout_seconds: float = 30.0,
            wait_seconds: float | None = 60.0,
            repeatable: bool | None = None,
            request_id: str = ...,
            timestamp: datetime = ...,
        ) -> None: ...

    @classmethod
    def with_json(cls, path: str, value: object, *, method: str = "POST", **fields: Any) -> Self:
        """Return a request whose content is `value` as JSON."""
        headers = {"Content-Type": "application/json"} | dict(fields.pop("headers", {}))
        return cls.model_validate(
            {"method": method, "path": path, "content": json.dumps(value).encode(), "headers": headers, **fields}
        )

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:  # noqa: ARG002
        """Return a copy with other fields, which are validated."""
        return self.model_validate(dict(self) | dict(update or {}))

    @property
    def may_repeat(self) -> bool:
        """Whether the upstream may receive it twice."""
        return self.method in _REPEATABLE if self.repeatable is None else self.repeatable


class Response(_Frozen):
    """A response of an upstream, whatever its status; `seconds` is how long it took.

    `request_id` is that of the request, and `timestamp` is when it was received.
    """

    status: int
    headers: Pairs = Field(default=(), repr=False)
    content: bytes = Field(default=b"", repr=False)
    upstream: str = ""
    seconds: float = 0.0
    cached: bool = False
    request_id: str = ""
    timestamp: Annotated[datetime, Field(default_factory=_now)]

    if TYPE_CHECKING:

        def __init__(
            self,
            *,
            status: int,
            headers: PassedPairs = (),
            content: bytes = b"",
            upstream: str = "",
            seconds: float = 0.0,
            cached: bool = False,
            request_id: str = "",
            timestamp: datetime = ...,
        ) -> None: ...

    @property
    def ok(self) -> bool:
        """Whether the status is a success."""
        return 200 <= self.status < 300

    @property
    def refused(self) -> bool:
        """Whether the upstream rejected the request because of a limit, without processing it."""
        return self.status == 429

    @property
    def failed(self) -> bool:
        """Whether the status is an error of the upstream."""
        return self.status >= 500

    def header(self, name: str) -> str | None:
        """Return the value of a header; several of the same name are joined by commas."""
        values = [value for key, value in self.headers if key.lower() == name.lower()]
        return ", ".join(values) if values else None
