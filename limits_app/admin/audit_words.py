"""The audit log in the language of whoever reads it; what it keeps is the same in all of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from django.contrib.admin import AllValuesFieldListFilter
from django.core.exceptions import FieldDoesNotExist
from django.template.defaultfilters import yesno
from django.utils.translation import gettext_lazy as _

from limits_app.audit.reverting import MODELS

if TYPE_CHECKING:
    from django.contrib.admin.views.main import ChangeList

__all__ = ["KindFilter", "SourceFilter", "field_in_words", "kind_in_words", "source_in_words", "value_in_words"]

_SOURCES: Final[Mapping[str, Any]] = {
    "admin": _("admin"),
    "api": _("API"),
    "code": _("code"),
    "command": _("command"),
    "import": _("import"),
    "service": _("function of the app"),
}
_OTHER_KINDS: Final[Mapping[str, Any]] = {"state": _("what was used"), "auditevent": _("audit log")}


def source_in_words(source: str) -> str:
    """Say which way a change came in; sites may have named ways of their own."""
    return str(_SOURCES.get(source, source))


def kind_in_words(object_type: str) -> str:
    """Say what kind of object an event is about."""
    model = MODELS.get(object_type)
    return str(_OTHER_KINDS.get(object_type, object_type) if model is None else model._meta.verbose_name)


def field_in_words(object_type: str, field: str) -> str:
    """Name a field as its form does, or, within parts such as `limits tpm: capacity`, that of the part."""
    found = _found(object_type, field)
    return field if found is None else ": ".join([*field.split(": ")[:-1], str(found.verbose_name)])


def value_in_words(object_type: str, field: str, value: Any) -> str:
    """Say what a field has: of what can be chosen what the form calls it."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return str(yesno(value))
    if not isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    return str(dict(getattr(_found(object_type, field), "flatchoices", ())).get(value, value))


def _found(object_type: str, field: str) -> Any:
    """The field of a model that a difference is about; None where there was one once."""
    model: Any = MODELS.get(object_type)
    *parts, name = field.split(": ")
    try:
        for part in parts:
            model = model and model._meta.get_field(part.partition(" ")[0]).related_model
        return model._meta.get_field(name) if model else None
    except FieldDoesNotExist:
        return None


class _FilterInWords(AllValuesFieldListFilter):
    """Offers what occurs, in words."""

    words: Callable[[str], str]

    def choices(self, changelist: ChangeList) -> Iterator[Any]:
        """Give the choices."""
        for choice in super().choices(changelist):
            yield {**choice, "display": type(self).words(str(choice["display"]))}


class KindFilter(_FilterInWords):
    """By the kind of object."""

    words = staticmethod(kind_in_words)


class SourceFilter(_FilterInWords):
    """By the way a change came in."""

    words = staticmethod(source_in_words)
