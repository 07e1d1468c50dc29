"""Pages to look at: why something is admitted, who used how much, what happens now, and what a change would do."""

from __future__ import annotations

from limits_app.admin.pages.usage_admin import UsageAdmin

__all__ = ["UsageAdmin"]
