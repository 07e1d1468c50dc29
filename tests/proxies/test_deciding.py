"""Programs in Node acquire limits over HTTP, by the client in the docs; the site has two workers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from tests.docs.pages import DOCS, blocks
from tests.servers.machine import HOST, program

pytestmark = pytest.mark.product

ROOT = Path(__file__).parents[2]
PAGE = DOCS / "howto" / "decisions-over-http.md"
TOKEN = "a" * 40
ALLOWED = 1_000
PATIENCE = 240
PREPARE = f"""
import tests.proxies.deciding_site
from django.contrib.auth.models import Permission, User
from django.core.management import call_command
from rest_framework.authtoken.models import Token
from limits_app import limits
call_command("migrate", verbosity=0)
user = User.objects.create_user("program")
user.user_permissions.add(Permission.objects.get(codename="use_limits"))
Token.objects.create(user=user, key="{TOKEN}")
limits.set_resource_limits("many", "{ALLOWED}/day@UTC")
limits.set_resource_limits("one", "slots=1")
limits.set_resource_limits("llm", "tokens=1000/day@UTC")
"""
CONNECT = """
import {{ Limits }} from "./limits.mjs";
const limits = new Limits("http://{host}:{port}/limits/api/v1/", {{ Authorization: "Token {token}" }});
"""
FROM_MANY_CONNECTIONS = """
const statuses = {};
let left = 1100;
const worker = async () => {
  while (left-- > 0) {
    const request = { resource: "many", idempotency_key: crypto.randomUUID() };
    const status = await limits.post("acquire", request).then(() => 200, (error) => error.status);
    statuses[status] = (statuses[status] ?? 0) + 1;
  }
};
await Promise.all(Array.from({ length: 50 }, worker));
console.log(JSON.stringify(statuses));
"""
SETTLE_100_TIMES = """
const { token } = await limits.post("acquire", { resource: "llm", amounts: { tokens: 500 } });
const settle = () => limits.post("settle", { token, usage: { tokens: 100 } }).then(() => 200, (error) => error.status);
const statuses = await Promise.all(Array.from({ length: 100 }, settle));
const { limits: left } = await limits.post("acquire", { resource: "llm", amounts: { tokens: 0 } });
console.log(JSON.stringify([statuses.filter((status) => status === 200).length,
  statuses.filter((status) => status === 409).length, left.find((limit) => limit.key === "tokens").remaining]));
"""
HOLD = """
await limits.run({ resource: "one", lease_seconds: 2 }, async () => {
  console.log("holding");
  await new Promise((resolve) => setTimeout(resolve, 60_000));
});
"""
TRY = """
const status = await limits.run({ resource: "one" }, async () => {}).then(() => 200, (error) => error.status);
console.log(JSON.stringify(status));
"""
EXTEND_AND_FAIL = """
const request = { resource: "llm", entity: "user:1", amounts: { tokens: 300 } };
const used = await limits.run(request, async ({ usage, extend }) => {
  await extend({ tokens: 200 });
  usage.tokens = 450;
  return usage.tokens;
});
const failure = await limits.run(request, async () => { throw new Error("broken"); }).catch((error) => error.message);
const { amounts, limits: left } = await limits.post("acquire", { ...request, amounts: { tokens: 550 } });
console.log(JSON.stringify([used, failure, amounts.tokens, left[0].remaining]));
"""


@pytest.fixture(scope="module")
def node(folder: Path, start: Callable[..., int]) -> Callable[[str], list[str]]:
    """The command of a program with the client in the docs, by its text."""
    environment = os.environ | {
        "SITE_DATABASE": str(folder / "site.sqlite3"),
        "SITE_STATE": str(folder / "state"),
        "PYTHONPATH": str(ROOT),
    }
    subprocess.run([sys.executable, "-c", PREPARE], env=environment, cwd=ROOT, check=True, timeout=PATIENCE)
    port = start(
        lambda port: [
            sys.executable,
            *("-m", "gunicorn", "tests.proxies.deciding_site", "--bind", f"{HOST}:{port}"),
            *("--workers", "2", "--threads", "4", "--log-level", "error"),
        ],
        env=environment,
        cwd=ROOT,
    )
    [client] = blocks(PAGE, "javascript")
    (folder / "limits.mjs").write_text(client.text)
    connect = CONNECT.format(host=HOST, port=port, token=TOKEN)

    def command(text: str) -> list[str]:
        file = folder / f"program-{len([*folder.iterdir()])}.mjs"
        file.write_text(connect + text)
        return [program("node", "nodejs"), str(file)]

    return command


def output_of(command: list[str]) -> Any:
    """What a program prints, as JSON."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_exactly_as_many_are_admitted_from_50_connections(node: Callable[[str], list[str]]) -> None:
    assert output_of(node(FROM_MANY_CONNECTIONS)) == {"200": ALLOWED, "429": 100}


def test_a_token_that_is_settled_100_times_in_parallel_refunds_once(node: Callable[[str], list[str]]) -> None:
    assert output_of(node(SETTLE_100_TIMES)) == [1, 99, 900]


def test_a_program_extends_and_settles_and_cancels_when_it_fails(node: Callable[[str], list[str]]) -> None:
    assert output_of(node(EXTEND_AND_FAIL)) == [450, "broken", 550, 0]


def test_permit_of_a_killed_program_is_free_again(node: Callable[[str], list[str]]) -> None:
    with subprocess.Popen(node(HOLD), stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "holding\n"
        renewed_until = monotonic() + 3
        while monotonic() < renewed_until:  # longer than the lease, which the program renews
            assert output_of(node(TRY)) == 429
        holder.send_signal(signal.SIGKILL)
        holder.wait(PATIENCE)
    killed, statuses = monotonic(), {429}
    while statuses == {429}:
        statuses = {output_of(node(TRY))}
        assert monotonic() < killed + PATIENCE
    assert statuses == {200}
    assert monotonic() < killed + 10
