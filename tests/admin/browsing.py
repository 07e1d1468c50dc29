"""What a browser does with lists and actions."""

from __future__ import annotations

from typing import Any

from django.contrib.messages import get_messages
from django.test import Client
from django.urls import reverse

__all__ = ["act", "address", "changelist", "policy_form", "said"]


def address(page: str, *args: Any) -> str:
    """Where a page of the app is."""
    return reverse(f"admin:limits_app_{page}", args=args)


def changelist(client: Client, model: str, query: str = "") -> Any:
    """Ask for a list."""
    return client.get(address(f"{model}_changelist") + query, follow=True)


def act(client: Client, action: str, *rows: Any, **says: Any) -> Any:
    """Choose an action for rows; with `confirmed`, what the page that asks about it sends."""
    form = {"action": action, "_selected_action": [row.pk for row in rows], **says}
    return client.post(address(f"{rows[0]._meta.model_name}_changelist"), form)


def said(response: Any) -> list[str]:
    """The messages that the next page will show."""
    return [str(message) for message in get_messages(response.wsgi_request)]


def policy_form(*limits: dict[str, Any], existing: int = 0, **fields: Any) -> dict[str, Any]:
    """What a browser sends for a policy and its limits."""
    form = {"effect": "limits", "enforcement": "enforce", "counted": "each", "rollout_percent": 100}
    form |= {"limits-TOTAL_FORMS": len(limits), "limits-INITIAL_FORMS": existing} | fields
    for number, limit in enumerate(limits):
        form |= {f"limits-{number}-{name}": value for name, value in limit.items()}
    return form
