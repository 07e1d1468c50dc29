"""The forms of what commands write."""

from __future__ import annotations

import csv
import io
import json
import os
import pty
import re
import sys
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, date, datetime
from typing import Any

import pytest
import yaml
from django.core.management import call_command
from django.core.management.base import CommandError, OutputWrapper
from hypothesis import given
from hypothesis import strategies as st

from limits_app import limits
from limits_app.engine.limits import RateLimit
from limits_app.management.limits.output import Format, Output, Table, cell
from limits_app.services.safe_text import csv_text, guarded, unguarded
from tests.commands.running import run, run_words
from tests.replacing import type_in, without_package

TABLE = Table(("name", "count", "of"), [("a", 1, ["x", "y"]), ("longer", 1000, ["z"])], "None.")


class Terminal(io.StringIO):
    """Text that believes it is a terminal."""

    def isatty(self) -> bool:
        return True


def opened(
    form: Format = Format.TABLE, kind: type[io.StringIO] = io.StringIO, *, has_rich: bool = True
) -> tuple[Output, Any, Any]:
    out, err = kind(), kind()
    return Output(OutputWrapper(out), OutputWrapper(err), form, has_rich=has_rich), out, err


def test_a_table_is_aligned_and_its_numbers_stand_at_the_right() -> None:
    out, written, _ = opened()
    out.show(TABLE)
    assert written.getvalue() == ("name    count  of\na           1  x y\nlonger   1000  z\n")


def test_empty_results_have_a_message_for_people_only() -> None:
    for form, expected in {Format.TABLE: "", Format.JSON: "[]\n", Format.CSV: "a,b\n", Format.YAML: "[]\n"}.items():
        out, written, told = opened(form)
        out.show(Table(("a", "b"), [], "None."))
        assert written.getvalue() == expected
        assert told.getvalue() == ("None.\n" if form is Format.TABLE else "")


def test_json_yaml_and_csv_have_the_same_content() -> None:
    limits.set_resource_limits("api", [RateLimit("rpm", 5, 60)], reason="it is, “small”,\nand old")
    plain = json.loads(run("resource list --format json").out)
    assert plain == yaml.safe_load(run("resource list --format yaml").out)
    [row] = csv.DictReader(io.StringIO(run("resource list --format csv").out, newline=""))
    assert plain == [
        {
            "policy": "resource api",
            "limits": ["rpm=5/min"],
            "extends": False,
            "enforcement": "enforce",
            "rollout_percent": 100,
            "when": "always",
            "on_unavailable": "",
            "reason": "it is, “small”,\nand old",
        }
    ]
    assert (row["limits"], row["reason"], row["extends"]) == ("rpm=5/min", plain[0]["reason"], "no")


def test_control_characters_in_identifiers_are_escaped() -> None:
    limits.set_entity_limits("evil\x1b[2J\n[red]", [RateLimit("rpm", 5, 60)])
    assert "evil\\x1b[2J\\n[red]" in run("entity list").out
    assert "\x1b" not in run("entity list").out
    assert "evil\\x1b[2J\\n[red]" in run("explain api --entity 'evil\x1b[2J\n[red]'").out.replace("\n[red]", "\\n[red]")
    assert json.loads(run("entity list --format json").out)[0]["policy"] == "entity evil\x1b[2J\n[red]"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, ""),
        (True, "yes"),
        (False, "no"),
        (0.1 + 0.2, "0.3"),
        (date(2026, 1, 31), "2026-01-31"),
        (datetime(2026, 1, 31, 12, 0, 1, 5, tzinfo=UTC), "2026-01-31 12:00:01+00:00"),
        ([1, None, "a"], "1  a"),
        ({"a": "é"}, '{"a": "é"}'),
        ("a\tb", "a\\tb"),
    ],
)
def test_cell_has_readable_text(value: object, text: str) -> None:
    assert cell(value) == text


EVIL = "a\x1b[2J\x9b1m\u202e\x7fb\r=1+1"
"""Clears the screen, changes colours and the direction of writing, and begins a line with a formula."""


