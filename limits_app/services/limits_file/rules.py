"""What has to fit together within one object of a limits file."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from django.utils import timezone

from limits_app.models import Endpoint, PolicyEffect
from limits_app.models.weekly_hours import WeeklyHours
from limits_app.services.limits_file.checking import Checker, noted
from limits_app.services.limits_file.shape import LIMITS, Entry

__all__ = ["check_entry"]


def check_entry(checker: Checker, entry: Entry, path: str) -> Entry:
    """Note what does not fit together, and give the entry with what goes without saying."""
    match entry.section.name:
        case "policies":
            return _policy(checker, entry, path)
        case "endpoints":
            return _endpoint(checker, entry, path)
        case "entities":
            if entry.state["unlimited"] and entry.state["blocked"]:
                checker.wrong("it cannot be both unlimited and blocked: choose one", entry, path)
        case "members":
            for text in entry.state[LIMITS]:
                if noted(text).shared:
                    checker.wrong(
                        f"{text}: the limits of a member are shared as it is: leave out “:shared”", entry, path
                    )
    return entry


def _policy(checker: Checker, entry: Entry, path: str) -> Entry:
    state = dict(entry.state)
    _, entity, valid_from, hours = entry.key
    _check_effect(checker, entry, path)
    if entity and any(noted(text).shared for text in state[LIMITS]):
        checker.wrong("limits of an entity are its own: leave out “:shared”", entry, path)
    if state["valid_until"] and not valid_from:
        checker.wrong("say “valid_from” too, so that applying the file again changes nothing", entry, path)
    elif state["valid_until"] and state["valid_until"] <= valid_from:
        checker.wrong("it ends before it begins: change “valid_from” or “valid_until”", entry, path)
    if hours and not state["time_zone"]:
        state["time_zone"] = timezone.get_default_timezone_name()
    if hours:
        try:
            WeeklyHours.parse(hours, state["time_zone"])
        except ValueError as error:
            checker.wrong(str(error), entry, f"{path}.weekly_hours")
    return replace(entry, state=state)


def _check_effect(checker: Checker, entry: Entry, path: str) -> None:
    state = entry.state
    if checker.is_wrong(f"{path}.effect"):
        return
    if state["effect"] == PolicyEffect.LIMITS:
        if not state[LIMITS] and not checker.is_wrong(f"{path}.{LIMITS}"):
            checker.wrong("write limits, or “effect: unlimited” to admit everything", entry, path)
        return
    if state[LIMITS]:
        checker.wrong(f"a policy that is {state['effect']} has no limits: remove them, or the effect", entry, path)
    if state["extends"]:
        checker.wrong("only limits can be added to broader ones: remove “extends”, or the effect", entry, path)


def _endpoint(checker: Checker, entry: Entry, path: str) -> Entry:
    state: dict[str, Any] = dict(entry.state)
    if bool(state["path"]) is bool(state["view_name"]):
        checker.wrong("give either a path or the name of a view", entry, path)
    if not state["resource"] and not checker.is_wrong(f"{path}.resource"):
        checker.wrong("say “resource”", entry, path)
    methods = Endpoint(methods=state["methods"]).method_set
    return replace(entry, state=state | {"methods": ",".join(sorted(methods))})
