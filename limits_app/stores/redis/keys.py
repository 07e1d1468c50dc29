"""Names of keys: `prefix{tag}:scope`, and what belongs to the scope.

The tag is one of 256, so that a cluster can keep keys that belong to all scopes of a tag, such as the version of the
configuration, on the same server as these scopes. A single server has only one of each, with the first tag.
"""

from __future__ import annotations

from base64 import urlsafe_b64encode
from collections.abc import Iterable
from typing import Final

TAGS: Final = [f"{number:02x}".encode() for number in range(256)]


def tag_of(scope: bytes) -> bytes:
    """Return the tag of a scope, which is given by its short key."""
    return TAGS[scope[0]]


class Keys:
    """Builds all keys, with one prefix."""

    def __init__(self, prefix: str, *, clustered: bool = False) -> None:
        self._prefix = prefix.encode()
        self.clustered = clustered
        self.channel = self._prefix + b"wake"
        """The channel on which returned amounts and changes are announced."""

    def scope(self, scope: bytes) -> bytes:
        """Return the key of the record of a scope."""
        return b"%s{%s}:%s" % (self._prefix, tag_of(scope), urlsafe_b64encode(scope).rstrip(b"="))

    def log(self, scope: bytes, limit: str) -> bytes:
        """Return the key of the log of a sliding window."""
        return b"%s:log:%s" % (self.scope(scope), limit.encode())

    def leases(self, scope: bytes, limit: str) -> bytes:
        """Return the key of the leases of a resource limit."""
        return b"%s:held:%s" % (self.scope(scope), limit.encode())

    def tag(self, scope: bytes | None) -> bytes:
        """Return the tag of the keys that scripts about a scope share with other scripts."""
        return tag_of(scope) if self.clustered and scope is not None else TAGS[0]

    def tags_of(self, scopes: Iterable[bytes]) -> list[bytes]:
        """Return the tags of scopes, in the order in which they are charged."""
        return sorted({self.tag(scope) for scope in scopes}) or TAGS[:1]

    @property
    def tags(self) -> list[bytes]:
        """All tags of shared keys."""
        return TAGS if self.clustered else TAGS[:1]

    def version(self, tag: bytes) -> bytes:
        """Return the key of the version of the configuration."""
        return b"%s{%s}:version" % (self._prefix, tag)

    def reply(self, slot: bytes, tag: bytes) -> bytes:
        """Return the key of the last reply to the caller that uses a slot."""
        return b"%s{%s}:reply:%s" % (self._prefix, tag, slot)

    def finished_usage(self, tag: bytes) -> list[bytes]:
        """Return the keys of finished usage, and of its hours."""
        return [b"%s{%s}:%s" % (self._prefix, tag, name) for name in (b"usage", b"hours")]

    def batch(self, tag: bytes) -> bytes:
        """Return the key of the usage that was collected and is not forgotten."""
        return b"%s{%s}:batch" % (self._prefix, tag)

    def definitions(self, name: bytes) -> bytes:
        """Return the key of the definitions of a schema."""
        return b"%sdefinitions:%s" % (self._prefix, name.hex().encode())