@pytest.mark.parametrize("form", ["table", "json", "csv", "yaml"])
def test_no_output_has_control_characters_from_data(form: str) -> None:
    limits.set_entity_limits(EVIL, [RateLimit("rpm", 5, 60)], reason=f"={EVIL}")
    limits.set_entity(EVIL, name=EVIL)
    lines = [["entity", "list"], ["entity", "get", EVIL], ["audit", "list"], ["status", "api", "--entity", EVIL]]
    lines += [["explain", "api", "--entity", EVIL], ["boost", EVIL, "--end", "--yes"], ["doctor"]]
    lines += [["reset", "api", "--entity", EVIL], ["simulate", "rpm=5/min", "--csv", EVIL], ["alerts", "test", EVIL]]
    for words in lines:
        ended = run_words(*words, *([] if words[0] == "alerts" else ["--format", form]))
        for text in (ended.out, ended.err):
            assert all(one.isprintable() or one in "\n\u202e" for one in text), (words, text)


def test_a_limits_file_in_json_has_no_control_characters_from_data() -> None:
    limits.set_entity(EVIL, name="Zoë")
    file = run("export --format json").out
    assert all(one.isprintable() or one == "\n" for one in file)
    assert "Zoë" in file
    assert EVIL in json.loads(file)["entities"]


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("=1+1", "'=1+1"),
        (" =1+1", "' =1+1"),
        ("＝1+1", "'＝1+1"),  # noqa: RUF001 - the full-width sign
        ("\n=1+1", "'\n=1+1"),
        ("\t=1+1", "'\t=1+1"),
        ("a\rb", "'a\\rb"),
        ("=a\\b\x1b", "'=a\\\\b\\x1b"),
        ("a\\b", "a\\b"),
        ("'=a", "''=a"),
        ("''a\x1b", "'''a\\x1b"),
        ("'a", "'a"),
        ("a\r\nb", "a\r\nb"),
        ("", ""),
    ],
)
def test_a_cell_of_a_csv_file_can_be_read_back(text: str, written: str) -> None:
    assert guarded(text) == written
    assert unguarded(written) == text
    file = csv_text([text], [[text, -5, None]])
    assert [*csv.reader(io.StringIO(file, newline=""))] == [[written], [written, "-5", ""]]


@given(st.text(st.sampled_from("'=\\ abx0d\r\n\t\x1b\x9bnrtuU"), max_size=8))
def test_every_text_of_a_csv_file_can_be_read_back(text: str) -> None:
    written = guarded(text)
    assert unguarded(written) == text
    assert written.lstrip()[:1] not in {"=", "+", "-", "@"}
    assert "\x1b" not in written


def test_on_a_terminal_tables_are_drawn_by_rich() -> None:
    out, written, _ = opened(kind=Terminal)
    out.show(Table(("name", "evil"), [("[bold]a", "\x1b[2J")]))
    assert "─" in written.getvalue()
    assert "[bold]a" in written.getvalue()
    assert "\\x1b[2J" in written.getvalue()


