"""Actions on rows of a list, each of which is asked about on a page of its own before it is done."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from django.contrib import messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.db import router, transaction
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils.translation import gettext, ngettext

from limits_app.core.errors import LimitsError, StoreUnavailable
from limits_app.models import AuditEvent

if TYPE_CHECKING:
    from django import forms
    from django.db.models import QuerySet
    from django.http import HttpRequest, HttpResponse

    from limits_app.admin.audited import AuditedAdmin

__all__ = ["Ask", "ConfirmedAction"]

MOST_ROWS: Final = 500
"""How many rows one action changes: it is one transaction, and others wait for its end."""


@dataclass(frozen=True, slots=True)
class Ask:
    """What an action was told: by whom, what the form says, and a key by which it is done only once."""

    actor: str
    says: dict[str, Any]
    key: str

    @property
    def reason(self) -> str:
        """Why."""
        return str(self.says["reason"])


class ConfirmedAction:
    """An action for the `actions` of an admin page; `allowed` is its permission, as `has_<allowed>_permission`.

    `do` changes one row. What it refuses, as a LimitsError, is said, and leaves no event; other rows go on.
    `warn` gets the primary keys of the changed rows, and gives a warning or nothing.
    """

    def __init__(
        self,
        name: str,
        description: Any,
        *,
        allowed: str,
        form: type[forms.Form],
        do: Callable[[Any, Ask], None],
        warn: Callable[[Sequence[int]], str] = lambda _keys: "",
    ) -> None:
        self.__name__ = name
        self.short_description = description
        self.allowed_permissions = [allowed]
        self._form = form
        self._do = do
        self._warn = warn

    def __call__(self, page: AuditedAdmin, request: HttpRequest, chosen: QuerySet[Any]) -> HttpResponse | None:
        """Ask, or do what was confirmed."""
        rows = list(chosen[: MOST_ROWS + 1])
        if len(rows) > MOST_ROWS:
            problem = gettext("Select at most %(count)s rows for this action.") % {"count": MOST_ROWS}
            page.message_user(request, problem, messages.ERROR)
            return None
        form = self._form(request.POST if "confirmed" in request.POST else None)
        if not form.is_valid():
            return self._asked(page, request, rows, form)
        self._done(page, request, rows, form.cleaned_data)
        return None

    def _asked(self, page: AuditedAdmin, request: HttpRequest, rows: Sequence[Any], form: forms.Form) -> HttpResponse:
        context = {
            **page.admin_site.each_context(request),
            "title": self.short_description,
            "opts": page.opts,
            "rows": rows,
            "form": form,
            "back": reverse(f"{page.admin_site.name}:{page.opts.app_label}_{page.opts.model_name}_changelist"),
            "media": page.media + form.media,
            "action": self.__name__,
            "checkbox": ACTION_CHECKBOX_NAME,
            "token": request.POST.get("token") or uuid.uuid4().hex,
        }
        return TemplateResponse(request, "admin/limits_app/confirm_action.html", context)

    def _done(self, page: AuditedAdmin, request: HttpRequest, rows: Sequence[Any], says: dict[str, Any]) -> None:
        token = request.POST.get("token", "")[:64] or uuid.uuid4().hex
        done: list[int] = []
        for row in rows:
            ask = Ask(
                request.user.get_username(), says, f"admin:{self.__name__}:{row._meta.model_name}:{row.pk}:{token}"
            )
            try:
                # What cannot be done is undone in the database, its event too.
                with transaction.atomic(using=router.db_for_write(AuditEvent)):
                    self._do(row, ask)
            except LimitsError as error:
                page.message_user(request, f"“{row}”: {error}", messages.ERROR)
                if isinstance(error, StoreUnavailable):
                    break  # the others would wait for it too
            else:
                done.append(row.pk)
        if done:
            said = ngettext("%(action)s: done for %(count)s row.", "%(action)s: done for %(count)s rows.", len(done))
            page.message_user(request, said % {"action": self.short_description, "count": len(done)}, messages.SUCCESS)
        if warning := self._warn(done):
            page.message_user(request, warning, messages.WARNING)
