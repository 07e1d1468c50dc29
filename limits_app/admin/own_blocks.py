"""Confirmation of a block that would also hit its author, a proxy, a private network, or everyone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from ipaddress import IPv4Network, IPv6Network, ip_network
from typing import Any, Final

from django import forms
from django.core.exceptions import ValidationError
from django.http import HttpRequest
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from limits_app import conf
from limits_app.integrations.identities import names_of
from limits_app.integrations.request import limits_of
from limits_app.models.patterns import Patterns

CONFIRM: Final = "confirm_block"
_EVERY_ADDRESS: Final = frozenset({"ip:*", "ip:0.0.0.0/0", "ip:::/0"})


class BlockForm(forms.ModelForm):  # type: ignore[type-arg]  # generic only in its type stubs
    """Has the box that confirms such a block."""

    confirm_block = forms.BooleanField(
        label=_("Confirm the block"),
        required=False,
        help_text=_("Needed for a block that also hits you, a proxy, a private network or everyone."),
    )


def check_block(request: HttpRequest, identifier: str | None, data: Any) -> None:
    """Raise ValidationError for a block (None: of everything) that needs a confirmation, and has none."""
    hit = ", ".join(_also_hit(request, identifier))
    if hit and not data.get(CONFIRM):
        raise ValidationError(
            gettext("This also blocks %(hit)s. Tick the box if that is meant; `manage.py limits unblock` lifts it.")
            % {"hit": hit}
        )


def _also_hit(request: HttpRequest, identifier: str | None) -> Iterator[str]:
    if identifier is None or identifier in _EVERY_ADDRESS:
        yield gettext("everyone")
        return
    blocked = Patterns([identifier])
    yield from (name for name in names_of(limits_of(request), {"key", "user"}, needs_user=True) if name in blocked)
    network = _network(identifier)
    if network is None:
        return
    proxies = conf.get(conf.TRUSTED_PROXIES)
    if _overlap(network, proxies):
        yield gettext("a trusted proxy")
    if network.is_private or network.is_loopback or network.is_link_local:
        yield gettext("a private network")


def _overlap(network: IPv4Network | IPv6Network, others: Iterable[IPv4Network | IPv6Network | None]) -> bool:
    return any(one is not None and one.version == network.version and one.overlaps(network) for one in others)


def _network(identifier: str) -> IPv4Network | IPv6Network | None:
    try:
        return ip_network(identifier.removeprefix("ip:")) if identifier.startswith("ip:") else None
    except ValueError:
        return None


class ConfirmedBlocks:
    """Rejects the form of a block that needs a confirmation, and then shows the box: put it before the base class."""

    block_fields: frozenset[str]
    """The fields that make or widen a block."""

    def blocked_by(self, data: Any) -> tuple[str | None] | None:
        """Return the identifier that cleaned data blocks (of None: everything); None where it blocks nobody."""
        raise NotImplementedError

    def get_form(self, request: HttpRequest, obj: Any = None, change: bool = False, **options: Any) -> Any:
        """Add the check, and the box once the form was sent."""
        page, base = self, super().get_form(request, obj, change=change, **options)  # type: ignore[misc]  # of the admin

        class Confirmed(base):  # type: ignore[misc, valid-type]  # a class made of another
            def clean(self) -> Any:
                cleaned = super().clean()
                data = self.cleaned_data
                found = page.blocked_by(data) if page.block_fields & {*self.changed_data} else None
                if found is not None:
                    try:
                        check_block(request, found[0], data)
                    except ValidationError as error:
                        self.add_error(CONFIRM, error)
                return cleaned

        return Confirmed

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> Any:
        """Show the box once the form was sent."""
        first, *others = super().get_fieldsets(request, obj)  # type: ignore[misc]  # of the admin
        fields = [name for name in first[1]["fields"] if name != CONFIRM]
        shown = [*fields, CONFIRM] if request.method == "POST" else fields
        return [(first[0], {**first[1], "fields": shown}), *others]
