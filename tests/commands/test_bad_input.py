"""What cannot be understood or done is said on stderr, with an exit code, and changes nothing."""

from __future__ import annotations

import io
from typing import Final

import pytest
from django.core.management import CommandError, call_command

from limits_app.management.commands.limits import SUBCOMMANDS
from limits_app.models import AuditEvent
from tests.commands.running import run, run_words

ELSEWHERE: Final = {"apply", "export", "simulate", "doctor"}
"""Their tables are in tests of their own."""

TABLE: Final = {
    "system": [
        ("system", 2, "required: VERB"),
        ("system put", 2, "invalid choice: 'put'"),
        ("system set", 2, "limits: Add at least one limit"),
        ("system set rpm=5/fortnight", 2, "time 'fortnight' must look like"),
        ("system set rpm=5/min rpm=9/min", 2, "limits[1]: Another limit has the key “rpm”"),
        ("system set blocked rpm=5/min", 2, "limits[0]: A policy with the effect “blocked” cannot have limits"),
        ("system set rpm=5/min --extend", 2, "unrecognized arguments: --extend"),
        ("system set rpm=5/min --enforcement maybe", 2, "enforcement: 'maybe' is not a valid choice: choose one of"),
        ("system set rpm=5/min --rollout 101", 2, "'101' must be 0 to 100 percent"),
        ("system set rpm=5/min --from 2026-02-30", 2, "'2026-02-30' is not a valid date or time: use for example"),
        ("system set rpm=5/min --from 2026-02-30T12:00", 2, "is not a valid date or time: day is out of range"),
        ("system set rpm=5/min --until tomorrow", 2, "'tomorrow' is not a valid date or time: use for example"),
        ("system set rpm=5/min --until 9999-12-31T23:59-12:00", 2, "is out of range: must be"),
        ("system set rpm=5/min --from 2026-02-01 --until 2026-01-01", 2, "start must be before the end"),
        ("system set rpm=5/min --hours sometimes", 2, "sometimes"),
        ("system set blocked --extends", 2, "A policy that extends a broader one must have the effect"),
        ("system get me", 2, "unrecognized arguments: me"),
        ("system get", 1, "There are no policies for the system"),
        ("system delete", 2, "stdin is not a terminal; pass --yes to confirm"),
        ("system delete --yes", 1, "There is no policy of the system that is always valid"),
        ("system list --format xml", 2, "invalid choice: 'xml'"),
    ],
    "denials": [
        ("denials user:1", 2, "unrecognized arguments: user:1"),
        ("denials --since 10", 2, "'10' is not a valid time"),
        ("denials --since 25:00", 2, "'25:00' is not a valid time"),
        ("denials --most 0", 2, "'0' must be a whole number of at least 1"),
        ("denials --resource 4gpt", 2, "resource '4gpt' must be a letter"),
        ("denials --key 'a b'", 2, "limit key 'a b' must be a letter"),
    ],
    "why": [
        ("why", 2, "arguments are required"),
        ("why '' --at 10:03", 2, "entity '' must be text of 1 to 255"),
        ("why user:1 --at 24:00", 2, "'24:00' is not a valid time"),
        ("why user:1 --at 9999-01-01", 2, "'9999-01-01' must be in the past"),
        ("why user:1 --at 10:03 --resource 4gpt", 2, "resource '4gpt' must be a letter"),
    ],
    "resource": [
        ("resource set", 2, "required: RESOURCE"),
        ("resource set 4gpt rpm=5/min", 2, "resource '4gpt' must be a letter"),
        ("resource set api", 2, "limits: Add at least one limit"),
        ("resource set api rpm", 2, "must look like '5/min'"),
        ("resource set api calls=5", 2, "say per how much time"),
        ("resource set api calls=1/min --from 9999-12-31T23:59-14:00", 2, "is out of range: must be"),
        ("resource delete api --at 0001-01-01T00:00+14:00 --yes", 2, "is out of range: must be"),
        ("resource get", 2, "required: RESOURCE"),
        ("resource get api", 1, "There are no policies for the resource api"),
        ("resource delete api --yes", 1, "There is no policy of the resource api that is always valid"),
        ("resource list api", 2, "unrecognized arguments: api"),
    ],
    "entity": [
        ("entity set", 2, "required: ENTITY"),
        ("entity set '' rpm=5/min", 2, "entity '' must be text of 1 to 255"),
        ("entity set user:1 rpm=5/min:shared", 2, "not those of an entity"),
        ("entity set user:1 rpm=5/min --on 'a b'", 2, "resource 'a b' must be a letter"),
        ("entity set user:1 rpm=5/min --reason", 2, "--reason: expected one argument"),
        ("entity get user:1", 1, "There are no policies for user:1 on all resources"),
        ("entity get user:1 --on api", 1, "There are no policies for user:1 on api"),
        ("entity delete user:1 --on api --yes", 1, "There is no policy of user:1 on api that is always valid"),
    ],
    "rules": [
        ("rules", 2, "required: PATH"),
        ("rules api/", 2, "'api/' must be a path such as /api/orders/"),
        ("rules /api/?page=1", 2, "without host and query string"),
        ("rules /api/ --method PSOT", 2, "invalid choice: 'PSOT'"),
        ("rules /api/ --methods GET", 2, "unrecognized arguments: --methods"),
    ],
    "pool": [
        ("pool get claude", 1, "Unknown pool 'claude'; must be one of: none"),
        ("pool set 'a b'", 2, "resource 'a b' must be"),
        ("pool set claude --load-balancing luck", 2, "load_balancing: 'luck' is not a valid choice"),
        ("pool set-member claude east rpm=5/min", 1, "Unknown pool 'claude'"),
        ("pool set-member claude east calls=5", 1, "Unknown pool 'claude'"),
        ("pool set-member claude east --config '['", 2, "the config must be JSON"),
        ("pool set-member claude east --config '[]'", 2, "the config must be a JSON object"),
        ("pool set-member claude east --weight 0", 2, "'0' must be a whole number of at least 1"),
        ("pool enable claude", 2, "required: MEMBER"),
        ("pool enable claude east", 1, "Unknown pool 'claude'"),
        ("pool remove-member claude east", 2, "pass --yes"),
        ("pool delete claude --yes", 1, "Unknown pool 'claude'"),
    ],
    "check": [
        ("check", 2, "required: RESOURCE"),
        ("check a@b", 2, "resource 'a@b' must be"),
        ("check api tpm", 2, "'tpm' must be a key and an amount, such as tpm=500"),
        ("check api tpm=many", 2, "amount 'many' must be a number"),
        ("check api tpm=1 tpm=2", 2, "duplicate key tpm"),
        ("check api --entity ''", 2, "entity '' must be text"),
        ("check api --dry-run", 2, "unrecognized arguments: --dry-run"),
    ],
    "explain": [
        ("explain", 2, "required: RESOURCE"),
        ("explain a@b", 2, "resource 'a@b' must be"),
        ("explain api 4=5", 2, "limit key '4' must be a letter"),
        ("explain api tpm=-5", 2, "amount '-5' must be a number"),
        ("explain api --format text", 2, "invalid choice: 'text'"),
    ],
    "status": [
        ("status", 2, "required: RESOURCE"),
        ("status a@b", 2, "resource 'a@b' must be"),
        ("status api user:1", 2, "unrecognized arguments: user:1"),
        ("status api --entity", 2, "--entity: expected one argument"),
        ("status api --entity ''", 2, "entity '' must be text"),
    ],
    "top": [
        ("top --lines 0", 2, "'0' must be a whole number of at least 1"),
        ("top --lines many", 2, "'many' must be a whole number"),
        ("top --scopes -1", 2, "'-1' must be a whole number of at least 1"),
        ("top --interval 0s", 2, "The interval must be more than 0"),
        ("top --interval 4000000d", 2, "The interval must be more than 0, and at most"),
        ("top --interval often", 2, "time 'often' must look like"),
        ("top now", 2, "unrecognized arguments: now"),
    ],
    "boost": [
        ("boost user:1 tpm=1M/min --reason x", 2, "--for --until --end is required"),
        ("boost user:1 tpm=1M/min --for 2h --until 2099-01-01 --reason x", 2, "not allowed with"),
        ("boost user:1 tpm=1M/min --for 2h", 2, "--reason is required"),
        ("boost user:1 tpm=1M/min --for a-while --reason x", 2, "time 'a-while' must look like"),
        ("boost user:1 tpm=1M/min --for 4000000d --reason x", 2, "'4000000d' is out of range"),
        ("boost user:1 tpm=1M/min --for 999999999d --reason x", 2, "time '999999999d' must not be more than"),
        ("boost user:1 tpm=1M/min --until 9999-12-31T23:59-12:00 --reason x", 2, "is out of range: must be"),
        ("boost user:1 tpm=1M/min --until 2001-01-01 --reason x", 2, "has ended already"),
        ("boost user:1 unlimited --for 2h --reason x", 2, "limit 'unlimited' must look like"),
        ("boost user:1 tpm=1M/min:shared --for 2h --reason x", 2, "limits[0].shared: Only limits of a resource"),
        ("boost user:1 --for 2h --reason x", 2, "No limits given"),
        ("boost user:1 tpm=1M/min --end", 2, "do not name limits"),
    ],
    "reset": [
        ("reset", 2, "Name either a RESOURCE or --total"),
        ("reset api --total --yes", 2, "Name either a RESOURCE or --total"),
        ("reset a@b --yes", 2, "resource 'a@b' must be"),
        ("reset api", 2, "stdin is not a terminal; pass --yes to confirm"),
        ("reset api --key tpm --yes", 2, "No limit has the key tpm; must be one of: none"),
        ("reset api --key tpm --dry-run", 2, "No limit has the key tpm; must be one of: none"),
        ("reset api --key 4 --yes", 2, "limit key '4' must be"),
    ],
    "usage": [
        ("usage api", 2, "unrecognized arguments: api"),
        ("usage --period year", 2, "invalid choice: 'year'"),
        ("usage --by colour", 2, "invalid choice: 'colour'"),
        ("usage --since tomorrow", 2, "'tomorrow' is not a valid time"),
        ("usage --since 2026-13-01", 2, "'2026-13-01' is not a valid date or time"),
        ("usage --since 0001-01-01T00:00+14:00", 2, "is out of range: must be"),
        ("usage --until 9999-12-31T23:59-14:00", 2, "is out of range: must be"),
        ("usage --since 9999999d", 2, "'9999999d' is out of range"),
        ("usage --most 0", 2, "'0' must be a whole number"),
        ("usage --resource a@b", 2, "resource 'a@b' must be"),
    ],
    "snapshot": [
        ("snapshot now", 2, "unrecognized arguments: now"),
        ("snapshot --dry-run", 2, "unrecognized arguments: --dry-run"),
        ("snapshot --yes", 2, "unrecognized arguments: --yes"),
        ("snapshot --form json", 2, "unrecognized arguments: --form json"),
        ("snapshot --format", 2, "--format: expected one argument"),
    ],
    "prune": [
        ("prune", 2, "stdin is not a terminal; pass --yes to confirm"),
        ("prune --audit-before then", 2, "'then' is not a valid time"),
        ("prune --archive", 2, "--archive: expected one argument"),
        ("prune --yes --reason law", 2, "--reason requires --audit-before"),
        ("prune --yes --audit-before 0001-01-01T00:00+14:00", 2, "is out of range: must be"),
        ("prune --yes --audit-before 2999-01-01", 2, "'2999-01-01' must be in the past"),
        ("prune old", 2, "unrecognized arguments: old"),
        ("prune --audit-before 30", 2, "'30' is not a valid time"),
    ],
    "plan": [
        ("plan", 2, "required: VERB"),
        ("plan set pro", 2, "limits: Add at least one limit"),
        ("plan set pro rpm=5/fortnight", 2, "time 'fortnight' must look like"),
        ("plan get nobody", 1, "There are no policies for the plan nobody"),
        ("plan delete nobody", 2, "stdin is not a terminal; pass --yes to confirm"),
        ("plan delete nobody --yes", 1, "There is no policy of the plan nobody"),
    ],
    "emergency": [
        ("emergency pause", 2, "invalid choice: 'pause'"),
        ("emergency off", 2, "stdin is not a terminal; pass --yes to confirm"),
        ("emergency off --yes", 2, "reason: Enter a reason"),
        ("emergency off --reason x --until 2020-01-01 --yes", 2, "until must be in the future"),
        ("emergency enforce --until 2020-01-01 --yes", 2, "an end is only possible for shadow and off"),
    ],
    "candidates": [
        ("candidates", 2, "required: VERB"),
        ("candidates zap", 2, "invalid choice: 'zap'"),
        ("candidates set api rpm=5/min", 2, "'api' must be a whole number"),
        ("candidates set 99 rpm=5/min", 2, "No policy has the id 99"),
        ("candidates promote 99 --yes", 2, "No policy has the id 99"),
    ],
    "alerts": [
        ("alerts", 2, "required: VERB"),
        ("alerts list", 2, "invalid choice: 'list'"),
        ("alerts send now", 2, "unrecognized arguments: now"),
        ("alerts test", 2, "required: RULE"),
        ("alerts test on-call", 1, "No alert rule is named 'on-call'"),
    ],
    "audit": [
        ("audit", 2, "required: VERB"),
        ("audit list --most 0", 2, "'0' must be a whole number"),
        ("audit list --since 2026-01", 2, "'2026-01' is not a valid date or time"),
        ("audit list --since 0001-01-01T00:00+14:00", 2, "is out of range: must be"),
        ("audit show first", 2, "'first' must be a whole number"),
        ("audit show 17", 1, "Event 17 does not exist"),
        ("audit verify --known 17", 2, "'17' must be a number and a digest"),
        ("audit verify --known 17:xyz", 2, "'17:xyz' must be a number and a digest"),
        ("audit revert", 2, "required: NUMBER"),
        ("audit revert 17 --yes", 1, "Event 17 does not exist"),
    ],
    "": [
        ("", 2, "required: SUBCOMMAND"),
        ("resources", 2, "invalid choice: 'resources'"),
        ("--format json resource list", 2, "unrecognized|invalid choice"),
    ],
}


