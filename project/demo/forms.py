"""Parses pages of HTML: their forms with the values that a browser sends, and their errors."""

from __future__ import annotations

from dataclasses import dataclass, field
from html.parser import HTMLParser
from typing import Final

from project.demo import DemoFailed

__all__ = ["Form", "Page"]

_EMPTY_ROW: Final = "__prefix__"
_NOT_SENT: Final = {"submit", "button", "reset", "image", "file"}
_TICKED: Final = {"checkbox", "radio"}
_ERRORS: Final = {"errorlist", "errornote"}

Attributes = dict[str, str]


@dataclass(slots=True)
class Form:
    """A form: `fields` are the values that it sends, `boxes` the values of its checkboxes when they are ticked."""

    action: str
    fields: dict[str, str] = field(default_factory=dict)
    boxes: dict[str, str] = field(default_factory=dict)
    searches: dict[str, Attributes] = field(default_factory=dict)
    """Attributes of the selects with autocompletion."""

    def fill(self, **values: str | bool) -> None:
        """Enter texts and tick boxes. Raises DemoFailed, with the names of all fields, for an unknown one."""
        for name, value in values.items():
            if isinstance(value, bool) and name in self.boxes:
                self.fields.pop(name, None)
                if value:
                    self.fields[name] = self.boxes[name]
            elif isinstance(value, str) and (name in self.fields or name in self.searches):
                self.fields[name] = value
            else:
                raise DemoFailed(
                    f"the form has no field {name!r} for {value!r}; it has {', '.join(sorted(self.fields))}"
                )

    def fill_row(self, prefix: str, number: int, **values: str | bool) -> None:
        """Fill in a row of an inline, and add rows first if the page has too few."""
        while int(self._management(prefix)) <= number:
            self._add_row(prefix)
        self.fill(**{f"{prefix}-{number}-{name}": value for name, value in values.items()})

    def _management(self, prefix: str) -> str:
        total = self.fields.get(f"{prefix}-TOTAL_FORMS")
        if total is None:
            raise DemoFailed(f"the form has no inline {prefix!r}")
        return total

    def _add_row(self, prefix: str) -> None:
        number = self._management(prefix)
        empty = f"{prefix}-{_EMPTY_ROW}-"
        for inputs in (self.fields, self.boxes):
            inputs |= {
                name.replace(empty, f"{prefix}-{number}-"): value
                for name, value in inputs.items()
                if name.startswith(empty)
            }
        self.fields[f"{prefix}-TOTAL_FORMS"] = str(int(number) + 1)


class Page(HTMLParser):
    """A parsed page: its `forms` by `id` (or by action, without an id), and the `errors` that it shows."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.forms: dict[str, Form] = {}
        self.errors: list[str] = []
        self._form: Form | None = None
        self._select = self._textarea = self._error = ""
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Handle the start of an element."""
        given = {name: value or "" for name, value in attrs}
        if _ERRORS & set(given.get("class", "").split()):
            self._error = tag
        if tag == "form":
            self._form = Form(given.get("action", ""))
            self.forms[given.get("id") or self._form.action] = self._form
        elif self._form is not None:
            self._control(self._form, tag, given)

    def handle_endtag(self, tag: str) -> None:
        """Handle the end of an element."""
        if tag == self._error:
            self._error = ""
        match tag:
            case "form":
                self._form = None
            case "select":
                self._select = ""
            case "textarea":
                self._textarea = ""

    def handle_data(self, data: str) -> None:
        """Read the text of a text area or of an error."""
        if self._form is not None and self._textarea:
            typed = self._form.fields[self._textarea]
            self._form.fields[self._textarea] = typed + data if typed else data.removeprefix("\n")
        elif self._error and data.strip():
            self.errors.append(" ".join(data.split()))

    def _control(self, form: Form, tag: str, given: Attributes) -> None:
        name = given.get("name", "")
        match tag:
            case "input" if name:
                _add_input(form, name, given)
            case "textarea" if name:
                self._textarea = name
                form.fields[name] = ""
            case "select" if name and "multiple" not in given:
                self._select = name
                if "data-ajax--url" in given:
                    form.searches[name] = given
            case "option" if self._select and ("selected" in given or self._select not in form.fields):
                form.fields[self._select] = given.get("value", "")
            case _:
                pass


def _add_input(form: Form, name: str, given: Attributes) -> None:
    kind = given.get("type", "text")
    value = given.get("value", "on" if kind in _TICKED else "")
    if kind == "checkbox":
        form.boxes[name] = value
    if kind not in _NOT_SENT and (kind not in _TICKED or "checked" in given):
        form.fields[name] = value
