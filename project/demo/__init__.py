"""The demo: a site with real server processes, whose limits are set in the admin and checked from outside."""

__all__ = ["DemoFailed"]


class DemoFailed(Exception):
    """The demo cannot go on; the message says what it expected and what it found."""
