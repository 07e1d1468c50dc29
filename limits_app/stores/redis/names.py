"""Names of keys: `prefix{tag}:scope`, and what belongs to it.

The tag is one of 256, so that a cluster can keep what names every one of them (the configuration's version) beside
the scopes.
"""

from __future__ import annotations

from base64 import urlsafe_b64encode
from typing import Final

__all__ = ["TAGS", "Names", "tag_of"]

TAGS: Final = [f"{number:02x}".encode() for number in range(256)]


def tag_of(scope: bytes) -> bytes:
    """The tag of a scope by its short key."""
    return TAGS[scope[0]]


class Names:
    """Builds all keys, below one prefix."""

    def __init__(self, prefix: str, *, spread: bool = False) -> None:
        """`spread` for a cluster, where a script sees only keys with one tag."""
        self._prefix = prefix.encode()
        self._spread = spread
        self.channel = self._prefix + b"wake"

    def scope(self, scope: bytes) -> bytes:
        """The record of a scope."""
        return b"%s{%s}:%s" % (self._prefix, tag_of(scope), urlsafe_b64encode(scope).rstrip(b"="))

    def log(self, scope: bytes, limit: str) -> bytes:
        """The log of a sliding window."""
        return b"%s:log:%s" % (self.scope(scope), limit.encode())

    def leases(self, scope: bytes, limit: str) -> bytes:
        """The leases of a resource limit."""
        return b"%s:held:%s" % (self.scope(scope), limit.encode())

    def version(self, scope: bytes) -> bytes:
        """The version of the configuration, where a script that is about a scope can see it."""
        return self.version_at(tag_of(scope) if self._spread else TAGS[0])

    def version_at(self, tag: bytes) -> bytes:
        """The version of the configuration, beside the scopes with a tag."""
        return b"%s{%s}:version" % (self._prefix, tag)

    def reply(self, slot: bytes, tag: bytes | None) -> bytes:
        """The last reply that a link was given, beside the scopes with a tag."""
        return b"%s{%s}:reply:%s" % (self._prefix, tag or TAGS[0], slot.hex().encode())

    def tag(self, scope: bytes) -> bytes | None:
        """The tag that all keys of a script must have; None when any will do."""
        return tag_of(scope) if self._spread else None

    @property
    def counting_tags(self) -> list[bytes]:
        """The tags beside which there are counts."""
        return TAGS if self._spread else TAGS[:1]

    def counts(self, tag: bytes | None) -> list[bytes]:
        """What is known of the counts of the scopes with a tag (None: of all), and under which names, by hour."""
        return [b"%s{%s}:%s" % (self._prefix, tag or TAGS[0], what) for what in (b"counts", b"hours")]

    def batch(self, tag: bytes) -> bytes:
        """The counts that were collected and are not forgotten."""
        return b"%s{%s}:batch" % (self._prefix, tag)

    def definitions(self, name: bytes) -> bytes:
        """The definitions of a layout."""
        return b"%sdefinitions:%s" % (self._prefix, name.hex().encode())
