"""Sealed names: identifiers of entities in the labels of usage counts, encrypted with the secret of the site.

Stores know entities by digests, from which nobody can read a name; but usage is shown by name. Equal names give equal
texts, so that stores can add up their counts. This is the SIV mode (RFC 5297) over keyed BLAKE2b and SHAKE-256: the tag
of the name is its initialization vector, and also detects a wrong key.
"""

from __future__ import annotations

from hashlib import blake2b, shake_256
from hmac import compare_digest
from typing import Final

from limits_app.core.modes import HOOKS

_TAG_LENGTH: Final = 16


def seal(name: str | None) -> str | None:
    """Return a name as a text that only a process with the same secret can read."""
    if name is None:
        return None
    plain, key = name.encode("utf-8", "surrogatepass"), _keys()[0]
    tag = _tag(key, plain)
    return (tag + _masked(key, tag, plain)).hex()


def unseal(sealed: str | None) -> str | None:
    """Return the name; a text that another secret has sealed is `unreadable:` and its tag, so that no count is lost."""
    if sealed is None:
        return None
    stored = bytes.fromhex(sealed)
    tag, masked = stored[:_TAG_LENGTH], stored[_TAG_LENGTH:]
    for key in _keys():
        plain = _masked(key, tag, masked)
        if compare_digest(_tag(key, plain), tag):
            return plain.decode("utf-8", "surrogatepass")
    return f"unreadable:{tag.hex()}"


def _keys() -> list[bytes]:
    return [blake2b(secret, digest_size=32, person=b"limits_app label").digest() for secret in HOOKS.secrets()]


def _tag(key: bytes, plain: bytes) -> bytes:
    return blake2b(plain, key=key, digest_size=_TAG_LENGTH).digest()


def _masked(key: bytes, tag: bytes, content: bytes) -> bytes:
    """Encrypt or decrypt."""
    mask = shake_256(key + tag).digest(len(content))
    return bytes([one ^ other for one, other in zip(content, mask, strict=True)])
