"""What the doctor finds: what is wrong, how much it matters, and what to do."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum

__all__ = ["Finding", "Severity"]


class Severity(StrEnum):
    """How much a finding matters."""

    ERROR = "error"
    """Requests are limited wrongly or not at all, or will be."""
    WARNING = "warning"
    """Something is probably not meant so."""
    INFO = "info"
    """Worth knowing."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One finding; `id` stays the same for ever, and the documentation says more about it."""

    id: str
    severity: Severity
    message: str
    advice: str

    def as_dict(self) -> dict[str, str]:
        """The finding as plain data."""
        return asdict(self)
