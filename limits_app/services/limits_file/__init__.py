"""Limits as a file: read, planned, applied and written again."""

from __future__ import annotations

from limits_app.services.limits_file.applying import apply, plan
from limits_app.services.limits_file.document import MAX_CHARACTERS, InvalidFile, Problem
from limits_app.services.limits_file.exporting import export, exported, left_out
from limits_app.services.limits_file.planning import Change, Plan, Step
from limits_app.services.limits_file.reading import DEFAULT_NAME, Content, read_content
from limits_app.services.limits_file.schema import schema

__all__ = [
    "DEFAULT_NAME",
    "MAX_CHARACTERS",
    "Change",
    "Content",
    "InvalidFile",
    "Plan",
    "Problem",
    "Step",
    "apply",
    "export",
    "exported",
    "left_out",
    "plan",
    "read_content",
    "schema",
]
