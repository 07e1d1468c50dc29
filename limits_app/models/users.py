"""Users as entities: each model of users has its own identifiers."""

from __future__ import annotations

from functools import cache, lru_cache
from typing import Any, Final

from django.apps import apps
from django.contrib.auth import get_user_model
from django.core.exceptions import ImproperlyConfigured, ValidationError
from django.db.models import AutoField, BigAutoField, IntegerField

from limits_app.engine import EntityName, shown
from limits_app.engine.errors import InvalidLimit
from limits_app.models.patterns import client_network
from limits_app.models.prefixes import ADDRESS, OF_REQUESTS, USER, kind_of

_COUNTED: Final = frozenset({AutoField, BigAutoField})
"""Django's own primary keys, whose values are numbers without other rules."""
_SURELY_VALID: Final = len(str(2**31))
"""Numbers with fewer digits are in the range of all columns of 32 bits or more."""
KINDS_OF_NO_USER: Final = frozenset(map(kind_of, OF_REQUESTS))
"""The kinds of identifiers that integrations make of requests, and no user has."""


def is_logged_in(user: Any) -> bool:
    """Whether a user is logged in; False for None, and for anything else that is not a user."""
    value = getattr(user, "is_authenticated", False)
    return bool(value() if callable(value) else value)


@cache
def user_model() -> Any:
    """AUTH_USER_MODEL; ImproperlyConfigured where the site has no such model."""
    return get_user_model()  # which looks for it each time


def forget_user_model() -> None:
    """Look for AUTH_USER_MODEL again, since a test has changed it."""
    user_model.cache_clear()
    _kind_of.cache_clear()


def identifier_of_user(user: Any) -> str | None:
    """Return `user:<primary key>` of a user; None for one that is not logged in, or has no primary key.

    A user of another model than AUTH_USER_MODEL is `<model name>:<primary key>`, and of a model whose name another
    model of users has `<app label>.<model name>:<primary key>`: two tables never share a counter.
    """
    if not is_logged_in(user):
        return None
    key = getattr(user, "pk", None)
    # The class of a lazy user is that of the user.
    return None if key is None or key == "" else f"{_kind_of(user.__class__)}:{key}"


def entity_name(entity: EntityName) -> str | None:
    """Return the identifier of an entity, which may be given as a user.

    Text and None (the site itself) are returned as they are, for `check_entity`.
    Raises InvalidLimit for a user that is not logged in, or not saved.
    """
    if entity is None or isinstance(entity, str) or not hasattr(entity, "is_authenticated"):
        return entity  # type: ignore[return-value]  # other values are rejected when they are used
    if not is_logged_in(entity):
        raise InvalidLimit(
            "entity must be text or a user that is logged in, not an anonymous user: all of them would share their "
            "limits. Pass entity=client_of(request), of limits_app.integrations.identity, to count by address"
        )
    name = identifier_of_user(entity)
    if name is None:
        raise InvalidLimit(f"entity must be text or a saved user, and {shown(entity)} has no primary key")
    return name


def user_key(identifier: str) -> Any:
    """The primary key of the user of AUTH_USER_MODEL that an entity stands for; None for other entities."""
    if not is_user(identifier):
        return None
    text, field = identifier.removeprefix(USER), user_model()._meta.pk
    if type(field) in _COUNTED and len(text) < _SURELY_VALID and text.isascii() and text.isdecimal():
        return int(text)  # as the field does, with fifteen calls
    try:
        return field.clean(text, None)
    except ValidationError:
        return None


def user_identifier(key: object) -> str:
    """The identifier of the entity that stands for a user of AUTH_USER_MODEL, by the primary key, in any form."""
    return f"{USER}{user_model()._meta.pk.to_python(key)}"


def has_usual_key(identifier: str) -> bool:
    """Whether the identifier of a user has a primary key that is known to be in its usual form, which is quick to see.

    Other numbers, such as `05`, mean the same user, and so do digits that are the hexadecimal form of a UUID.
    """
    text = identifier.removeprefix(USER)
    is_usual = text.isascii() and text.isdecimal() and not text.startswith("0")
    return is_usual and isinstance(user_model()._meta.pk, IntegerField)


def is_user(identifier: str) -> bool:
    """Whether an entity may stand for a user of AUTH_USER_MODEL."""
    return identifier.startswith(USER)


def identifiers_of_client(identifier: str) -> tuple[str, ...]:
    """The identifiers by whose rows a client is found: its own, and another one that means the same client."""
    other = None
    if identifier.startswith(ADDRESS):
        other = client_network(identifier)
    elif is_user(identifier) and not has_usual_key(identifier):
        key = user_key(identifier)
        other = None if key is None else user_identifier(key)
    return (identifier,) if other in {None, identifier} else (identifier, str(other))


def is_user_of_site(user: Any) -> bool:
    """Whether a user is of AUTH_USER_MODEL, or of a model that inherits from it and has its primary keys."""
    return _is_of_site(user.__class__)


def _is_of_site(model: type) -> bool:
    try:
        return issubclass(model, user_model())
    except ImproperlyConfigured:  # the site has no such model
        return False


@lru_cache(maxsize=64)
def _kind_of(model: type) -> str:
    """Return the kind of the users of a class."""
    meta = getattr(model, "_meta", None)
    # A user without a model, such as one of a token, stands for a user of the site.
    if meta is None or _is_of_site(model):
        return kind_of(USER)
    label: str = meta.label_lower
    name = label.rpartition(".")[2]
    namesakes = [
        model for model in apps.get_models() if model._meta.model_name == name and hasattr(model, "is_authenticated")
    ]
    is_taken = name == kind_of(USER) or name in KINDS_OF_NO_USER
    return label if is_taken or len(namesakes) > 1 else name
