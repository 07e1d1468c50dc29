"""Blocking and erasing an entity from where people look: pages of entities, and Django's pages of users."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied, ValidationError
from django.db import router, transaction
from django.forms import HiddenInput
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import URLPattern, path, reverse
from django.utils.html import format_html_join
from django.utils.http import url_has_allowed_host_and_scheme
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from limits_app import services
from limits_app.admin.action_forms import BlockClientForm, EraseForm
from limits_app.admin.base import confirmation
from limits_app.admin.changelists import UsageListAdmin
from limits_app.admin.client_fields import SURE
from limits_app.admin.own_blocks import CONFIRM, block_problem
from limits_app.engine.errors import LimitsError
from limits_app.integrations.identity import entity_of_user
from limits_app.models import Entity, Policy, PolicyEffect
from limits_app.models.patterns import is_pattern
from limits_app.models.validators import validate_text
from limits_app.services import block_confirmation, definitions
from limits_app.services.clients import client_names, with_name
from limits_app.services.definitions import InvalidDefinition
from limits_app.services.exempt_clients import policy_of_effect
from limits_app.services.rights import Action, may, to_create_entity


class BlockingAdmin(UsageListAdmin):
    """Entities, with pages that block and erase one by identifier."""

    def get_urls(self) -> list[URLPattern]:
        """Add the URLs of these pages."""
        view = self.admin_site.admin_view
        own_transactions = transaction.non_atomic_requests(using=router.db_for_write(Entity))
        return [
            path("block/", view(self.block_view), name="limits_app_entity_block"),
            path("erase/", own_transactions(view(self.erase_view)), name="limits_app_entity_erase"),
            *super().get_urls(),
        ]

    def block_view(self, request: HttpRequest) -> HttpResponse:
        """Ask for confirmation, or block the entity; one that has no row gets one."""
        form = self._block_form(request)
        identifier = self._identifier(form)
        entity = self._entity(identifier)
        covers_many = is_pattern(identifier)
        if not may(request.user, Action.EXEMPT if covers_many else Action.BLOCK, *to_create_entity(identifier)):
            raise PermissionDenied
        block = self._pattern_blocked if covers_many else self._blocked
        shown = with_name(identifier, client_names([entity.identifier]))
        if form.is_valid() and block(request, entity, form):
            message = gettext("“%(entity)s” is blocked: all requests are rejected.") % {"entity": shown}
            self.message_user(request, message, messages.SUCCESS)
            return HttpResponseRedirect(self._back(request, identifier))
        title = gettext("Block %(entity)s") % {"entity": shown}
        explained = gettext("All requests of %(client)s will be rejected until you unblock it.") % {"client": shown}
        if form.hides_client:
            form.fields["entity"].widget.input_type = "hidden"
        if CONFIRM not in form.errors and not form[CONFIRM].value():
            form.fields[CONFIRM].widget = HiddenInput()
        back = self._back(request, identifier)
        explained = explained if form.hides_client and identifier else ""
        return confirmation(self, request, form, title=title, back=back, explained=explained)

    def erase_view(self, request: HttpRequest) -> HttpResponse:
        """Ask for confirmation, or erase the identifier of an entity, which needs no row."""
        if not may(request.user, Action.ERASE):
            raise PermissionDenied
        initial = {"entity": request.GET.get("entity", "")}
        form = EraseForm(request.POST if request.method == "POST" else None, initial=initial)
        if not may(request.user, Action.ERASE_POLICIES):
            del form.fields["with_policies"]
        if form.is_valid() and self._erased(request, form):
            return HttpResponseRedirect(self.list_or_index(request))
        return confirmation(self, request, form, title=gettext("Erase an identifier"), back=self.list_or_index(request))

    def _erased(self, request: HttpRequest, form: EraseForm) -> bool:
        """Erase the identifier, in its own transactions; errors are shown in the form."""
        data = form.cleaned_data
        try:
            erased = services.erase(
                data["entity"],
                with_policies=data.get("with_policies", False),
                reason=data["reason"],
                actor=request.user.get_username(),
                source="admin",
            )
        except LimitsError as error:
            form.add_error(None, str(error))
            return False
        message = gettext("No row has this identifier.")
        if erased.pseudonym:
            message = gettext("The identifier was replaced with “%(pseudonym)s”, in %(count)s rows.")
        self.message_user(request, message % {"pseudonym": erased.pseudonym, "count": erased.rows}, messages.SUCCESS)
        if erased.configuration and not erased.removed:
            kept = gettext("It is still configured: %(rows)s.") % {"rows": ", ".join(erased.configuration)}
            self.message_user(request, kept, messages.WARNING)
        return True

    def _block_form(self, request: HttpRequest) -> BlockClientForm:
        """The form; a client that a link names is an identifier."""
        linked = request.GET.get("entity", "")
        if request.method != "POST":
            return BlockClientForm(initial={"entity": linked})
        data = request.POST.copy()
        if not data.get("entity"):
            data["entity"] = data[f"entity{SURE}"] = linked
        return BlockClientForm(data)

    def _identifier(self, form: BlockClientForm) -> str:
        """The identifier of the client, or the text that has a problem."""
        if not form.is_bound:
            return str(form.initial["entity"])
        return str(form.data["entity"] if "entity" in form.errors else form.cleaned_data["entity"])

    def _entity(self, identifier: str) -> Entity:
        """The entity with this identifier, which need not have a row."""
        try:
            validate_text(identifier)
        except ValidationError:
            return Entity(identifier="")
        return Entity.objects.filter(identifier=identifier).first() or Entity(identifier=identifier)

    def _blocked(self, request: HttpRequest, entity: Entity, form: BlockClientForm) -> bool:
        """Block it; errors are shown in the form."""
        before = None if entity.pk is None else block_confirmation.state_of(entity)
        entity.blocked = True
        try:
            entity.full_clean()
        except ValidationError as error:
            form.add_error(None, error.messages)
            return False
        problem = block_problem(request, [(Entity, before, block_confirmation.state_of(entity))])
        if problem and not form.cleaned_data[CONFIRM]:
            form.add_error(CONFIRM, problem)
            return False
        with self.acting(request, form.cleaned_data["reason"]):
            entity.save()
        return True

    def _pattern_blocked(self, request: HttpRequest, entity: Entity, form: BlockClientForm) -> bool:
        """Block all clients of a network or a pattern, by a policy; errors are shown in the form."""
        reason = form.cleaned_data["reason"]
        with self.acting(request, reason):
            try:
                definition = policy_of_effect(PolicyEffect.BLOCKED, entity.identifier, reason=reason)
            except InvalidDefinition as error:
                form.add_error(None, str(error))
                return False
            problem = block_problem(request, [(Policy, None, block_confirmation.state_of(definition.row))])
            if problem and not form.cleaned_data[CONFIRM]:
                form.add_error(CONFIRM, problem)
                return False
            definitions.save(definition)
        return True

    def _back(self, request: HttpRequest, identifier: str) -> str:
        """The page that led here, or that of the client, or what the user may view."""
        back = request.GET.get("next", "")
        if url_has_allowed_host_and_scheme(back, allowed_hosts={request.get_host()}, require_https=request.is_secure()):
            return back
        if may(request.user, Action.VIEW_LIMITS) and not is_pattern(identifier):
            return reverse(f"{self.admin_site.name}:limits_app_client", query={"entity": identifier})
        return self.list_or_index(request)


class LimitsUserAdminMixin:
    """Adds links about limits to the pages of a user: put it before the base class of the admin of users.

    The links are shown in a section “Limits” of the form, and in the last column of the list.
    """

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        """Add the links."""
        base: Any = super()
        return [*base.get_readonly_fields(request, obj), "limits_links"]

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> Any:
        """Add the section to the form of a user that exists."""
        base: Any = super()
        fieldsets = [(title, options) for title, options in base.get_fieldsets(request, obj)]
        return fieldsets if obj is None else [*fieldsets, (_("Limits"), {"fields": ["limits_links"]})]

    def get_list_display(self, request: HttpRequest) -> Any:
        """Add the column."""
        base: Any = super()
        return [*base.get_list_display(request), "limits_links"]

    @admin.display(description=_("limits"))
    def limits_links(self, user: Any) -> str:
        """Links to the page of the user's limits, and to what blocks and limits the user."""
        entity, name = entity_of_user(user), self.admin_site.name  # type: ignore[attr-defined]  # of the admin
        if entity is None:
            return "-"
        pages = (
            ("limits_app_client", gettext("Limits and usage")),
            ("limits_app_entity_block", gettext("Block")),
            ("limits_app_limit", gettext("Limit")),
            ("limits_app_denial_changelist", gettext("Rejections")),
        )
        query = urlencode({"entity": entity})
        links = ((f"{reverse(f'{name}:{page}')}?{query}", label) for page, label in pages)
        return format_html_join(" ", '<a href="{}">{}</a>', links)
