"""What lives: objects that several threads add to and go through at the same time, without keeping them alive."""

from __future__ import annotations

from functools import partial
from typing import Generic, TypeVar
from weakref import ref

__all__ = ["Living"]

T = TypeVar("T")


class Living(Generic[T]):
    """Objects, each until nobody else refers to it.

    A `weakref.WeakSet` must not be added to while another thread goes through it.
    """

    def __init__(self) -> None:
        self._references: dict[int, ref[T]] = {}

    def add(self, one: T) -> None:
        """Have it among the others for as long as it lives."""
        number, references = id(one), self._references
        # The number is another one's only after the callback, which runs no Python: in a forked child what other
        # threads had is dropped before any lock is put right, and Python may be traced by who needs one. The reference,
        # which it is called with, is what `pop` gives where there is nothing any more.
        references[number] = ref(one, partial(references.pop, number))

    def all(self) -> list[T]:
        """Those that live now."""
        # To copy the values of a dictionary is one step, in which nobody changes it.
        found = [reference() for reference in list(self._references.values())]
        return [one for one in found if one is not None]

    def clear(self) -> None:
        """Forget all of them."""
        self._references.clear()
