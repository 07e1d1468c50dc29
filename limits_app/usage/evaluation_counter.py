"""Counts of the decisions of candidates and of policies in shadow mode, for all processes.

Each process counts, and a background thread adds its counts to one row for each hour, policy, candidate and limit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from time import time
from typing import Any, Final, NamedTuple

from django.db import router, transaction
from django.db.models import Sum

from limits_app import conf
from limits_app.core.clock import Clock
from limits_app.models import EvaluationCount, EvaluationKind
from limits_app.models.usage import ADD, upsert
from limits_app.usage.reading import since_1970
from limits_app.usage.writer import BackgroundWriter, is_under_test

__all__ = ["Evaluation", "Evaluations", "evaluations", "totals"]

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


class Evaluations(BackgroundWriter):
    """The counts of this process; as many as there are policies with candidates or in shadow mode, by hour and key."""

    what = "counts of candidates"

    def __init__(
        self,
        *,
        clock: Clock | None = None,
        now: Callable[[], float] = time,
        under_test: Callable[[], bool] = is_under_test,
    ) -> None:
        self._now = now
        super().__init__(clock=clock, under_test=under_test)

    def after_fork(self) -> None:
        """Start empty in a child process, because the parent writes its own counts."""
        super().after_fork()
        self._noted: dict[Evaluation, Decisions] = {}

    def note(self, decided: Iterable[tuple[tuple[int, int, EvaluationKind], str, bool]]) -> None:
        """Count the decision on one request: for each limit its policy, candidate and kind, key, and rejection."""
        if not conf.get(conf.USAGE):
            return
        hour = int(self._now() // _HOUR)
        counts: dict[Evaluation, Decisions] = {}
        for policy, key, rejected in decided:
            for one in (Evaluation(hour, *policy, key), Evaluation(hour, *policy, "")):
                before = counts.get(one)
                counts[one] = Decisions(1, int(rejected or (before is not None and before.rejected > 0)))
        with self._lock:
            is_first = not self._noted
            self._add(counts)
        if is_first:
            self._schedule_writing()

    def flush(self) -> int:
        """Write the counts in one transaction; returns the number of evaluated requests."""
        using = router.db_for_write(EvaluationCount)
        with self._writing:
            with self._lock:
                taken, self._noted = self._noted, {}
            try:
                with transaction.atomic(using=using):
                    upsert(EvaluationCount, list(_rows(taken)), {"evaluated": ADD, "rejected": ADD}, using=using)
            except BaseException:
                with self._lock:
                    self._add(taken)
                raise
        return sum(one.evaluated for place, one in taken.items() if not place.key)

    def clear(self) -> None:
        """Discard counts that are not written."""
        with self._lock:
            self._noted = {}

    def _add(self, counts: Mapping[Evaluation, Decisions]) -> None:
        for place, new in counts.items():
            old = self._noted.get(place, Decisions(0, 0))
            self._noted[place] = Decisions(old.evaluated + new.evaluated, old.rejected + new.rejected)


def _rows(taken: Mapping[Evaluation, Decisions]) -> Iterator[dict[str, Any]]:
    for place, decisions in taken.items():
        yield {**place._asdict(), "hour": since_1970(hours=place.hour), **decisions._asdict()}


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
