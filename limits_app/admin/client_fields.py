"""Fields in which people enter a client, by its identifier, its address or its name."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Final

from django import forms
from django.utils.html import format_html
from django.utils.safestring import SafeString

from limits_app.conf import parsed_network
from limits_app.integrations.identity import client_at
from limits_app.models.prefixes import ADDRESS
from limits_app.services.clients import client_to_change

SURE: Final = "-sure"
"""What the name of a field is followed by for the text that was shown with its problem: sent again, it is meant."""


class _ClientWidget(forms.Widget):
    """A field whose text `meant` has identifiers only, whatever clients are called."""

    meant = ""

    def render(self, name: str, *args: Any, **options: Any) -> SafeString:
        """Add that text."""
        field = super().render(name, *args, **options)
        hidden = format_html('<input type="hidden" name="{}{}" value="{}">', name, SURE, self.meant)
        return format_html("{}{}", field, hidden) if self.meant else field


class ClientInput(_ClientWidget, forms.TextInput):
    """A field for one client."""


class ClientsInput(_ClientWidget, forms.Textarea):
    """A field for several clients."""


def mean(form: forms.BaseForm, name: str, text: str) -> None:
    """Let a text in a field of a form be an identifier when it is sent again."""
    field = form.fields.get(name)
    if field is not None and isinstance(field.widget, _ClientWidget):
        field.widget.meant = text


def mean_initial(form: forms.BaseForm, name: str) -> None:
    """Let what a field begins with be an identifier: it is that of a link, or of a row."""
    if not form.is_bound:
        mean(form, name, str(form.initial.get(name) or ""))


def is_sent_again(form: forms.BaseForm, name: str) -> bool:
    """Whether the text of a field was shown with its problem before; the form that is shown next says so too."""
    text = form.cleaned_data[name].strip()
    is_sure = bool(text) and form.data.get(f"{form.add_prefix(name)}{SURE}", "").strip() == text
    mean(form, name, text if is_sure else "")
    return is_sure


def client_in(form: forms.BaseForm, name: str, *, may_be_new: bool = False) -> str:
    """The client that was entered in a field; see `client_to_change`. An address is a client, and a network a pattern.

    Raises ValidationError for a text that is not clear; sent once more, it is an identifier.
    """
    text, is_sure = form.cleaned_data[name].strip(), is_sent_again(form, name)
    try:
        return client_to_change(address_or(text), is_sure=is_sure, may_be_new=may_be_new)
    except forms.ValidationError:
        mean(form, name, text)
        raise


def address_or(text: str) -> str:
    """The client with an address, or the pattern of a network, as requests have them; another text as it is."""
    with suppress(ValueError):
        network = parsed_network(text)
        return f"{ADDRESS}{network}" if "/" in text else client_at(text)
    return text
