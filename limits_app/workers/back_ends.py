"""Back ends: where workers live, one class for each mode."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Final, Protocol, cast

from limits_app.workers.resident import Recipe
from limits_app.workers.task import Task

__all__ = ["BACK_ENDS", "BackEnd", "Mode", "mode_of"]


class BackEnd(Protocol):
    """One worker in its place: begins to make it when it is made, and performs tasks in the order of `run`."""

    def __init__(self, recipe: Recipe) -> None:
        """Start; ValueError where the recipe cannot get there."""

    def stand(self) -> None:
        """Wait until the worker is made; raises what its `__init__` raises."""

    def run(self, task: Task) -> None:
        """Take a task, and return before it has ended where the worker is somewhere else.

        Whatever happens to the worker, every task that was taken ends.
        """

    def close(self, *, wait: bool) -> None:
        """No more tasks will come: end when all have ended, and wait for that if `wait`."""

    def interrupt(self) -> None:
        """End pauses, and what is running as far as that can be done."""


@dataclass(frozen=True, slots=True)
class Mode:
    """A mode: its back end by name, so that one which is not used is not imported.

    `most_queued` is how many tasks of a worker are with the back end at the same time unless the options say so;
    `bounded` is False where that makes no sense. `wide` says that workers may be on several machines.
    `extra` is the extra of this package that installs what the mode needs, with the same name.
    """

    home: str
    most_queued: int | None = None
    bounded: bool = True
    wide: bool = False
    extra: str | None = None

    def back_end(self) -> type[BackEnd]:
        """The class of the back end; ValueError says what to install."""
        module, name = self.home.split(":")
        try:
            return cast("type[BackEnd]", getattr(import_module(module), name))
        except ImportError as error:
            if self.extra is None:
                raise
            raise ValueError(f"mode {self.extra!r} needs a package: pip install 'limits-app[{self.extra}]'") from error


# A new one is one class and one entry.
BACK_ENDS: Final[Mapping[str, Mode]] = {
    "sync": Mode("limits_app.workers.in_caller:InCaller", bounded=False),
    "thread": Mode("limits_app.workers.in_thread:InThread"),
    "process": Mode("limits_app.workers.in_process:InProcess", most_queued=100),
    "asyncio": Mode("limits_app.workers.in_event_loop:InEventLoop"),
    "celery": Mode("limits_app.workers.in_celery:InCelery", most_queued=3, wide=True, extra="celery"),
    "ray": Mode("limits_app.workers.in_ray:InRay", most_queued=3, wide=True, extra="ray"),
}


def mode_of(name: str) -> Mode:
    """The mode of a name; ValueError says which there are."""
    mode = BACK_ENDS.get(name) if isinstance(name, str) else None
    if mode is None:
        raise ValueError(f"mode {name!r} must be one of {', '.join(BACK_ENDS)}")
    return mode
