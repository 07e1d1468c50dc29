"""The gateway: estimate, acquire, call, report."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass

from limits_app import LimitPool, LimitSet, RateLimit, limits
from project.gateway.tokens import estimated_tokens

__all__ = ["RESOURCE", "Answer", "Gateway", "regions"]

RESOURCE = "llm"
_SECONDS = 10


def regions(capacities: Mapping[str, int]) -> LimitPool:
    """Two or more regions, each with tokens per hour of its own; the emptiest one is asked first."""
    sets = [
        LimitSet([RateLimit.per_hour("tokens", capacity)], shared=True, mode="thread", config={"region": region})
        for region, capacity in capacities.items()
    ]
    return LimitPool(sets, "least_loaded")


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back: the words, from which region, and what it cost."""

    text: str
    region: str
    estimated: int
    used: int


class Gateway:
    """Asks the model for tenants, each within its own limit of `tokens` and within what the regions have left."""

    def __init__(self, addresses: Mapping[str, str], pool: LimitPool) -> None:
        self._addresses = addresses
        self._pool = pool

    def ask(self, tenant: str, prompt: str, max_tokens: int) -> Answer:
        """Give the answer, or raise LimitExceeded: then nothing was charged to anybody.

        Both are charged what the answer may cost, and get back what it did not.
        """
        estimate = {"tokens": estimated_tokens(prompt, max_tokens)}
        with limits.acquire(RESOURCE, entity=f"tenant:{tenant}", requested=estimate) as own:
            with self._pool.acquire(estimate, timeout=0) as share:
                region = str(share.config["region"])
                words, used = _read(self._addresses[region], prompt, max_tokens)
                share.update({"tokens": used})
            own.update({"tokens": used})
        return Answer(" ".join(words), region, estimate["tokens"], used)


def _read(address: str, prompt: str, max_tokens: int) -> tuple[list[str], int]:
    """Read a stream to its end: the words and the usage."""
    words, used = [], 0
    for line in _stream(address, {"prompt": prompt, "max_tokens": max_tokens}):
        if "word" in line:
            words.append(str(line["word"]))
        else:
            used = int(str(line["usage"]))
    return words, used


def _stream(address: str, asked: Mapping[str, object]) -> Iterator[Mapping[str, object]]:
    with closing(urllib.request.urlopen(address, json.dumps(asked).encode(), _SECONDS)) as response:
        for line in response:
            yield json.loads(line)
