"""Which version of an object a form is about, so that nobody undoes unawares what somebody else has changed."""

from __future__ import annotations

import json
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final

from django.contrib.admin import ModelAdmin
from django.utils.translation import gettext

from limits_app.models.snapshots import snapshots

if TYPE_CHECKING:
    from django.http import HttpRequest, HttpResponse

    AnyAdmin = ModelAdmin[Any]
else:
    AnyAdmin = ModelAdmin  # it takes no parameter when the code runs

__all__ = ["VersionedAdmin"]

_SENT: Final = "_version"


class VersionedAdmin(AnyAdmin):
    """Refuses, once, what was entered into a form that has become old meanwhile; a form that says none is never old."""

    def get_form(self, request: HttpRequest, obj: Any = None, change: bool = False, **options: Any) -> Any:
        """Give the form, which has an error where the object is not what it was any more."""
        form = super().get_form(request, obj, change=change, **options)
        sent = request.POST.get(_SENT)
        if obj is None or not sent or sent == _version_of(obj):
            return form
        return type(form.__name__, (_Outdated, form), {})

    def render_change_form(self, request: HttpRequest, context: Any, *args: Any, **options: Any) -> HttpResponse:
        """Have the form say what it is about."""
        if options.get("obj") is not None:
            context["version"] = _version_of(options["obj"])
        return super().render_change_form(request, context, *args, **options)


class _Outdated:
    """In front of a form."""

    def clean(self) -> Any:
        form: Any = super()
        cleaned = form.clean()
        said = gettext(
            "Somebody has changed this since you opened it: look at it in another window. Saving again overwrites that."
        )
        self.add_error(None, said)  # type: ignore[attr-defined]  # of the form
        return cleaned


def _version_of(item: Any) -> str:
    """The same text as long as the database says the same of an object and its parts."""
    found = snapshots(type(item), [item.pk], item._state.db).get(item.pk)
    said = None if found is None else found.state
    return blake2b(json.dumps(said, sort_keys=True, default=str).encode(), digest_size=16).hexdigest()
