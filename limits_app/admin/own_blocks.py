"""Confirmation of a block that would also hit its author, a proxy, a private network, or everyone."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from django import forms
from django.http import HttpRequest
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from limits_app.integrations.authors import author_of
from limits_app.services import block_confirmation

CONFIRM: Final = "confirm_block"


class ConfirmBlock(forms.Form):
    """Has the box that confirms such a block."""

    confirm_block = forms.BooleanField(
        label=_("Confirm the block"),
        required=False,
        help_text=_("Required for a block that also affects you, a proxy, a private network or everyone."),
    )


class BlockForm(ConfirmBlock, forms.ModelForm):  # type: ignore[type-arg]  # generic only in its type stubs
    """The form of a row that may block a client."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.state_before = block_confirmation.state_of(self.instance) if self.instance.pk else None


def block_problem(request: HttpRequest, changes: Iterable[block_confirmation.BlockedChange]) -> str:
    """Say why changes of rows need a confirmation; empty where they need none."""
    warning = block_confirmation.warning(changes, author_of(request))
    lifting = gettext("To confirm, tick the box. `manage.py limits unblock` removes the block.")
    return f"{warning} {lifting}" if warning else ""


class ConfirmedBlocks:
    """Rejects the form of a block that needs a confirmation, and then shows the box: put it before the base class."""

    def get_form(self, request: HttpRequest, obj: Any = None, change: bool = False, **options: Any) -> Any:
        """Add the check, and the box once the form was sent."""
        base = super().get_form(request, obj, change=change, **options)  # type: ignore[misc]  # of the admin

        class Confirmed(base):  # type: ignore[misc, valid-type]  # a class made of another
            def _post_clean(self) -> None:
                super()._post_clean()  # which makes the row
                if self.errors or self.cleaned_data.get(CONFIRM):
                    return
                change = type(self.instance), self.state_before, block_confirmation.state_of(self.instance)
                if problem := block_problem(request, [change]):
                    self.add_error(CONFIRM, problem)

        return Confirmed

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> Any:
        """Show the box once the form was sent."""
        first, *others = super().get_fieldsets(request, obj)  # type: ignore[misc]  # of the admin
        fields = [name for name in first[1]["fields"] if name != CONFIRM]
        shown = [*fields, CONFIRM] if request.method == "POST" else fields
        return [(first[0], {**first[1], "fields": shown}), *others]
