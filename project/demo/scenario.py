"""The steps of the demo, and the report of their results."""

from __future__ import annotations

from collections import Counter
from time import perf_counter

from project.demo.changing import change_many_times, change_while_flowing
from project.demo.gateway import ask_the_model
from project.demo.killing import kill_a_holder
from project.demo.report import Report
from project.demo.server import WORKERS
from project.demo.stage import say, stage
from project.demo.traffic import crowd
from project.demo.visitors import VISITORS, crowded, requests_of_all

__all__ = ["run", "run_changes"]


def run() -> Report:
    """Run all steps and return the report. Raises DemoFailed if a step cannot be completed."""
    started = perf_counter()
    with stage() as site:
        say("sending simultaneous requests of all visitors")
        responses = crowd(site.address, requests_of_all(site.cookies))
        rows = [crowded(visitor, responses) for visitor in VISITORS]
        say("changing a limit during requests")
        changed, afterwards = change_while_flowing(site)
        say("killing a process that has a permit")
        permits = kill_a_holder(site.address, site.cookies[VISITORS[0].name])
        say("calling a language model through the gateway")
        asked, spent, costs = ask_the_model(site.place)
    served = Counter(response.process for response in responses)
    seconds = perf_counter() - started
    results = (rows, dict(served), changed, afterwards, permits, asked, spent, costs)
    return Report(*results, processes=WORKERS, seconds=seconds)


def run_changes(number: int) -> int:
    """Change a limit repeatedly; return the number of changes that applied to the first request of every process."""
    with stage() as site:
        say(f"changing a limit {number} times")
        return sum(change_many_times(site, number))
