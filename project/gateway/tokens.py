"""Estimates the tokens of a request."""

from __future__ import annotations

import math

__all__ = ["estimated_tokens"]

_LETTERS_PER_TOKEN = 4


def estimated_tokens(prompt: str, max_tokens: int) -> int:
    """Return the tokens of the prompt, at four letters a token, plus `max_tokens`."""
    return math.ceil(len(prompt) / _LETTERS_PER_TOKEN) + max_tokens
