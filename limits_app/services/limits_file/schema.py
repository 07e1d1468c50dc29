"""The JSON schema of limits files, made of the same table and models that read them."""

from __future__ import annotations

from typing import Any, Final

from django.db import models

from limits_app.services.limits_file.shape import LIMITS, SECTIONS, Section

__all__ = ["schema"]

_LIMITS: Final = {
    "type": "array",
    "items": {"type": "string", "maxLength": 256, "pattern": "^[^=]+=.+$"},
    "description": "Limits as people write them, such as rpm=1000/min or connections=10.",
}


def schema() -> dict[str, Any]:
    """Give the schema, for editors and for those who make such files by program."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Limits as a file",
        "type": "object",
        "additionalProperties": False,
        "properties": {
            "version": {"const": 1, "description": "The version of this format."},
            "name": {"type": "string", "minLength": 1, "maxLength": 64, "description": "Whose objects these are."},
        }
        | {section.name: _section(section) for section in SECTIONS.values()},
    }


def _section(section: Section) -> dict[str, Any]:
    if section.named:
        return {"type": ["object", "null"], "additionalProperties": _object(section)}
    return {"type": ["array", "null"], "items": _object(section)}


def _object(section: Section) -> dict[str, Any]:
    own = () if section.named else section.identity
    properties = {name: _field(section.field(name)) for name in (*own, *section.fields)}
    if section.has_limits:
        properties[LIMITS] = _LIMITS
    if section.parts is not None:
        properties[section.parts.name] = _section(section.parts)
    required = [name for name in (*own, *section.fields) if _is_required(section, name)]
    return {
        "type": "object" if required or not section.named else ["object", "null"],
        "additionalProperties": False,
        "properties": properties,
        **({"required": required} if required else {}),
    }


def _is_required(section: Section, name: str) -> bool:
    field = section.field(name)
    return not (section.named or field.blank or field.has_default() or field.null)


def _field(field: Any) -> dict[str, Any]:
    described = {"description": str(field.help_text)} if field.help_text else {}
    return described | _type(field)


def _type(field: Any) -> dict[str, Any]:
    match field:
        case models.BooleanField():
            return {"type": "boolean", "default": field.get_default()}
        case models.IntegerField():
            return {"type": "integer", "minimum": 0, "default": field.get_default()}
        case models.JSONField():
            return {"type": "object"}
        case models.DateTimeField():
            return {"type": "string", "format": "date-time"}
        case _ if field.choices:
            words = [str(word) for word, _ in field.choices]
            return {"enum": ["", *words] if field.blank else words}
        case _:
            longest = getattr(field, "max_length", None)
            return {"type": "string", **({"maxLength": longest} if longest else {})}
