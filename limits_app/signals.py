"""Signals that the app sends."""

from __future__ import annotations

from typing import Final

from django.dispatch import Signal

__all__ = ["lease_lost", "limit_exceeded", "limits_changed"]

limits_changed: Final = Signal()
"""Configuration changed and was committed. Arguments: `using`, the alias of the database."""

limit_exceeded: Final = Signal()
"""A request was refused. Arguments: `outcome`."""

lease_lost: Final = Signal()
"""A holder outlived its lease, so its permit may belong to somebody else. Arguments: `claim`, the acquisition."""
