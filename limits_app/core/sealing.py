"""Sealed names: identifiers of entities in the labels of usage counts, encrypted with the secret of the site.

Stores know entities by digests, from which nobody can read a name; but usage is shown by name. Equal names give equal
texts, so that stores can add up their counts: this is AES in its SIV mode (RFC 5297), which also detects a wrong key.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Final

from limits_app.core.modes import HOOKS

_TAG_LENGTH: Final = 16


def seal(name: str | None) -> str | None:
    """Return a name as a text that only a process with the same secret can read."""
    if name is None:
        return None
    from cryptography.hazmat.primitives.ciphers.aead import AESSIV  # only stores that count usage pay for its import

    return AESSIV(_keys()[0]).encrypt(name.encode("utf-8", "surrogatepass"), None).hex()


def unseal(sealed: str | None) -> str | None:
    """Return the name; a text that another secret has sealed is `unreadable:` and its tag, so that no count is lost."""
    if sealed is None:
        return None
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import AESSIV

    stored = bytes.fromhex(sealed)
    for key in _keys():
        try:
            return AESSIV(key).decrypt(stored, None).decode("utf-8", "surrogatepass")
        except InvalidTag:
            continue
    return f"unreadable:{stored[:_TAG_LENGTH].hex()}"


def _keys() -> list[bytes]:
    return [blake2b(secret, digest_size=32, person=b"limits_app label").digest() for secret in HOOKS.secrets()]
