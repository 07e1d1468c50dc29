"""The lock of the package, which stays usable when a signal handler raises anywhere."""

from __future__ import annotations

import sys

__all__ = ["RLock"]

# Python 3.14 may run a signal handler after a `with` statement has called `__enter__`, before its block. If the handler
# raises, `__exit__` is not called, and the lock stays locked: https://github.com/python/cpython/issues/148874.
# Earlier and later versions do not. Handlers run after calls of C functions and where Python functions begin, but
# neither where these return nor where an attribute is read. So `__enter__` is a Python function that reads an attribute
# which acquires the lock, and `__exit__` remains a C function.
if sys.version_info[:2] == (3, 14):
    from _thread import RLock as _InterpreterLock

    class RLock(_InterpreterLock):  # type: ignore[misc]
        """A reentrant lock for `with` blocks; a handler that raises can leave it locked after `acquire`."""

        _acquired = property(_InterpreterLock.acquire)

        def __enter__(self) -> bool:
            """Acquire the lock; calls no function, since a handler would run after that."""
            acquired: bool = self._acquired
            return acquired

else:
    from threading import RLock
