"""Limits as a file: read, planned, applied and written. Reading and writing YAML needs the extra `yaml`."""

from __future__ import annotations

from limits_app.services.limits_file.applying import apply, plan
from limits_app.services.limits_file.content import Content
from limits_app.services.limits_file.planning import FilePlan, PlannedChange, Step
from limits_app.services.limits_file.reading import MAX_CHARACTERS, FileProblem, InvalidFile, read_content, schema
from limits_app.services.limits_file.writing import DEFAULT_NAME, export, export_json, left_out

__all__ = [
    "DEFAULT_NAME",
    "MAX_CHARACTERS",
    "Content",
    "FilePlan",
    "FileProblem",
    "InvalidFile",
    "PlannedChange",
    "Step",
    "apply",
    "export",
    "export_json",
    "left_out",
    "plan",
    "read_content",
    "schema",
]
