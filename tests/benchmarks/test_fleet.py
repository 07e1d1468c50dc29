"""The tables of many machines."""

from __future__ import annotations

from benchmarks.fleet import table


def test_figures_of_one_process_are_those_of_all_machines() -> None:
    asked = {"calls": 12.5, "queries": 0.25, "new_connections": 1.5}
    figures = asked | {"redis_connections": 1.0, "database_connections": 2.0}
    lines = table({"all allowed": figures}).splitlines()
    assert lines[0] == "| each process | in a second | 1 x 20 | 50 x 20 | 1,000 x 20 |"
    assert lines[2:] == [
        "| all allowed: calls of Redis | 12.50 | 250 | 12,500 | 250,000 |",
        "| all allowed: queries | 0.25 | 5 | 250 | 5,000 |",
        "| all allowed: new connections to the database | 1.50 | 30 | 1,500 | 30,000 |",
        "| all allowed: connections to Redis | 1.00 | 20 | 1,000 | 20,000 |",
        "| all allowed: connections to the database | 2.00 | 40 | 2,000 | 40,000 |",
    ]
