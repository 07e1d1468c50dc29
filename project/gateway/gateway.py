"""The gateway: estimate, acquire, call, report."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal

from limits_app import RateLimit, limits
from limits_app.models import Limit, Pool, PoolMember, Price, Resource
from project.gateway.tokens import estimated_tokens

__all__ = ["POOL", "RESOURCE", "Answer", "Gateway", "set_budget", "set_price", "set_regions"]

RESOURCE = "llm"
POOL = "llm/regions"
_SECONDS = 10
_COOL_DOWN_SECONDS = 30


def set_regions(capacities: Mapping[str, int]) -> None:
    """Set up a pool of regions, each with a limit of tokens per hour; the least loaded region is used first.

    Administrators can do the same in the admin.
    """
    pool, _ = Pool.objects.update_or_create(name=POOL, defaults={"load_balancing": "least_loaded"})
    PoolMember.objects.filter(pool=pool).delete()
    for order, (region, capacity) in enumerate(capacities.items()):
        member = PoolMember.objects.create(pool=pool, name=region, order=order)
        Limit.from_definition(member, RateLimit.per_hour("tokens", capacity)).save()
    Resource.objects.update_or_create(name=RESOURCE, defaults={"pool": pool})


def set_price(per_1000: Decimal) -> None:
    """Set the price of 1,000 tokens in US dollars, from the current hour on."""
    hour = datetime.now(UTC).replace(minute=0, second=0, microsecond=0)
    Price.objects.create(resource=RESOURCE, unit="tokens", amount=per_1000, per=1000, currency="usd", valid_from=hour)


def set_budget(team: str, budget: str, keys: Mapping[str, str]) -> None:
    """Set the budget of a team in US dollars a month, and those of its keys, whose requests are charged to both."""
    limits.set_entity_limits(team, [f"usd={budget}/month"], resource=RESOURCE)
    for key, budget_of_key in keys.items():
        limits.set_entity(key, parent=team, cascade=True)
        limits.set_entity_limits(key, [f"usd={budget_of_key}/month"], resource=RESOURCE)


@dataclass(frozen=True, slots=True)
class Answer:
    """A response: its text, its region, and the estimated and used tokens."""

    text: str
    region: str
    estimated: int
    used: int


class Gateway:
    """Calls the model for clients, within the limits of the client, of its team, and of a region.

    `addresses` are the URLs of the regions, by their names in the pool.
    """

    def __init__(self, addresses: Mapping[str, str]) -> None:
        self._addresses = addresses

    def ask(self, client: str, prompt: str, max_tokens: int) -> Answer:
        """Return the response, or raise LimitExceeded, which charges nothing.

        The estimate is charged to the client, its team and the region in one step, and the unused part is refunded.
        A region that fails is not used for 30 seconds.
        """
        estimate = {"tokens": estimated_tokens(prompt, max_tokens)}
        with limits.acquire(RESOURCE, entity=client, requested=estimate) as acquisition:
            region = str(acquisition.config["member"])
            try:
                words, used = _read(self._addresses[region], prompt, max_tokens)
            except OSError:
                limits.pool(POOL).cool_down(region, _COOL_DOWN_SECONDS)
                raise
            acquisition.update({"tokens": used})
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
