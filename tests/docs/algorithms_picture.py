"""`python -m tests.docs.algorithms_picture` draws `docs/pictures/algorithms.svg` from the decisions of the engine."""

from __future__ import annotations

from typing import Final
from xml.sax.saxutils import escape

from limits_app import CallLimit, LimitSet, RateLimitAlgorithm
from limits_app.stores.memory import MemoryStore
from limits_app.testing import FakeClock
from tests.docs.pages import DOCS

__all__ = ["PICTURE", "drawn"]

PICTURE: Final = DOCS / "pictures" / "algorithms.svg"
CAPACITY: Final = 10
WINDOW: Final = 60
REQUESTS: Final = (0, *range(50, 141))
"""The seconds at which a request is made: one, and later one in each second."""
LIMITS: Final = {
    "bucket or GCRA": CallLimit(CAPACITY, WINDOW, algorithm=RateLimitAlgorithm.TOKEN_BUCKET),
    "bucket or GCRA, burst 3": CallLimit(CAPACITY, WINDOW, algorithm=RateLimitAlgorithm.GCRA, burst=3),
    "bucket or GCRA, burst 1": CallLimit(CAPACITY, WINDOW, algorithm=RateLimitAlgorithm.LEAKY_BUCKET, burst=1),
    "fixed window": CallLimit(CAPACITY, WINDOW, algorithm=RateLimitAlgorithm.FIXED_WINDOW),
    "sliding window": CallLimit(CAPACITY, WINDOW, algorithm=RateLimitAlgorithm.SLIDING_WINDOW),
}
_LEFT, _TOP, _ROW, _SECOND = 190, 56, 44, 3.4
_TEXT: Final = (
    "A limit of 10 in 60 seconds under one request, and from the fiftieth second on one request in each second."
)


def allowed(limit: CallLimit) -> list[int]:
    """Return the seconds of the requests that a limit allows."""
    clock = FakeClock()
    limits = LimitSet([limit], store=MemoryStore(clock=clock))
    found, now = [], 0
    for second in REQUESTS:
        clock.advance(second - now)
        now = second
        if limits.try_acquire():
            found.append(second)
    return found


def most_in_a_window(seconds: list[int]) -> int:
    """Return how many were allowed in the window that has most of them."""
    return max(sum(begin <= second < begin + WINDOW for second in seconds) for begin in seconds)


def drawn() -> str:
    """Return the picture: a row for the requests, and one for each algorithm."""
    height = _TOP + _ROW * (len(LIMITS) + 1) + 40
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 800 {height}" role="img" aria-labelledby="t d"'
        ' font-family="system-ui, sans-serif" font-size="13">',
        '  <title id="t">What each algorithm allows</title>',
        f'  <desc id="d">{_TEXT} {_summary()}</desc>',
        f'  <rect width="800" height="{height}" rx="8" fill="#fafafa"/>',
        '  <g fill="#202020"><text x="16" y="28">10 in 60 s</text><text x="690" y="28">most in 60 s</text></g>',
        *_row("requests", list(REQUESTS), 0, "#9e9e9e"),
    ]
    for number, (name, limit) in enumerate(LIMITS.items(), start=1):
        seconds = allowed(limit)
        lines += _row(name, seconds, number, "#00796b")
        lines.append(f'  <text x="730" y="{_base(number) - 6}" fill="#202020">{most_in_a_window(seconds)}</text>')
    lines += [*_axis(height - 22), "</svg>"]
    return "\n".join(lines) + "\n"


def _summary() -> str:
    counts = (f"{name}: {most_in_a_window(allowed(limit))}" for name, limit in LIMITS.items())
    return f"Most in any 60 seconds: {'; '.join(counts)}."


def _base(number: int) -> int:
    return _TOP + _ROW * number + 30


def _x(second: int) -> float:
    return round(_LEFT + second * _SECOND, 1)


def _row(name: str, seconds: list[int], number: int, color: str) -> list[str]:
    base = _base(number)
    marks = "".join(f"M{_x(second)} {base}v-22" for second in seconds)
    return [
        f'  <text x="16" y="{base - 6}" fill="#202020">{escape(name)}</text>',
        f'  <path d="M{_x(0)} {base}H{_x(140)}" stroke="#bdbdbd"/>',
        f'  <path d="{marks}" stroke="{color}" stroke-width="2"/>',
    ]


def _axis(y: int) -> list[str]:
    labels = "".join(f'<text x="{_x(second)}" y="{y}">{second} s</text>' for second in range(0, 141, 20))
    return [f'  <g fill="#202020" text-anchor="middle">{labels}</g>']


if __name__ == "__main__":
    PICTURE.write_text(drawn())
