"""What cannot be understood or done is said on stderr, with an exit code, and changes nothing."""

from __future__ import annotations

import io
from typing import Final

import pytest
from django.core.management import CommandError, call_command

from limits_app.models import AuditEvent
from tests.commands.running import run, run_words

TABLE: Final = {
    "system": [
        ("system", 2, "required: VERB"),
        ("system set", 2, "limits: Add at least one limit"),
        ("system set rpm=5/fortnight", 2, "time 'fortnight' must look like"),
        ("system set rpm=5/min --enforcement maybe", 2, "enforcement: 'maybe' is not a valid choice: choose one of"),
        ("system set rpm=5/min --rollout 101", 2, "'101' must be 0 to 100 percent"),
        ("system set rpm=5/min --from 2026-02-30", 2, "'2026-02-30' is not a valid date or time: use for example"),
        ("system set rpm=5/min --from 2026-02-30T12:00", 2, "is not a valid date or time: day "),
        ("system set rpm=5/min --until tomorrow", 2, "'tomorrow' is not a valid date or time: use for example"),
        ("system set rpm=5/min --until 9999-12-31T23:59-12:00", 2, "is out of range: must be"),
        ("system set rpm=5/min --from 2026-02-01 --until 2026-01-01", 2, "start must be before the end"),
        ("system set rpm=5/min --hours sometimes", 2, "sometimes"),
        ("system get", 1, "There are no policies for the system"),
        ("system delete", 2, "stdin is not a terminal; pass --yes to confirm"),
        ("system delete --yes", 1, "There is no policy of the system that is always valid"),
    ],
    "denials": [
        ("denials --since 10", 2, "'10' is not a valid time"),
        ("denials --since 25:00", 2, "'25:00' is not a valid time"),
    ],
    "why": [("why user:1 --at 9999-01-01", 2, "'9999-01-01' must be in the past")],
    "resource": [
        ("resource set 4gpt rpm=5/min", 2, "resource '4gpt' must be a letter"),
        ("resource set api rpm", 2, "must look like '5/min'"),
        ("resource set api calls=5", 2, "missing time window"),
        ("resource get api", 1, "There are no policies for the resource api"),
        ("resource delete api --yes", 1, "There is no policy of the resource api that is always valid"),
    ],
    "entity": [
        ("entity set '' rpm=5/min", 2, "entity '' must be text of 1 to 255"),
        ("entity set user:1 rpm=5/min:shared", 2, "not those of an entity"),
        ("entity set user:1 rpm=5/min --on 'a b'", 2, "resource 'a b' must be a letter"),
        ("entity get user:1", 1, "There are no policies for user:1 on all resources"),
        ("entity get user:1 --on api", 1, "There are no policies for user:1 on api"),
        ("entity delete user:1 --on api --yes", 1, "There is no policy of user:1 on api that is always valid"),
    ],
    "rules": [
        ("rules api/", 2, "'api/' must be a path such as /api/orders/"),
        ("rules /api/?page=1", 2, "without host and query string"),
        ("rules /api/ --method PSOT", 2, "invalid choice: 'PSOT'"),
    ],
    "pool": [
        ("pool get claude", 1, "Unknown pool 'claude'; must be one of: none"),
        ("pool set claude --load-balancing luck", 2, "load_balancing: 'luck' is not a valid choice"),
        ("pool set-member claude east --config '['", 2, "the config must be JSON"),
        ("pool set-member claude east --config '[]'", 2, "the config must be a JSON object"),
        ("pool enable claude east", 1, "Unknown pool 'claude'"),
        ("pool remove-member claude east", 2, "pass --yes"),
    ],
    "check": [
        ("check api tpm", 2, "'tpm' must be a key and an amount, such as tpm=500"),
        ("check api tpm=1 tpm=2", 2, "duplicate key tpm"),
        ("check api --dry-run", 2, "unrecognized arguments: --dry-run"),
    ],
    "explain": [
        ("explain api 4=5", 2, "limit key '4' must be a letter"),
        ("explain api tpm=-5", 2, "amount '-5' must be a number"),
    ],
    "status": [("status api --entity ''", 2, "entity '' must be text")],
    "top": [
        ("top --lines 0", 2, "'0' must be a whole number of at least 1"),
        ("top --interval 0s", 2, "The interval must be more than 0"),
        ("top --interval 4000000d", 2, "The interval must be more than 0, and at most"),
    ],
    "boost": [
        ("boost user:1 tpm=1M/min --reason x", 2, "--for --until --end is required"),
        ("boost user:1 tpm=1M/min --for 2h --until 2099-01-01 --reason x", 2, "not allowed with"),
        ("boost user:1 tpm=1M/min --for 2h", 2, "--reason is required"),
        ("boost user:1 tpm=1M/min --for 4000000d --reason x", 2, "'4000000d' is out of range"),
        ("boost user:1 tpm=1M/min --for 999999999d --reason x", 2, "time '999999999d' must not be more than"),
        ("boost user:1 tpm=1M/min --until 2001-01-01 --reason x", 2, "has ended already"),
        ("boost user:1 unlimited --for 2h --reason x", 2, "limit 'unlimited' must look like"),
        ("boost user:1 tpm=1M/min:shared --for 2h --reason x", 2, "limits[0].shared: Only limits of a resource"),
        ("boost user:1 --for 2h --reason x", 2, "No limits given"),
        ("boost user:1 tpm=1M/min --end", 2, "do not name limits"),
    ],
    "reset": [
        ("reset", 2, "Name either a RESOURCE or --total"),
        ("reset api --total --yes", 2, "Name either a RESOURCE or --total"),
        ("reset api", 2, "stdin is not a terminal; pass --yes to confirm"),
        ("reset api --key tpm --yes", 2, "No limit has the key tpm; must be one of: none"),
        ("reset api --key tpm --dry-run", 2, "No limit has the key tpm; must be one of: none"),
    ],
    "usage": [
        ("usage --by colour", 2, "invalid choice: 'colour'"),
        ("usage --since 9999999d", 2, "'9999999d' is out of range"),
    ],
    "snapshot": [
        ("snapshot --form json", 2, "unrecognized arguments: --form json"),
    ],
    "prune": [
        ("prune", 2, "stdin is not a terminal; pass --yes to confirm"),
        ("prune --yes --reason law", 2, "--reason requires --audit-before"),
        ("prune --yes --audit-before 2999-01-01", 2, "'2999-01-01' must be in the past"),
    ],
    "plan": [
        ("plan get nobody", 1, "There are no policies for the plan nobody"),
        ("plan delete nobody --yes", 1, "There is no policy of the plan nobody"),
    ],
    "emergency": [
        ("emergency off", 2, "stdin is not a terminal; pass --yes to confirm"),
        ("emergency off --yes", 2, "reason: Enter a reason"),
        ("emergency off --reason x --until 2020-01-01 --yes", 2, "until must be in the future"),
        ("emergency enforce --until 2020-01-01 --yes", 2, "an end is only possible for shadow and off"),
    ],
    "candidates": [
        ("candidates set api rpm=5/min", 2, "'api' must be a whole number"),
        ("candidates set 99 rpm=5/min", 2, "No policy has the id 99"),
        ("candidates promote 99 --yes", 2, "No policy has the id 99"),
    ],
    "alerts": [("alerts test on-call", 1, "No alert rule is named 'on-call'")],
    "apply": [("apply", 2, "required: FILE"), ("apply a.yaml --chek", 2, "unrecognized arguments: --chek")],
    "export": [
        ("export all", 2, "unrecognized arguments: all"),
        ("export --format csv", 2, "A limits file is YAML or JSON"),
        ("export --format xml", 2, "invalid choice: 'xml'"),
        ("export --name", 2, "expected one argument"),
    ],
    "simulate": [
        ("simulate calls", 2, "must look like"),
        ("simulate calls=1/s --file limits.yaml", 2, "either limits or a file, not both"),
    ],
    "doctor": [
        ("doctor --fail-on info", 2, "invalid choice: 'info'"),
        ("doctor --patience long", 2, "time 'long' must look like"),
    ],
    "audit": [
        ("audit show 17", 1, "Event 17 does not exist"),
        ("audit verify --known 17", 2, "'17' must be a number and a digest"),
        ("audit verify --known 17:xyz", 2, "'17:xyz' must be a number and a digest"),
    ],
    "": [
        ("", 2, "required: SUBCOMMAND"),
        ("resources", 2, "invalid choice: 'resources'"),
        ("--format json resource list", 2, "unrecognized|invalid choice"),
    ],
}


@pytest.mark.parametrize("name", TABLE)
def test_invalid_input_is_an_error_on_stderr_and_changes_nothing(name: str) -> None:
    for line, code, message in TABLE[name]:
        ran = run(line)
        said = " ".join(ran.err.split())
        assert (ran.code, ran.out) == (code, ""), f"{line}: {said}"
        assert any(one in said for one in message.split("|")), f"{line}: {said}"
    assert not AuditEvent.objects.exists()


@pytest.mark.parametrize(
    "line", ["audit list --actor", "audit list --object", "reset api --yes --once", "export --name", "entity get"]
)
def test_an_argument_that_is_no_utf_8_is_not_understood(line: str) -> None:
    ran = run_words(*line.split(), b"\xff".decode(errors="surrogateescape"))
    assert (ran.code, ran.out, "must be UTF-8 text" in ran.err) == (2, "", True), ran.err


def test_an_output_that_cannot_encode_a_character_explains_the_setting() -> None:
    run("resource set api rpm=5/min --reason 'für alle'")
    out = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    with pytest.raises(CommandError, match=r"the output encoding ascii has no '\\xfc'; set PYTHONUTF8=1") as failed:
        call_command("limits", "audit", "list", stdout=out)
    assert failed.value.returncode == 1
