"""How many tokens a request will take, as far as one can know before."""

from __future__ import annotations

import math

__all__ = ["estimated_tokens"]

_LETTERS_PER_TOKEN = 4


def estimated_tokens(prompt: str, max_tokens: int) -> int:
    """The prompt, at four letters a token, and the longest answer that was allowed."""
    return math.ceil(len(prompt) / _LETTERS_PER_TOKEN) + max_tokens
