"""Rows to test with, sound unless a test makes them unsound, and what validation says of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.core.exceptions import ValidationError
from django.test import Client

from limits_app.models import Limit, Policy


def rate(policy: Policy | None, key: str = "tpm", text: str = "1000/min", **fields: Any) -> Limit:
    """A rate as a row."""
    return Limit(policy=policy, key=key, text=text, **fields)


def permits(policy: Policy, key: str = "connections", text: str = "10", **fields: Any) -> Limit:
    """Permits as a row."""
    return Limit(policy=policy, key=key, text=text, **fields)


def quota(policy: Policy, key: str = "tokens", text: str = "1000/day@UTC", **fields: Any) -> Limit:
    """A quota per day as a row."""
    return Limit(policy=policy, key=key, text=text, **fields)


def complaint(check: Callable[[], object], field: str | None = None) -> str:
    """What a check complains of, about one field where it is named."""
    with pytest.raises(ValidationError) as caught:
        check()
    return " ".join(caught.value.messages if field is None else caught.value.message_dict[field])


def staff(client: Client, *permissions: str) -> Client:
    """Log a member of staff in who may do just this."""
    someone = User.objects.create_user("staff", is_staff=True)
    someone.user_permissions.set(Permission.objects.filter(codename__in=permissions))
    client.force_login(someone)
    return client