@pytest.mark.parametrize(("columns", "lines"), [("200", 4), ("80", 10)])
def test_nothing_is_left_out_of_a_table_that_is_too_wide_for_its_terminal(
    columns: str, lines: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    names = ("policy", "enforcement", "when", "rollout_percent", "on_unavailable")
    first = ("resource openai/gpt-4 for everybody", "enforce", "always", 100, "")
    second = ("the words of a reason that somebody gave", "shadow", "sat,sun Europe/Berlin", 5, "local")
    out, written, _ = opened(kind=Terminal)
    out.show(Table(names, [first, second]))
    said = re.sub(r"\x1b\[[0-9;]*m", "", written.getvalue())
    for word in (*names, *first, *second):
        assert str(word) in said
    assert len([line for line in said.splitlines() if line.strip()]) in range(lines - 1, lines + 1)
    assert all(len(line) <= int(columns) for line in said.splitlines())


def test_without_rich_or_colour_a_terminal_gets_plain_text() -> None:
    out = Output(OutputWrapper(Terminal()), OutputWrapper(Terminal()), color=False)
    assert not out.is_rich
    out, written, told = opened(kind=Terminal, has_rich=False)
    out.show(TABLE)
    assert written.getvalue().startswith("name    count  of\n")
    assert list(out.track([1, 2], "counting")) == [1, 2]
    assert told.getvalue() == ""


def test_long_work_is_shown_on_stderr_of_a_terminal_only(capfd: pytest.CaptureFixture[str]) -> None:
    for kind in (io.StringIO, Terminal):
        out, written, _ = opened(kind=kind)
        assert list(out.track(range(3), "counting", 3)) == [0, 1, 2]
        with out.working("Working"):
            out.write("done")
            written.truncate(0)
        assert written.getvalue() == ""
    assert capfd.readouterr().out == ""


def test_progress_is_a_bar_on_a_terminal_and_a_line_every_10_seconds_elsewhere() -> None:
    out, written, told = opened()
    times = iter([0.0, 9.9, 10.0, 19.9])
    with out.progress("Applying 3 objects", clock=lambda: next(times)) as show:
        for done in (1, 2, 3):
            show(done, 3)
    assert (written.getvalue(), told.getvalue()) == ("", "Applying 3 objects: 2 of 3\n")
    out, written, told = opened(kind=Terminal)
    with out.progress("Applying 3 objects") as show:
        show(1, 3)
    assert written.getvalue() == ""


def test_yaml_without_its_package_names_the_package_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    without_package(monkeypatch, "yaml")
    out, _, _ = opened(Format.YAML)
    with pytest.raises(CommandError, match=r"limits-app\[yaml\]"):
        out.show(TABLE)


@pytest.mark.parametrize(
    ("answer", "goes_on"), [("y\n", True), ("YES\n", True), ("n\n", False), ("\n", False), ("", False)]
)
def test_only_a_yes_is_a_yes(answer: str, goes_on: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    out, written, told = opened()
    type_in(monkeypatch, Terminal(answer))
    if goes_on:
        out.confirm("Really?", yes=False)
    else:
        with pytest.raises(CommandError, match="Nothing was changed") as error:
            out.confirm("Really?", yes=False)
        assert error.value.returncode == 1
    assert (written.getvalue(), told.getvalue()) == ("", "Really? [y/N] ")


def all_of(master: int) -> Iterator[str]:
    """What was written to a terminal that is closed by now, in as many parts as it comes."""
    with suppress(OSError):  # which is how its end is told
        while True:
            yield os.read(master, 100_000).decode()


def test_a_screen_of_a_terminal_is_drawn_again(monkeypatch: pytest.MonkeyPatch) -> None:
    master, slave = pty.openpty()
    with os.fdopen(slave, "w") as terminal:
        monkeypatch.setattr(sys, "stdout", terminal)
        out, _, _ = opened(kind=Terminal)
        with out.screen() as draw:
            draw(Table(TABLE.columns, ()), "11:58")
            draw(TABLE, "12:00\x1b")
            draw(TABLE, "12:02")
    drawn = "".join(all_of(master))
    os.close(master)
    assert "12:00\\x1b" in drawn
    assert "12:02" in drawn
    assert "longer" in drawn


def test_programs_give_commands_as_all_others() -> None:
    limits.set_resource_limits("api", [RateLimit("rpm", 5, 60)])
    written = io.StringIO()
    call_command("limits", "resource", "list", "--format", "csv", stdout=written)
    assert written.getvalue().endswith("resource api,rpm=5/min,no,enforce,100,always,,\n")
    with pytest.raises(CommandError, match="There are no policies for the system"):
        call_command("limits", "system", "get")
    with pytest.raises(CommandError, match="invalid choice"):
        call_command("limits", "nothing")


def test_pictures_follow_each_other_outside_a_terminal() -> None:
    out, written, told = opened()
    with out.screen() as draw:
        draw(TABLE, "12:00")
        draw(TABLE, "12:02")
    assert (written.getvalue().count("longer"), told.getvalue()) == (2, "12:00\n12:02\n")
