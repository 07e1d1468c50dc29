"""Counts of the decisions of candidates and of policies in shadow mode, for all processes.

Each process counts, and a background thread adds its counts to one row for each hour, policy, candidate and limit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from django.db import router, transaction
from django.db.models import Sum

from limits_app import conf
from limits_app.models import EvaluationCount, EvaluationKind
from limits_app.models.usage import ADD, upsert
from limits_app.usage.reading import since_1970
from limits_app.usage.writer import BackgroundWriter

_HOUR: Final = 3_600


class Evaluation(NamedTuple):
    """A limit of a policy in an hour; an empty key is for all its limits. `hour` is in hours since 1970."""

    hour: int
    policy_id: int
    candidate_id: int
    kind: EvaluationKind
    key: str


class Decisions(NamedTuple):
    """Number of requests that a limit evaluated, and of those that it rejected or would have rejected."""

    evaluated: int
    rejected: int


class Evaluations(BackgroundWriter[Evaluation, Decisions]):
    """The counts of this process; as many as there are policies with candidates or in shadow mode, by hour and key."""

    what = "counts of candidates"
    model = EvaluationCount

    def after_fork(self) -> None:
        """See `BackgroundWriter.after_fork`."""
        super().after_fork()
        self._decided: Counter[tuple[int, str, bool]] = Counter()

    def decided(self) -> Mapping[tuple[int, str, bool], int]:
        """The requests that this process has decided, by policy, kind, and whether they were or would be rejected."""
        with self._lock:
            return self._decided.copy()

    def note(self, decided: Iterable[tuple[tuple[int, int, EvaluationKind], str, bool]]) -> None:
        """Count the decision on one request: for each limit its policy, candidate and kind, key, and rejection."""
        if not conf.get(conf.USAGE):
            return
        hour = int(self.now() // _HOUR)
        counts: dict[Evaluation, Decisions] = {}
        for policy, key, rejected in decided:
            for one in (Evaluation(hour, *policy, key), Evaluation(hour, *policy, "")):
                before = counts.get(one)
                counts[one] = Decisions(1, int(rejected or (before is not None and before.rejected > 0)))
        with self._lock:
            for place, new in counts.items():
                self._keep(place, new)
            self._decided.update((one.policy_id, one.kind, n.rejected > 0) for one, n in counts.items() if not one.key)
        self._schedule_writing()

    def _write(self, taken: Mapping[Evaluation, Decisions], using: str) -> int:
        rows = [
            {**place._asdict(), "hour": since_1970(hours=place.hour), **decisions._asdict()}
            for place, decisions in taken.items()
        ]
        with transaction.atomic(using=using):
            upsert(EvaluationCount, rows, {"evaluated": ADD, "rejected": ADD}, using=using)
        return sum(one.evaluated for place, one in taken.items() if not place.key)

    def _keep(self, key: Evaluation, value: Decisions) -> None:
        old = self._kept.get(key, Decisions(0, 0))
        self._kept[key] = Decisions(old.evaluated + value.evaluated, old.rejected + value.rejected)


def totals(candidate_ids: Iterable[int]) -> dict[tuple[int, str], dict[str, tuple[int, int]]]:
    """What was written of candidates: evaluated and rejected requests by key, by candidate and kind."""
    rows = EvaluationCount.objects.using(router.db_for_write(EvaluationCount)).filter(candidate_id__in=candidate_ids)
    sums = rows.order_by().values_list("candidate_id", "kind", "key").annotate(Sum("evaluated"), Sum("rejected"))
    found: dict[tuple[int, str], dict[str, tuple[int, int]]] = {}
    for candidate_id, kind, key, evaluated, rejected in sums.order_by("key"):
        found.setdefault((candidate_id, kind), {})[key] = evaluated, rejected
    return found


evaluations: Final = Evaluations()
"""The counter of this process."""