@pytest.mark.parametrize("name", TABLE)
def test_what_cannot_be_is_an_error_on_stderr_and_changes_nothing(name: str) -> None:
    for line, code, message in TABLE[name]:
        ran = run(line)
        said = " ".join(ran.err.split())
        assert (ran.code, ran.out) == (code, ""), f"{line}: {said}"
        assert any(one in said for one in message.split("|")), f"{line}: {said}"
    assert not AuditEvent.objects.exists()


def test_each_subcommand_has_a_table_of_at_least_five() -> None:
    assert {name: len(TABLE.get(name, ())) >= 5 for name in SUBCOMMANDS if name not in ELSEWHERE} == {
        name: True for name in SUBCOMMANDS if name not in ELSEWHERE
    }


@pytest.mark.parametrize(
    "line", ["audit list --actor", "audit list --object", "reset api --yes --once", "export --name", "entity get"]
)
def test_an_argument_that_is_no_utf_8_is_not_understood(line: str) -> None:
    ran = run_words(*line.split(), b"\xff".decode(errors="surrogateescape"))
    assert (ran.code, ran.out, "must be UTF-8 text" in ran.err) == (2, "", True), ran.err


def test_an_output_without_a_character_says_how_to_have_it() -> None:
    run("resource set api rpm=5/min --reason 'für alle'")
    out = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    with pytest.raises(CommandError, match=r"the output encoding ascii has no '\\xfc'; set PYTHONUTF8=1") as failed:
        call_command("limits", "audit", "list", stdout=out)
    assert failed.value.returncode == 1
