"""Limits as text, such as `tpm=400k/min`, parsed and written.

```
limits   =  limit, with spaces, "," or ";" between several
limit    =  KEY "=" AMOUNT                              permits held at the same time
         |  [KEY "="] AMOUNT "/" WINDOW                 a rate; without a key, or with "calls", a call limit
         |  KEY "=" AMOUNT "/" PERIOD ["@" ZONE]        a quota per period of a calendar, or of billing with "from="
         |  KEY "=" AMOUNT "/" WINDOW ":session"        a quota per session
         |  CURRENCY "=" AMOUNT "/" PERIOD ["@" ZONE]   a quota in money; with ":rate" and a window, a rate
            followed by any number of ":" OPTION
AMOUNT   =  digits, with up to three decimals (money: six), and "k", "M" or "G"; or with commas between thousands
WINDOW   =  [number] ("ms" | "s" | "min" | "h" | "d")
PERIOD   =  "week" | "month", with a zone or a start also "day", and with a zone "hour"
OPTION   =  an algorithm | "burst=" AMOUNT | "hold=" WINDOW | "from=" START | "soft" | "shared" | "rate" | "permits"
         |  "keep=" CLASS ":" PERCENT "%", with "," between several
START    =  a day of the month | a weekday | a time such as "6h" | a day "+" a time | "client"
```
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple, assert_never

from limits_app.engine.amounts import MICRO, MULTIPLES, Amount, currency_like, is_currency, micro_of, shown, to_milli
from limits_app.engine.clock import DEFAULT_ZONE
from limits_app.engine.errors import InvalidLimit, UnknownTimeZone
from limits_app.engine.limit_checks import check_case, check_differ, parse_amount, parse_seconds
from limits_app.engine.limit_kinds import CALL_KEYS, CALLS
from limits_app.engine.limits import (
    CallLimit,
    LimitDefinition,
    QuotaLimit,
    RateLimit,
    RateLimitAlgorithm,
    ResourceLimit,
)
from limits_app.engine.periods import UNITS, QuotaPeriod
from limits_app.engine.priorities import keep_text, parse_keep

_LONGEST: Final = 256
_EXAMPLES: Final = "'5/min', 'rpm=1000/10s:gcra', 'budget=5M/month@Europe/Berlin' or 'connections=10'"
_LONGEST_OF_ALL: Final = 4096
_WITHOUT_KEY: Final = re.compile(r"[ 0-9.,]+[kMG]? */", re.ASCII)
_AROUND_SIGNS: Final = re.compile(r"\s*([=/@:])\s*")
_SHARE: Final = r"[A-Za-z][A-Za-z0-9_-]*:[0-9.]+\s*%"
_BETWEEN: Final = re.compile(rf"[;\s]+|,(?!{_SHARE})(?=\s|[A-Za-z])")
"""What separates several limits; a comma may also be part of a number, and separates shares that are kept free."""
_IN_KEEP: Final = re.compile(rf"\s*%(?:\s*(,)\s*(?={_SHARE}))?")
"""The spaces around the signs of shares."""
_LEAST_MULTIPLE: Final = 10_000 * MICRO
"""1000 is easier to read than 1k, and 400k than 400000."""

_ONLY_PERIODS: Final = (QuotaPeriod.WEEK, QuotaPeriod.MONTH)
_ALGORITHMS: Final = tuple(map(str, RateLimitAlgorithm))
_KEEPS: Final = "keep"
_RATES: Final = (*_ALGORITHMS, "burst", "soft", "shared", _KEEPS)
_KINDS: Final[Mapping[str, tuple[str, tuple[str, ...]]]] = {
    "permits": ("permits, which have no window", ("hold", "shared", "permits", _KEEPS)),
    "quota": ("a quota per period", ("from", "soft", "shared", _KEEPS)),
    "session": ("a quota per session", ("soft", "shared", "session", _KEEPS)),
    "calls": ("calls", _RATES),
    "rate": ("a rate", (*_RATES, "rate")),
}
"""What each kind of limit is called in errors, and the options that go with it."""
_OPTIONS: Final = tuple(dict.fromkeys(option for _, options in _KINDS.values() for option in options))
_START: Final = "from"
_WITH_VALUE: Final = ("burst", "hold", _START, _KEEPS)


class Noted(NamedTuple):
    """What a text says: a limit, and whether there is one for all instead of one for each entity."""

    limit: LimitDefinition
    shared: bool = False


def parse_limit(text: str, *, is_money: bool | None = None) -> Noted:
    """Read a limit as it is written by `limit_text` and by people; InvalidLimit names the error.

    `is_money` says whether its amounts are money; by default, whether its key is a currency.
    """
    if not isinstance(text, str) or len(text) > _LONGEST:
        raise InvalidLimit(f"limit {shown(text)} must be text of at most {_LONGEST} characters, such as {_EXAMPLES}")
    if _WITHOUT_KEY.match(text):
        text = f"{CALLS}={text}"
    key, equals, rest = map(str.strip, text.partition("="))
    body, *words = _words(rest)
    body, at, zone = map(str.strip, body.partition("@"))
    amount, per, window = map(str.strip, body.partition("/"))
    if not (key and equals and amount) or bool(per) is not bool(window) or bool(at) is not bool(zone):
        raise InvalidLimit(f"limit {shown(text)} must look like {_EXAMPLES}")
    try:
        options = _options(words)
        if is_money is None:
            check_case(key)
            is_money = is_currency(key)
        limit = _limit(key, parse_amount(amount), window=window, zone=zone, options=options, is_money=is_money)
        check_shared(limit, shared="shared" in options)
    except InvalidLimit as error:
        raise type(error)(f"{text!r}: {error}") from None
    return Noted(limit, "shared" in options)


def check_shared(limit: LimitDefinition, *, shared: bool) -> None:
    """Raise InvalidLimit for a limit that all entities share although its periods begin with each of them."""
    if shared and isinstance(limit, QuotaLimit) and limit.starts_with_client:
        raise InvalidLimit(
            f"limit {limit.key!r}: starts cannot be client for a limit that is shared, since all clients have the same "
            "periods: use a day such as from=15, or leave it out"
        )


def parse_body(key: str, text: str, *, is_money: bool | None = None) -> LimitDefinition:
    """Read what `limit_body` writes of the limit with a key; see `parse_limit`."""
    noted = parse_limit(f"{key}={text}", is_money=is_money)
    if noted.shared:
        raise InvalidLimit(f"{text!r}: a limit is shared by its own field; leave `shared` out")
    if noted.limit.key != key or (key == CallLimit.key) is not isinstance(noted.limit, CallLimit):
        raise InvalidLimit(f"limit {shown(key)} cannot be {text!r}: the key {CallLimit.key} is reserved for requests")
    return noted.limit


def parse_stored(key: str, text: str) -> tuple[LimitDefinition, InvalidLimit | None]:
    """Read the limit of a row, and return its error where it is valid only for other currencies.

    Money that is no currency now stays money, and units stay units: a changed setting switches no limit off.
    Raises InvalidLimit for a text that is valid neither way.
    """
    try:
        return parse_body(key, text), None
    except UnknownTimeZone:
        raise
    except InvalidLimit as error:
        try:
            return parse_body(key, text, is_money=not (is_currency(key) or currency_like(key))), error
        except InvalidLimit:
            raise error from None


def parse_limits(text: str) -> tuple[Noted, ...]:
    """Read several limits, such as `"100/min tokens=1M/day"`; InvalidLimit names the error."""
    if not isinstance(text, str) or len(text) > _LONGEST_OF_ALL:
        raise InvalidLimit(f"limits {shown(text)} must be text of at most {_LONGEST_OF_ALL} characters")
    signs = _IN_KEEP.sub(r"%\1", _AROUND_SIGNS.sub(r"\1", text))
    limits = [word for word in _BETWEEN.split(signs) if word]
    if not limits:
        raise InvalidLimit(f"limits {shown(text)} must be at least one, such as {_EXAMPLES}")
    return tuple([parse_limit(word) for word in limits])


def checked_limits(limits: Iterable[object], example: str = "LimitSet([limit])") -> tuple[LimitDefinition, ...]:
    """Return definitions as a tuple; they are given as limits, as texts of one or several limits, or as one text.

    InvalidLimit names a value that is not a limit, or a repeated key.
    """
    if isinstance(limits, LimitDefinition) or not isinstance(limits, Iterable):
        raise InvalidLimit(f"limits must be several, as in {example}, not {shown(limits)}")
    checked: list[LimitDefinition] = []
    for limit in [limits] if isinstance(limits, str) else limits:
        if isinstance(limit, str):
            checked += map(_unshared, parse_limits(limit))
        elif isinstance(limit, LimitDefinition):
            checked.append(limit)
        else:
            raise InvalidLimit(f"{shown(limit)} is not a limit: use RateLimit, CallLimit, QuotaLimit or ResourceLimit")
    check_differ([limit.key for limit in checked])
    return tuple(checked)


def _unshared(noted: Noted) -> LimitDefinition:
    if noted.shared:
        raise InvalidLimit(f"{limit_text(noted.limit)!r}: only limits of a policy can be shared; leave `shared` out")
    return noted.limit


def limit_text(limit: LimitDefinition, *, shared: bool = False) -> str:
    """Write a limit so that `parse_limit` reads the same one."""
    match limit:
        case ResourceLimit(key=key, capacity=capacity, max_hold_seconds=hold):
            hold_option = "" if hold is None else f"hold={seconds_text(hold)}"
            words = [amount_text(capacity), _if(key in CALL_KEYS, "permits"), hold_option]
        case QuotaLimit(key=key, capacity=capacity, period=str(period), time_zone=zone, starts=starts):
            words = [f"{amount_text(capacity)}/{period}@{zone}", _if(bool(starts), f"{_START}={starts}")]
        case QuotaLimit(key=key, capacity=capacity, session_seconds=session):
            words = [f"{amount_text(capacity)}/{_window(session or 0)}", "session"]
        case CallLimit():
            key, words = CALLS, _rate_words(limit)
        case RateLimit(key=key):
            words = [*_rate_words(limit), _if(key in CALL_KEYS or limit.is_money is True, "rate")]
        case _:
            assert_never(limit)
    words += [
        _if(limit.soft, "soft"),
        _if(shared, "shared"),
        _if(bool(limit.keep), f"{_KEEPS}={keep_text(limit.keep)}"),
    ]
    return f"{key}=" + ":".join(filter(None, words))


def limit_body(limit: LimitDefinition) -> str:
    """Write a limit without its key, such as `400k/min:gcra`, so that `parse_body` reads the same one."""
    return limit_text(limit).partition("=")[2]


def without_zone(text: str) -> tuple[str, str]:
    """Return the text of a limit with the default time zone, and the name of the time zone that it had, or ""."""
    head, at, rest = text.partition("@")
    zone, colon, options = rest.partition(":")
    return (f"{head}@{DEFAULT_ZONE}{colon}{options}" if at else text), zone.strip()


def seconds_text(seconds: float) -> str:
    """Write seconds, in whole milliseconds, so that `parse_seconds` reads the same."""
    milli = to_milli(seconds, decimals=True)
    unit = next(unit for unit in UNITS if milli % unit.milliseconds == 0)
    return f"{milli // unit.milliseconds}{unit.symbol}"


def _limit(
    key: str, capacity: Amount, *, window: str, zone: str, options: Mapping[str, str], is_money: bool
) -> LimitDefinition:
    """Return the limit of the parsed parts; the definition validates them."""
    kind = _kind(key, window.lower(), zone, options, is_money=is_money)
    name, allowed = _KINDS[kind]
    if strange := [option for option in options if option not in allowed]:
        raise InvalidLimit(f"{strange[0]} does not go with {name}; there are {', '.join(allowed)}")
    soft, keep = "soft" in options, parse_keep(options[_KEEPS]) if _KEEPS in options else ()
    match kind:
        case "permits":
            hold = options.get("hold")
            # The definition validates the capacity.
            return ResourceLimit(key, capacity, hold and parse_seconds(hold), keep=keep, is_money=is_money)  # type: ignore[arg-type]
        case "quota":
            calendar = (window.lower(), zone or DEFAULT_ZONE)
            starts = options.get(_START, "")
            return QuotaLimit(key, capacity, *calendar, soft=soft, starts=starts, keep=keep, is_money=is_money)
        case "session":
            seconds = parse_seconds(window)
            return QuotaLimit(key, capacity, session_seconds=seconds, soft=soft, keep=keep, is_money=is_money)
    algorithms = [option for option in options if option in _ALGORITHMS]
    if len(algorithms) > 1:
        raise InvalidLimit(f"{' and '.join(algorithms)} are two algorithms: choose one")
    algorithm = RateLimitAlgorithm(algorithms[0]) if algorithms else RateLimitAlgorithm.TOKEN_BUCKET
    burst = parse_amount(options["burst"]) if "burst" in options else None
    rate = (capacity, parse_seconds(window), algorithm, burst, soft)
    return CallLimit(*rate, keep=keep) if kind == "calls" else RateLimit(key, *rate, keep=keep, is_money=is_money)


def _kind(key: str, window: str, zone: str, options: Mapping[str, str], *, is_money: bool) -> str:
    if not window:
        if zone:
            raise InvalidLimit("a time zone goes with a period: write 5M/month@Europe/Berlin")
        if key in CALL_KEYS and "permits" not in options:
            raise InvalidLimit(f"missing time window: write {key}=30/10s, or {key}=10:permits for a concurrency limit")
        return "permits"
    is_quota = is_money and not {"rate", "session"}.intersection(options)
    if is_quota and window not in tuple(QuotaPeriod):
        raise InvalidLimit(
            f"money is limited per hour, day, week or month: for a rate, add :rate as in {key}=5/min:rate"
        )
    if zone or is_quota or window in _ONLY_PERIODS or (_START in options and window in tuple(QuotaPeriod)):
        return "quota"
    if "session" in options:
        return "session"
    return "calls" if key in CALL_KEYS and "rate" not in options else "rate"


def _options(words: list[str]) -> dict[str, str]:
    options: dict[str, str] = {}
    for word in words:
        name, equals, value = map(str.strip, word.partition("="))
        name = name.replace("-", "_")
        if name not in _OPTIONS:
            near = difflib.get_close_matches(name, _OPTIONS, n=1)
            advice = f"did you mean {near[0]}?" if near else f"there are {', '.join(_OPTIONS)}"
            raise InvalidLimit(f"{shown(word)} is not an option of a limit; {advice}")
        if (name in _WITH_VALUE) is not bool(value) or bool(equals) is not bool(value):
            raise InvalidLimit(f"write {name}=... with a value" if name in _WITH_VALUE else f"{name} takes no value")
        if name in options:
            raise InvalidLimit(f"option {name!r} is given more than once")
        options[name] = value
    return options


def _words(text: str) -> list[str]:
    """Split a limit at its colons, but for those between a class and its percentage."""
    words: list[str] = []
    for word in map(str.strip, text.split(":")):
        if words and words[-1].startswith(_KEEPS) and "%" in word:
            words[-1] += f":{word}"
        else:
            words.append(word)
    return words


def _rate_words(limit: RateLimit | CallLimit) -> list[str]:
    """Return the common parts of rates and calls; empty parts are left out."""
    return [
        f"{amount_text(limit.capacity)}/{_window(limit.window_seconds)}",
        _if(limit.algorithm is not RateLimitAlgorithm.TOKEN_BUCKET, str(limit.algorithm)),
        "" if limit.burst is None else f"burst={amount_text(limit.burst)}",
    ]


def _if(holds: bool, word: str) -> str:
    return word if holds else ""


def _window(seconds: float) -> str:
    """Seconds as the window of a rate, where one minute is `min`."""
    text = seconds_text(seconds)
    return text[1:] if text[0] == "1" and text[1:].isalpha() else text


def amount_text(amount: Amount) -> str:
    """Write an amount so that `parse_amount` reads the same one."""
    micro = micro_of(amount)
    for suffix, size in MULTIPLES.items():
        if micro >= _LEAST_MULTIPLE and micro % (size * MICRO) == 0:
            return f"{micro // (size * MICRO)}{suffix}"
    whole, rest = divmod(micro, MICRO)
    return f"{whole}.{rest:06}".rstrip("0") if rest else str(whole)
