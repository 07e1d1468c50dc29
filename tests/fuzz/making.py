"""Input that nobody means well with: nearly right texts, any text, and values of any type."""

from __future__ import annotations

from typing import Any, Final

from hypothesis import settings
from hypothesis import strategies as st

__all__ = ["FEW", "MANY", "anything", "nearly"]

MANY: Final = settings(max_examples=150, deadline=None, database=None)
FEW: Final = settings(max_examples=60, deadline=None, database=None)

_SPOILT: Final = ["", "\0", "\n", " ", "-", "--", "/", ":", "=", "@", ";", ",", "%", "'", '"', "9" * 400, "1e999"]
_STRANGE: Final = ["NaN", "inf", "٣", "é", "\ud800", "{", "[", "&a", "*a", "<<", "!!python/object", "\u202e"]


@st.composite
def nearly(draw: st.DrawFn, *right: str) -> str:
    """A text that is right but for some places; sometimes twice over, and sometimes any text at all."""
    if draw(st.integers(0, 9)) == 0:
        return draw(st.text(max_size=80))
    text = draw(st.sampled_from(right))
    for _ in range(draw(st.integers(0, 3))):
        at, to = sorted((draw(st.integers(0, len(text))), draw(st.integers(0, len(text)))))
        put = draw(st.sampled_from([*_SPOILT, *_STRANGE, *right]) | st.text(max_size=3))
        text = text[:at] + put + (text[to:] if draw(st.booleans()) else text[at:])
    return text


def anything() -> st.SearchStrategy[Any]:
    """A value of any type that could come out of JSON, YAML or a settings file."""
    flat = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=40) | st.binary(max_size=8)
    return st.recursive(
        flat,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
        max_leaves=8,
    )
