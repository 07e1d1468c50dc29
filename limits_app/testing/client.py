"""A test client for views that the URLs of the site do not have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from django.test import Client
from django.test.utils import override_settings


class SiteClient(Client):
    """Django's test client for a site with these URLs only, in a test or in `manage.py shell`.

    URLs that are appended to them later are used as well. `settings` replace those of the site while it answers a
    request, such as `{"LIMITS": {...}}`. Other options are those of `django.test.Client`, such as `headers`.
    """

    def __init__(
        self, urlpatterns: Sequence[Any], *, settings: Mapping[str, Any] | None = None, **options: Any
    ) -> None:
        super().__init__(**options)
        self._urlpatterns = urlpatterns
        self._settings = {"ALLOWED_HOSTS": ["*"], **(settings or {})}

    def request(self, **request: Any) -> Any:
        """Answer a request; see `django.test.Client`."""
        with override_settings(ROOT_URLCONF=tuple(self._urlpatterns), **self._settings):
            return super().request(**request)
