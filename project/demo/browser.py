"""A minimal browser for the admin: pages, forms, autocompletion of related objects."""

from __future__ import annotations

import json
from urllib.parse import urlencode, urljoin

from project.demo import DemoFailed
from project.demo.client import Answer, Client
from project.demo.forms import Form, Page
from project.demo.server import Address

__all__ = ["Browser"]


class Browser:
    """Opens pages and sends their forms; `answer` is the latest response, and `path` its path."""

    def __init__(self, address: Address) -> None:
        self.client = Client(address)
        self.path = "/"
        self.answer: Answer | None = None

    def form(self, path: str, form_id: str) -> Form:
        """Open a page and return one of its forms."""
        self.path = path
        self.answer = answer = self.client.ask(path)
        form = Page(answer.text).forms.get(form_id)
        if answer.status != 200 or form is None:
            raise DemoFailed(f"{path} has no form {form_id!r} (status {answer.status})")
        return form

    def send(self, form: Form) -> str:
        """Send a form, and return the path of the redirect. Raises DemoFailed with the errors of an invalid form."""
        self.answer = answer = self.client.ask(urljoin(self.path, form.action), form.fields)
        if answer.status != 302:
            errors = "; ".join(Page(answer.text).errors) or "it shows no error"
            raise DemoFailed(f"{self.path} rejected the form (status {answer.status}): {errors}")
        return urljoin(self.path, answer.location)

    def sign_in(self, path: str, username: str, password: str) -> None:
        """Log in with the form of a log-in page."""
        form = self.form(path, "login-form")
        form.fill(username=username, password=password)
        self.send(form)

    def choose(self, form: Form, field: str, name: str) -> None:
        """Search for a related object by its name, and choose it."""
        select = form.searches.get(field)
        if select is None:
            raise DemoFailed(f"{self.path} has no field {field!r} with autocompletion")
        query = {"term": name}
        for parameter in ("app_label", "model_name", "field_name"):
            query[parameter] = select[f"data-{parameter.replace('_', '-')}"]
        answer = self.client.ask(f"{select['data-ajax--url']}?{urlencode(query)}")
        options = {option["text"]: option["id"] for option in json.loads(answer.text)["results"]}
        if name not in options:
            raise DemoFailed(f"{self.path} offers no {name!r} for {field}, only {', '.join(options) or 'nothing'}")
        form.fill(**{field: options[name]})
