"""The demo: a site with real server processes, with limits that are set in the admin and checked with requests."""

__all__ = ["DemoFailed"]


class DemoFailed(Exception):
    """The demo cannot continue; the message has the expected and the actual state."""
