"""The prefixes of identifiers: what `user:42`, `ip:192.0.2.7` and `key:<digest>` begin with.

What precedes the colon is the kind of a client. Sites may have other kinds, such as `tenant:acme`.
"""

from __future__ import annotations

from typing import Final

USER: Final = "user:"
"""Users of AUTH_USER_MODEL; those of other models have the name of their model."""
ADDRESS: Final = "ip:"
"""IP addresses and networks."""
API_KEY: Final = "key:"
"""The digest of an API key."""
ACCOUNT: Final = "account:"
"""The account of an attempt to log in, or the digest of a name that no user has."""
SESSION: Final = "session:"
"""The digest of a session."""
HEADER: Final = "header:"
"""The digest of a request header, or a header that `@ratelimit` counts by."""
QUERY: Final = "get:"
"""A parameter of the query that `@ratelimit` counts by."""
FORM: Final = "post:"
"""A field of a form that `@ratelimit` counts by."""
RATELIMIT: Final = "ratelimit:"
"""The value of a function that `@ratelimit` counts by."""
THROTTLE: Final = "throttle:"
"""The cache key of a throttle of the REST framework."""
COMBINATION: Final = "part:"
"""A combination of a client with parts of a request."""
DIGEST: Final = "digest:"
"""The digest of an identifier that cannot be stored."""

OF_REQUESTS: Final = (
    *(ADDRESS, API_KEY, ACCOUNT, SESSION, HEADER, QUERY, FORM, RATELIMIT, THROTTLE, COMBINATION, DIGEST),
)
"""The prefixes that `integrations` give to what a request sends, so that clients can make any number of identifiers.

No user has them. In usage and rejections, clients with these prefixes and without a row are folded.
"""


def kind_of(identifier: str) -> str:
    """Return the kind of a client, which precedes the colon; the whole of an identifier without one."""
    return identifier.partition(":")[0]


def prefix_of(identifier: str) -> str:
    """Return the prefix that all clients of the same kind have."""
    return f"{kind_of(identifier)}:"


def each_of(prefix: str) -> str:
    """Return the pattern that all identifiers with a prefix match, such as `user:*`."""
    return f"{prefix}*"
