"""nginx and Caddy ask the site about requests to programs in other languages, by the configuration in the docs."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from email.message import Message
from functools import cache
from http.client import HTTPConnection
from pathlib import Path

import pytest

from tests.docs.pages import DOCS, blocks
from tests.servers.machine import HOST, program

pytestmark = pytest.mark.product

ROOT = Path(__file__).parents[2]
PAGE = DOCS / "howto" / "forward-auth.md"
ALLOWED = 1_000
NAMES = [f"{what}-{proxy}" for what in ("node", "shell", "spelled", "chosen") for proxy in ("nginx", "caddy")]
"""Rules that allow 2 requests a day."""
PREPARE = f"""
import tests.proxies.site
from django.core.management import call_command
from limits_app import limits
from limits_app.models import Endpoint, Resource
call_command("migrate", verbosity=0)
for name, limit in [("many", "{ALLOWED}/day"), *[(name, "2/day") for name in {NAMES}]]:
    limits.set_resource_limits(name, limit)
    Endpoint.objects.create(name=name, path=f"/{{name}}/*", resource=Resource.objects.get(name=name))
"""
IN_NODE = """
require("http").createServer((request, response) => {
  response.setHeader("Content-Type", "text/plain");
  response.end("node " + request.url);
}).listen(%d, "127.0.0.1");
"""
IN_THE_SHELL = r"""
while read -r line && [ "$line" != "$(printf '\r')" ]; do :; done
printf 'HTTP/1.0 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 5\r\n\r\nshell'
"""


@pytest.fixture(scope="module")
def site(folder: Path, start: Callable[..., int]) -> int:
    """The port of the site, with two workers."""
    environment = os.environ | {
        "SITE_DATABASE": str(folder / "site.sqlite3"),
        "SITE_STATE": str(folder / "state"),
        "PYTHONPATH": str(ROOT),
    }
    subprocess.run([sys.executable, "-c", PREPARE], env=environment, cwd=ROOT, check=True, timeout=60)
    return start(
        lambda port: [
            sys.executable,
            *("-m", "gunicorn", "tests.proxies.site", "--bind", f"{HOST}:{port}"),
            *("--workers", "2", "--log-level", "error"),
        ],
        env=environment,
        cwd=ROOT,
    )


@pytest.fixture(scope="module")
def programs(folder: Path, start: Callable[..., int]) -> dict[str, int]:
    """The ports of programs in other languages."""
    script = folder / "answer.sh"
    script.write_text(IN_THE_SHELL)
    socat, node = program("socat", "socat"), program("node", "nodejs")
    return {
        "node": start(lambda port: [node, "-e", IN_NODE % port]),
        "shell": start(lambda port: [socat, f"TCP-LISTEN:{port},bind={HOST},reuseaddr,fork", f"EXEC:sh {script}"]),
    }


@pytest.fixture(scope="module")
def proxies(folder: Path, start: Callable[..., int], site: int, programs: dict[str, int]) -> Callable[[str, str], int]:
    """The port of a proxy with the configuration in the docs, by its name and that of the program behind it."""

    @cache
    def port_of(proxy: str, behind: str) -> int:
        [block] = blocks(PAGE, LANGUAGES[proxy])
        text = block.text.replace("django.internal:8000", f"{HOST}:{site}")
        text = text.replace("program.internal:9000", f"{HOST}:{programs[behind]}")
        own = folder / f"{proxy}-{behind}"
        own.mkdir()
        return start(lambda port: COMMANDS[proxy](text, own, port))

    return port_of


def nginx(text: str, folder: Path, port: int) -> list[str]:
    server = f"server {{ listen {HOST}:{port}; {text} }}"
    temporary = "".join(
        f"{kind}_temp_path {folder}/{kind};" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    main = f"daemon off; pid {folder}/nginx.pid; error_log {folder}/nginx.log; events {{ }}"
    configuration = folder / "nginx.conf"
    configuration.write_text(f"{main} http {{ access_log off; {temporary} {server} }}")
    return [program("nginx", "nginx-light"), "-c", str(configuration), "-p", str(folder)]


def caddy(text: str, folder: Path, port: int) -> list[str]:
    configuration = folder / "Caddyfile"
    here = text.replace("http://program.example.com", f"http://{HOST}:{port}")
    configuration.write_text(f"{{\n admin off\n auto_https off\n storage file_system {folder}\n}}\n{here}")
    return [program("caddy", "caddy"), "run", "--adapter", "caddyfile", "--config", str(configuration)]


COMMANDS = {"nginx": nginx, "caddy": caddy}
LANGUAGES = {"nginx": "nginx", "caddy": "caddyfile"}


@dataclass(frozen=True)
class Answer:
    """What a client gets."""

    status: int
    headers: Message
    text: str


def get(port: int, path: str, headers: Mapping[str, str] | None = None) -> Answer:
    connection = HTTPConnection(HOST, port, timeout=30)
    connection.request("GET", path, headers=dict(headers or {}))
    response = connection.getresponse()
    answer = Answer(response.status, response.headers, response.read().decode())
    connection.close()
    return answer


@pytest.mark.parametrize("behind", ["node", "shell"])
@pytest.mark.parametrize("name", ["nginx", "caddy"])
def test_a_program_in_another_language_obeys_the_limit(
    proxies: Callable[[str, str], int], name: str, behind: str
) -> None:
    proxy, path = proxies(name, behind), f"/{behind}-{name}/a"
    allowed = [get(proxy, f"{path}?page=1") for _ in range(2)]
    assert [answer.status for answer in allowed] == [200, 200]
    assert allowed[0].text.startswith(behind)
    rejected = get(proxy, path, {"Accept": "application/json"})
    assert rejected.status == 429
    assert int(rejected.headers["Retry-After"]) > 0
    assert rejected.headers["RateLimit"].startswith('"call_count";r=0')
    assert get(proxy, "/elsewhere").status == 200


@pytest.mark.parametrize("name", ["nginx", "caddy"])
def test_a_client_cannot_describe_another_request(proxies: Callable[[str, str], int], name: str) -> None:
    proxy, path = proxies(name, "node"), f"/spelled-{name}/a"
    assert [get(proxy, path).status for _ in range(3)] == [200, 200, 429]
    invented = {"X-Forwarded-Uri": "/free", "X-Forwarded-Method": "OPTIONS", "X-Forwarded-For": "198.51.100.9"}
    underscored = {header.replace("-", "_"): value for header, value in invented.items()}
    assert get(proxy, path, invented).status == 429
    assert get(proxy, f"{path}?as=200", underscored).status == 429
    assert get(proxy, f"{path}?as=403", invented).status == 429
    for spelling in (f"{path}/../../free", f"/free/..{path}", f"/{path}", f"/free/..%2f{path[1:]}", f"/%73{path[2:]}"):
        assert get(proxy, spelling).status == 429, spelling


@pytest.mark.parametrize("name", ["nginx", "caddy"])
def test_a_client_cannot_choose_the_view_that_answers(proxies: Callable[[str, str], int], name: str) -> None:
    proxy, path = proxies(name, "node"), f"/chosen-{name}/a"
    assert [get(proxy, path).status for _ in range(3)] == [200, 200, 429]
    for prefix in ("/limits/forward-auth", "/limits"):
        for header in ("SCRIPT_NAME", "Script_Name", "PATH_INFO", "X-Forwarded-Prefix", "X-Script-Name"):
            assert get(proxy, path, {header: prefix}).status == 429, (header, prefix)


def test_exactly_as_many_are_admitted_from_many_connections(proxies: Callable[[str, str], int]) -> None:
    proxy = proxies("nginx", "node")

    def ask(_: int) -> Counter[int]:
        connection = HTTPConnection(HOST, proxy, timeout=60)
        statuses: Counter[int] = Counter()
        for _ in range(24):
            connection.request("GET", "/many/a")
            response = connection.getresponse()
            response.read()
            statuses[response.status] += 1
        connection.close()
        return statuses

    with ThreadPoolExecutor(50) as pool:
        total = sum(pool.map(ask, range(50)), Counter[int]())
    assert total == {200: ALLOWED, 429: 50 * 24 - ALLOWED}
