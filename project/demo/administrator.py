"""Fills in and sends forms of the admin, as an administrator does."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final, Self

from project.demo import DemoFailed
from project.demo.browser import Browser
from project.demo.server import Address

__all__ = ["Administrator", "Limit"]

_CHANGE_PAGE: Final = re.compile(r"/(\d+)/change/$")

Limit = Mapping[str, str]
"""A row of the limits of a policy, by the names of its fields."""


class Administrator:
    """A user who is logged in to the admin."""

    def __init__(self, browser: Browser) -> None:
        self._browser = browser

    @classmethod
    def logged_in(cls, address: Address, username: str, password: str) -> Self:
        """Log in."""
        browser = Browser(address)
        browser.sign_in("/admin/login/?next=/admin/", username, password)
        return cls(browser)

    def add_user(self, username: str, password: str) -> int:
        """Add a user who can log in, and return the primary key."""
        form = self._browser.form("/admin/auth/user/add/", "user_form")
        form.fill(username=username, password1=password, password2=password)
        return _primary_key(self._browser.send(form))

    def add_resource(self, name: str, description: str) -> None:
        """Add a resource."""
        form = self._browser.form("/admin/limits_app/resource/add/", "resource_form")
        form.fill(name=name, description=description)
        self._browser.send(form)

    def add_entity(self, identifier: str, name: str) -> None:
        """Add an entity."""
        form = self._browser.form("/admin/limits_app/entity/add/", "entity_form")
        form.fill(identifier=identifier, name=name)
        self._browser.send(form)

    def add_endpoint(self, name: str, path: str, resource: str) -> None:
        """Add a URL rule: requests to the path are charged to the resource."""
        form = self._browser.form("/admin/limits_app/endpoint/add/", "endpoint_form")
        form.fill(name=name, path=path, enabled=True)
        self._browser.choose(form, "resource", resource)
        self._browser.send(form)

    def add_policy(
        self, resource: str, limits: Iterable[Limit], *, entity: str | None = None, effect: str = "limits"
    ) -> str:
        """Add the policy of a resource, or with `entity` of an entity on it; return the path of its page."""
        form = self._browser.form("/admin/limits_app/policy/add/", "policy_form")
        form.fill(effect=effect, reason="the demo")
        self._browser.choose(form, "resource", resource)
        if entity is not None:
            self._browser.choose(form, "entity", entity)
        for number, limit in enumerate(limits):
            form.fill_row("limits", number, **limit)
        form.fields["_continue"] = "Save and continue editing"
        return self._browser.send(form)

    def change_capacity(self, policy: str, capacity: int) -> None:
        """Change the capacity of the first limit of the policy with this path."""
        form = self._browser.form(policy, "policy_form")
        form.fill_row("limits", 0, capacity=str(capacity))
        self._browser.send(form)


def _primary_key(path: str) -> int:
    match = _CHANGE_PAGE.search(path)
    if match is None:
        raise DemoFailed(f"expected the page of the saved object, got {path}")
    return int(match[1])
