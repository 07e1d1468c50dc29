"""The stored configuration as the objects of limits files."""

from __future__ import annotations

from limits_app.services.limits_file.content import SECTIONS, FileEntry, Name, stored_pages


def stored_content(using: str) -> dict[Name, FileEntry]:
    """All objects by section and key, in the order in which a file would have them."""
    return {entry.name: entry for section in SECTIONS.values() for entry in stored_pages(section, using)}
