"""Accounts that are named by whoever wants to log in, before it is known whether they exist."""

from __future__ import annotations

from unicodedata import normalize

from limits_app.integrations.identity import sound

__all__ = ["entity_of_account"]


def entity_of_account(name: str) -> str:
    """Give `account:<name>` of a name as it was typed, the same for all that Django's forms take for the same name.

    They strip it and normalize it to NFKC; letters of either case are alike too, since many databases say so.
    """
    return sound(f"account:{normalize('NFKC', name).strip().casefold()}")
