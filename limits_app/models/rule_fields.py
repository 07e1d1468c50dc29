"""What the text fields of URL rules mean: parts of a request, statuses of responses, costs, and times of blocks."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from http import HTTPStatus
from typing import Final, NamedTuple

from django.core.exceptions import ValidationError
from django.utils.translation import gettext as _

from limits_app.engine import DAY, parse_seconds, shown
from limits_app.engine.errors import InvalidLimit

ERRORS: Final = "errors"
"""All responses from 400 on."""
HEADER_COST: Final = "header:"
"""What a cost begins with that is in a header of the response."""
ADDRESS_PART: Final = "ip"
PART_KINDS: Final = ("header", "cookie", "query", "form", "path")
CHOSEN_BY_CLIENT: Final = frozenset({"header", "cookie", "query", "form"})
"""The kinds of parts of which a client can send any value, and get the same response."""
_MOST_PARTS: Final = 5
_PART: Final = re.compile(r"([a-z]+):([^\s:][^\r\n:]{0,99})")
_STATUS: Final = re.compile(r"[1-5](?:[0-9]{2}|xx)")
_FUNCTION: Final = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+", re.ASCII)
_HEADER_NAME: Final = re.compile(r"[A-Za-z0-9-]{1,100}")
_LONGEST_BLOCK: Final = 366 * DAY


class CountedPart(NamedTuple):
    """A part of a request whose values have their own counters; an address has no name."""

    kind: str
    name: str = ""

    @property
    def is_chosen(self) -> bool:
        """Whether a client can send any value."""
        return self.kind in CHOSEN_BY_CLIENT


class CountedStatuses(NamedTuple):
    """The statuses of the responses that a rule counts: single ones, and hundreds such as 4 for 4xx."""

    single: frozenset[int]
    hundreds: frozenset[int]

    def have(self, status: int) -> bool:
        """Whether a response with a status counts."""
        return status in self.single or status // 100 in self.hundreds


@lru_cache(maxsize=1024)
def parts_of(text: str) -> tuple[CountedPart, ...]:
    """Read parts, one per line; a ValidationError for invalid ones."""
    parts = tuple(dict.fromkeys(map(_part, filter(None, map(str.strip, text.splitlines())))))
    if len(parts) > _MOST_PARTS:
        raise ValidationError(_("A rule combines at most %(most)s parts of a request.") % {"most": _MOST_PARTS})
    return parts


def _part(line: str) -> CountedPart:
    if line == ADDRESS_PART:
        return CountedPart(ADDRESS_PART)
    match = _PART.fullmatch(line)
    if match is None or match[1] not in PART_KINDS or (match[1] == "header" and not _HEADER_NAME.fullmatch(match[2])):
        kinds = ", ".join([ADDRESS_PART, *[f"{kind}:NAME" for kind in PART_KINDS]])
        raise ValidationError(
            _("%(line)s is not a part of a request: use %(kinds)s, one per line."),
            params={"line": shown(line), "kinds": kinds},
        )
    return CountedPart(match[1], match[2])


@lru_cache(maxsize=1024)
def statuses_of(text: str) -> CountedStatuses | None:
    """Read statuses such as `401,403`, `4xx` or `errors`; None for an empty text, which means all responses."""
    words = [*_words(text)]
    if not words:
        return None
    single, hundreds = set[int](), set[int]()
    for word in words:
        if word == ERRORS:
            hundreds |= {4, 5}
        elif _STATUS.fullmatch(word) is None:
            raise ValidationError(
                _("%(word)s is not a status: use numbers such as 401, “4xx”, or “errors” for 4xx and 5xx."),
                params={"word": shown(word)},
            )
        elif word.endswith("xx"):
            hundreds.add(int(word[0]))
        else:
            single.add(int(word))
    return CountedStatuses(frozenset(single), frozenset(hundreds))


def _words(text: str) -> Iterator[str]:
    return filter(None, (word.strip().lower() for word in text.split(",")))


def seconds_of_block(text: str) -> float:
    """Read how long a rule blocks, such as `10m`, in seconds; 0 for an empty text, which means not at all."""
    if not text:
        return 0
    try:
        seconds = parse_seconds(text)
    except InvalidLimit as error:
        raise ValidationError(str(error)) from error
    if not 1 <= seconds <= _LONGEST_BLOCK:
        raise ValidationError(_("A block lasts between one second and 366 days, such as “10m”."))
    return seconds


def validate_parts(text: str) -> None:
    """Reject lines that are no part of a request."""
    parts_of(text)


def validate_statuses(text: str) -> None:
    """Reject text other than a list of statuses."""
    statuses_of(text)


def validate_block(text: str) -> None:
    """Reject text other than the time of a block."""
    seconds_of_block(text)


def validate_cost(text: str) -> None:
    """Reject text that is neither a header nor the path of a function."""
    is_header = text.startswith(HEADER_COST) and _HEADER_NAME.fullmatch(text.removeprefix(HEADER_COST))
    if text and not is_header and not _FUNCTION.fullmatch(text):
        raise ValidationError(
            _(
                "%(text)s is not a cost: use a header of the response such as “header:X-Cost”, or the path of a "
                "function such as “shop.costs.of_report”."
            ),
            params={"text": shown(text)},
        )


def validate_error_status(status: int) -> None:
    """Reject a status other than that of an error."""
    if status < HTTPStatus.BAD_REQUEST or status not in {*HTTPStatus}:
        raise ValidationError(_("The status of a rejection must be an error such as 429 or 403."))
