"""Event loops whose time a test need not wait for."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine, Sequence
from functools import wraps
from typing import Any

from limits_app.outbound.events import Event
from limits_app.outbound.messages import Request, Response

__all__ = ["Recorder", "Scripted", "answer", "on_a_fake_clock", "refusal", "started", "steps"]


class _Leaping(selectors.DefaultSelector):
    """Never waits: what the loop would have slept has passed at once."""

    now = 1_000.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise RuntimeError("everybody waits, and nothing will ever happen")
        self.now += timeout
        return super().select(0)


class FakeTimeLoop(asyncio.SelectorEventLoop):
    """An event loop on a clock of its own: when all tasks wait, it goes on to the next moment that somebody wants."""

    def __init__(self) -> None:
        self._leaping = _Leaping()
        super().__init__(self._leaping)

    def time(self) -> float:
        return self._leaping.now


def on_a_fake_clock(scenario: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run a test in a loop whose time is fake, and see that it leaves no task behind."""

    @wraps(scenario)
    def test(*args: Any, **options: Any) -> None:
        async def checked() -> None:
            await scenario(*args, **options)
            assert asyncio.all_tasks() == {asyncio.current_task()}

        with asyncio.Runner(loop_factory=FakeTimeLoop) as runner:
            runner.run(checked())

    return test


async def steps() -> None:
    """Let all tasks go on until each of them waits, without time passing."""
    for _ in range(20):
        await asyncio.sleep(0)


def started(call: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
    """A task that runs beside the test."""
    return asyncio.create_task(call)


def answer(status: int = 200, **headers: str) -> Response:
    """An answer with headers, whose names are written with underscores."""
    return Response(status=status, headers={name.replace("_", "-"): value for name, value in headers.items()})


def refusal(**headers: str) -> Response:
    """An answer that refuses."""
    return answer(429, **headers)


class Recorder:
    """Remembers what it was told."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def note(self, event: Event) -> None:
        self.events.append(event)

    def of(self, *kinds: type) -> list[Any]:
        """The events of some kinds."""
        return [event for event in self.events if isinstance(event, kinds)]


class Scripted:
    """A client that answers, or fails, as a test wrote down: the last of it again and again."""

    def __init__(self, script: Sequence[Response | Exception], *, takes_seconds: float = 0.0) -> None:
        self.script = list(script)
        self.takes_seconds = takes_seconds
        self.sent: list[tuple[float, Request]] = []
        self.closed = False

    @property
    def moments(self) -> list[float]:
        """When it was asked, from the first time on, in thousandths."""
        return [round(moment - self.sent[0][0], 3) for moment, _ in self.sent]

    async def send(self, request: Request) -> Response:
        self.sent.append((asyncio.get_running_loop().time(), request))
        step = self.script.pop(0) if len(self.script) > 1 else self.script[0]
        await asyncio.sleep(self.takes_seconds)
        if isinstance(step, Exception):
            raise step
        return step

    async def aclose(self) -> None:
        self.closed = True
