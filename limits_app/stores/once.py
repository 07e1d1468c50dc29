"""Settling once: the former place of `Settling`, which is in `limits_app.stores.in_thread`."""

from __future__ import annotations
