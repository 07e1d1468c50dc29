"""Counts of the decisions of candidates and of policies in shadow mode, for all processes.

Each process counts, and a background thread adds its counts to one row for each hour, policy, candidate and limit.
Of a promoted candidate it also counts by entity: one entity with many requests must not decide whether it is reverted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from django.db import router, transaction
from django.db.models import Count, Q, Sum

from limits_app import conf
from limits_app.engine import HOUR, short_key
from limits_app.models import EvaluatedEntity, EvaluationCount, EvaluationKind
from limits_app.models.usage import ADD, upsert
from limits_app.usage.reading import since_1970
from limits_app.usage.writer import BackgroundWriter, Origin

_MOST_ENTITIES: Final = 1_000
"""How many entities of a candidate a process counts, so that its memory and the table are bounded."""


class Evaluation(NamedTuple):
    """A limit of a policy in an hour; an empty key is for all its limits. `hour` is in hours since 1970."""

    hour: int
    policy_id: int
    candidate_id: int
    kind: EvaluationKind
    key: str


class EntityOfCandidate(NamedTuple):
    """An entity, as a digest, whose requests a promoted candidate evaluates."""

    candidate_id: int
    entity: str


class Decisions(NamedTuple):
    """Number of requests that a limit evaluated, and of those that it rejected or would have rejected."""

    evaluated: int
    rejected: int


class Evaluations(BackgroundWriter[Evaluation | EntityOfCandidate, Decisions]):
    """The counts of this process; as many as there are policies with candidates or in shadow mode, by hour and key."""

    what = "counts of candidates"
    model = EvaluationCount

    def after_fork(self) -> None:
        """See `BackgroundWriter.after_fork`."""
        super().after_fork()
        self._decided: Counter[tuple[int, str, bool]] = Counter()
        self._entities: dict[tuple[Origin, int], set[str]] = {}

    def decided(self) -> Mapping[tuple[int, str, bool], int]:
        """The requests that this process has decided, by policy, kind, and whether they were or would be rejected."""
        with self._lock:
            return self._decided.copy()

    def note(
        self, decided: Iterable[tuple[tuple[int, int, EvaluationKind], str, bool]], entity: str | None = None
    ) -> None:
        """Count the decision on one request of an entity (None: the site itself).

        `decided` has for each limit its policy, candidate and kind, key, and whether it rejects.
        """
        if not conf.get(conf.USAGE):
            return
        hour, origin = int(self.now() // HOUR), self._origin()
        counts: dict[Evaluation, Decisions] = {}
        for policy, key, rejected in decided:
            for evaluation in (Evaluation(hour, *policy, key), Evaluation(hour, *policy, "")):
                before = counts.get(evaluation)
                counts[evaluation] = Decisions(1, int(rejected or (before is not None and before.rejected > 0)))
        with self._lock:
            for evaluation, new in counts.items():
                self._keep(origin, evaluation, new)
            self._keep_entity(origin, counts, entity)
            self._decided.update(
                (evaluation.policy_id, evaluation.kind, n.rejected > 0)
                for evaluation, n in counts.items()
                if not evaluation.key
            )
        self._schedule_writing(origin)

    def _keep_entity(self, origin: Origin, counts: Mapping[Evaluation, Decisions], entity: str | None) -> None:
        """Count the decision of each promoted candidate for the entity; the caller holds `_lock`."""
        for evaluation, decisions in counts.items():
            if evaluation.kind == EvaluationKind.PROMOTED and not evaluation.key:
                counted, digest = self._entities.setdefault((origin, evaluation.candidate_id), set()), digest_of(entity)
                if digest in counted or len(counted) < _MOST_ENTITIES:
                    counted.add(digest)
                    self._keep(origin, EntityOfCandidate(evaluation.candidate_id, digest), decisions)

    def _write(self, taken: Mapping[Evaluation | EntityOfCandidate, Decisions], using: str) -> int:
        evaluated, entities, requests = [], [], 0
        for evaluation, decisions in taken.items():
            if isinstance(evaluation, EntityOfCandidate):
                entities.append({**evaluation._asdict(), **decisions._asdict()})
            else:
                evaluated.append(
                    {**evaluation._asdict(), "hour": since_1970(hours=evaluation.hour), **decisions._asdict()}
                )
                requests += 0 if evaluation.key else decisions.evaluated
        with transaction.atomic(using=using):
            for model, rows in ((EvaluationCount, evaluated), (EvaluatedEntity, entities)):
                upsert(model, rows, {"evaluated": ADD, "rejected": ADD}, using=using)
        return requests

    def _keep(self, origin: Origin, key: Evaluation | EntityOfCandidate, value: Decisions) -> None:
        kept = self._kept[origin]
        old = kept.get(key, Decisions(0, 0))
        kept[key] = Decisions(old.evaluated + value.evaluated, old.rejected + value.rejected)


def digest_of(entity: str | None) -> str:
    """The digest by which an entity is counted."""
    return short_key(entity or "").hex()


def entities(candidate_ids: Iterable[int]) -> dict[int, Decisions]:
    """How many entities promoted candidates have evaluated, and of how many they rejected requests, as was written."""
    rows = EvaluatedEntity.objects.using(router.db_for_write(EvaluatedEntity)).filter(candidate_id__in=candidate_ids)
    rejected = Count("pk", filter=Q(rejected__gt=0))
    sums = rows.order_by().values_list("candidate_id").annotate(known=Count("pk"), rejecting=rejected)
    return {candidate_id: Decisions(*numbers) for candidate_id, *numbers in sums}


def totals(candidate_ids: Iterable[int]) -> dict[tuple[int, str], dict[str, tuple[int, int]]]:
    """What was written of candidates: evaluated and rejected requests by key, by candidate and kind."""
    rows = EvaluationCount.objects.using(router.db_for_write(EvaluationCount)).filter(candidate_id__in=candidate_ids)
    sums = rows.order_by().values_list("candidate_id", "kind", "key").annotate(Sum("evaluated"), Sum("rejected"))
    by_candidate: dict[tuple[int, str], dict[str, tuple[int, int]]] = {}
    for candidate_id, kind, key, evaluated, rejected in sums.order_by("key"):
        by_candidate.setdefault((candidate_id, kind), {})[key] = evaluated, rejected
    return by_candidate


evaluations: Final = Evaluations()
"""The counter of this process."""
