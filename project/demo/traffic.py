"""Requests of many visitors: simultaneous ones, and a continuous flow while limits change."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Condition, Event
from time import perf_counter
from types import TracebackType
from typing import Final, NamedTuple, Self

from project.demo import DemoFailed
from project.demo.client import Client
from project.demo.server import Address

__all__ = ["ADMITTED", "BLOCKED", "REFUSED", "Flow", "Request", "Response", "crowd"]

ADMITTED: Final = 200
REFUSED: Final = 429
BLOCKED: Final = 403
_AT_ONCE: Final = 12
_CROWD_SECONDS: Final = 30
_FLOW_SECONDS: Final = 20


class Request(NamedTuple):
    """A request of a visitor with cookies."""

    visitor: str
    path: str
    cookies: Mapping[str, str]


class Response(NamedTuple):
    """The result of a request; times are in seconds, from one clock."""

    visitor: str
    status: int
    process: int
    started: float
    ended: float


def crowd(address: Address, requests: Iterable[Request]) -> list[Response]:
    """Send all requests, twelve at a time, each on a new connection, so that any process can receive it."""
    pool = ThreadPoolExecutor(_AT_ONCE)
    try:
        return list(pool.map(lambda request: _ask(address, request), requests, timeout=_CROWD_SECONDS))
    except TimeoutError as error:
        raise DemoFailed(f"not all requests had responses within {_CROWD_SECONDS} seconds") from error
    finally:
        pool.shutdown(cancel_futures=True)


def _ask(address: Address, request: Request) -> Response:
    client = Client(address, request.cookies)
    return _timed(request.visitor, client, request.path)


def _timed(visitor: str, client: Client, path: str) -> Response:
    started = perf_counter()
    answer = client.ask(path)
    return Response(visitor, answer.status, answer.process, started, perf_counter())


class Flow:
    """Sends requests on open connections, one after the other on each, until the end of the block.

    Responses are appended to `responses`. A flow stops after at most 20 seconds.
    """

    def __init__(self, clients: Iterable[Client], visitor: str, path: str) -> None:
        self.responses: list[Response] = []
        self._clients = list(clients)
        self._visitor = visitor
        self._path = path
        self._stopped = Event()
        self._arrived = Condition()
        self._pool = ThreadPoolExecutor(len(self._clients))
        self._running: list[Future[None]] = []

    def __enter__(self) -> Self:
        self._running = [self._pool.submit(self._go_on, client) for client in self._clients]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopped.set()
        self._pool.shutdown()
        if error is None:
            for flowing in self._running:
                flowing.result()

    def wait_for(self, number: int, since: float = 0) -> None:
        """Wait until each process has responded to `number` requests that were started after `since`."""
        processes = len(self._clients)

        def arrived() -> bool:
            counts = Counter(one.process for one in self.responses if one.started >= since)
            return len(counts) == processes and min(counts.values()) >= number

        with self._arrived:
            if not self._arrived.wait_for(arrived, _FLOW_SECONDS):
                raise DemoFailed(f"the flow of {self._visitor} ended: fewer than {number} responses of each process")

    def _go_on(self, client: Client) -> None:
        end = perf_counter() + _FLOW_SECONDS
        while not self._stopped.is_set() and perf_counter() < end:
            response = _timed(self._visitor, client, self._path)
            with self._arrived:
                self.responses.append(response)
                self._arrived.notify_all()
