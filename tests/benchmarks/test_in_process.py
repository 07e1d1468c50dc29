"""The references and the processes of the in-process rows do what they say."""

from __future__ import annotations

import sys
from types import FrameType

from benchmarks.compiled import SUBJECTS, measuring
from benchmarks.harness import Effort
from benchmarks.references import REF, ref
from benchmarks.site import ROOT


def test_the_reference_is_one_call() -> None:
    once, calls = ref().once, list[str]()

    def note(_frame: FrameType, event: str, _argument: object) -> None:
        if event == "call":
            calls.append(event)

    sys.setprofile(note)
    try:
        once()
    finally:
        sys.setprofile(None)
    assert len(calls) == 1


def test_a_process_measures_all_of_its_contenders_in_each_round() -> None:
    with measuring(ROOT, Effort(turn_seconds=0.001), compiled=False) as measure:
        rounds = [measure(), measure()]
    for figures in rounds:
        assert set(figures) == {REF, *SUBJECTS}
        assert min(figures.values()) > 0
