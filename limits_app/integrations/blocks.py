"""Blocks that hold an acquisition: around functions, and as `with limited(...)`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, contextmanager
from contextvars import ContextVar
from typing import Final, cast

from limits_app.core.acquisition import Acquisition

__all__ = ["aenter", "aheld", "aiterated", "aleave", "enter", "held", "iterated", "leave"]

Block = AbstractContextManager[Acquisition]
AsyncBlock = AbstractAsyncContextManager[Acquisition]

_ENTERED: Final[ContextVar[tuple[tuple[object, Block | AsyncBlock], ...]]] = ContextVar(
    "limits_app_entered", default=()
)


@contextmanager
def held(acquisition: Acquisition) -> Iterator[Acquisition]:
    """Release at the end; usage that nobody reported counts as requested, and is given back when the block raises."""
    acquisition.__enter__()
    try:
        yield acquisition
    except BaseException as error:
        acquisition.__exit__(type(error), error, error.__traceback__)
        raise
    acquisition.release()


@asynccontextmanager
async def aheld(acquisition: Acquisition) -> AsyncIterator[Acquisition]:
    """`held` for asyncio, where nobody waits for a store that is far away."""
    acquisition.__enter__()
    try:
        yield acquisition
    except BaseException as error:
        await acquisition.__aexit__(type(error), error, error.__traceback__)
        raise
    await acquisition.arelease()


@contextmanager
def iterated(acquisition: Acquisition) -> Iterator[Acquisition]:
    """`held` for what is iterated: whoever stops before the end has used what was taken, and nothing has failed."""
    with held(acquisition):
        try:
            yield acquisition
        except GeneratorExit:
            acquisition.release()
            raise


@asynccontextmanager
async def aiterated(acquisition: Acquisition) -> AsyncIterator[Acquisition]:
    """`iterated` for asyncio."""
    async with aheld(acquisition):
        try:
            yield acquisition
        except GeneratorExit:
            await acquisition.arelease()
            raise


def enter(owner: object, acquisition: Acquisition) -> Acquisition:
    """Enter a block whose manager may be shared by threads and tasks, and entered again inside itself."""
    block = held(acquisition)
    _note(owner, block)
    return block.__enter__()


def leave(owner: object) -> Block:
    """The block that this thread entered last with a manager, and now leaves."""
    return cast(Block, _left(owner))


async def aenter(owner: object, acquisition: Acquisition) -> Acquisition:
    """`enter` for asyncio."""
    block = aheld(acquisition)
    _note(owner, block)
    return await block.__aenter__()


def aleave(owner: object) -> AsyncBlock:
    """The block that this task entered last with a manager, and now leaves."""
    return cast(AsyncBlock, _left(owner))


def _note(owner: object, block: Block | AsyncBlock) -> None:
    _ENTERED.set((*_ENTERED.get(), (owner, block)))


def _left(owner: object) -> Block | AsyncBlock:
    entered = _ENTERED.get()
    for place in reversed(range(len(entered))):
        if entered[place][0] is owner:
            _ENTERED.set(entered[:place] + entered[place + 1 :])
            return entered[place][1]
    raise RuntimeError("the block was entered by another task: enter and leave it in the same one")
