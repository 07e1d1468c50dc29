"""Encryption with a key that is derived from a secret of the site: AES-SIV, which also shows changes."""

from __future__ import annotations

from functools import lru_cache
from hashlib import blake2b
from typing import TYPE_CHECKING

from limits_app.engine.runtime import present

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESSIV


def encrypted(data: bytes, purpose: bytes) -> bytes:
    """Return data that only a process with the same secret can read; equal data for a purpose are equal."""
    return _cipher(present().secrets()[0], purpose).encrypt(data, None)


def decrypted(data: bytes, purpose: bytes) -> bytes | None:
    """Return data that was encrypted for a purpose with one of the secrets; None for anything else."""
    from cryptography.exceptions import InvalidTag

    for secret in present().secrets():
        try:
            return _cipher(secret, purpose).decrypt(data, None)
        except InvalidTag:
            continue
    return None


@lru_cache(maxsize=16)
def _cipher(secret: str | bytes, purpose: bytes) -> AESSIV:
    """Return the cipher whose key is derived from a secret of the site for a purpose of at most 16 bytes."""
    from cryptography.hazmat.primitives.ciphers.aead import AESSIV  # only what encrypts pays for its import

    key = secret.encode() if isinstance(secret, str) else secret
    return AESSIV(blake2b(key, digest_size=32, person=purpose).digest())
