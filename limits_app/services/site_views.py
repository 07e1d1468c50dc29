"""The views of a site: which methods each of them answers, and whether OPTIONS runs code of the site."""

from __future__ import annotations

import sys
from collections.abc import Callable, Container, Iterator, Mapping
from inspect import getclosurevars, isfunction
from typing import Any, Final

from django.http import HttpRequest

View = Callable[..., Any]

_WRAPPERS: Final = frozenset(
    {"django.views.generic.base", "django.views.decorators.csrf", "rest_framework.views", "rest_framework.viewsets"}
)
"""The modules of functions that `as_view` makes, of `csrf_exempt`, and of `dispatch`, which is what they wrap."""
_BASES: Final = frozenset(
    {"django.views.generic.base.View", "rest_framework.views.APIView", "rest_framework.viewsets.ViewSetMixin"}
)
_ADMIN: Final = "django.contrib.admin.sites"
_FRAMEWORK: Final = "rest_framework."
MIDDLEWARE: Final = "limits_app.integrations.middleware.LimitsMiddleware"
_JSON: Final = "rest_framework.renderers.JSONRenderer"
_FUNCTIONS: Final = ("EXCEPTION_HANDLER", "VIEW_NAME_FUNCTION", "VIEW_DESCRIPTION_FUNCTION")
"""Settings of the REST framework with functions that its answers to OPTIONS call."""


def is_admin_log_in(view: View | None) -> bool:
    """Whether a view is the log-in of a site of Django's admin, also inside decorators."""
    sites = sys.modules.get(_ADMIN)  # before it is imported, the site has no admin
    log_ins = [] if sites is None else [site.login for site in sites.all_sites]
    return any(layer in log_ins for layer in _layers(view))


def is_of_admin(view: View | None) -> bool:
    """Whether a view belongs to a site of Django's admin, as a page of the site itself or of a model."""
    sites = sys.modules.get(_ADMIN)
    kinds = () if sites is None else (sites.AdminSite, sites.ModelAdmin)
    # The site notes itself at views that it wraps, and a page of a model the object whose method it is.
    names = "admin_site", "model_admin", "__self__"
    return any(isinstance(getattr(layer, name, None), kinds) for layer in _layers(view) for name in names)


def fits_method(methods: Container[str], method: str) -> bool:
    """Whether a method is one of `methods`; GET includes HEAD, for which views run the same code."""
    return method in methods or (method == "HEAD" and "GET" in methods)


def answers_options(view: View | None) -> bool:
    """Whether a view answers OPTIONS by the code of Django or of the REST framework alone, without the database.

    That is so for a class that overrides no method of `View` or `APIView`, with no decorator except `csrf_exempt`.
    In the REST framework, all its policies must be the framework's own, and it must have no serializer or queryset,
    which the description of a view reads.
    """
    kind = _class_of(view)
    if kind is None or any(_module_of(layer) not in _WRAPPERS for layer in _layers(view)):
        return False
    members = [member for base in kind.__mro__ if _name_of(base) in _BASES for member in vars(base).items()]
    code = {name for name, member in members if isfunction(member) or isinstance(member, property)}
    own = [member for name, member in members if name in code]
    if not own or any(_attribute(view, kind, name) not in own for name in code):
        return False
    return not hasattr(view, "cls") or _describes_alone(kind, view)


def renders_json(request: HttpRequest, view: View | None) -> bool:
    """Whether a view answers a request as JSON or without content; other formats may be pages, with templates.

    Browsers accept everything when they ask for permission.
    """
    kind: Any = getattr(view, "cls", None)
    if kind is None:
        return True
    match = request.resolver_match
    settings, renderers = (_attribute(view, kind, name) for name in ("settings", "renderer_classes"))
    is_chosen = settings.URL_FORMAT_OVERRIDE in request.GET or (match is not None and "format" in match.kwargs)
    return not is_chosen and request.headers.get("Accept", "*/*") == "*/*" and _name_of(renderers[0]) == _JSON


def other_methods(view: View, methods: Container[str]) -> list[str] | None:
    """Return the methods that a view answers besides `methods`, which include HEAD if GET; None if it answers any.

    OPTIONS is none of them where the answer runs no code of the site.
    """
    answered = _answered(view)
    if answered is None:
        return None
    others = sorted(method for method in answered if not fits_method(methods, method))
    return [method for method in others if not (method == "OPTIONS" and answers_options(view))]


def _answered(view: View) -> set[str] | None:
    """Return the methods that a view answers, as its class or `require_http_methods` says; None if it answers any."""
    for layer in _layers(view):
        if _module_of(layer) == "django.views.decorators.http":
            required = getclosurevars(layer).nonlocals.get("request_method_list")
            if required is not None:
                return {*required}
    kind = _class_of(view)
    if kind is None:
        return None
    handlers = getattr(view, "actions", None)
    names = [name for name in _attribute(view, kind, "http_method_names") if hasattr(kind, name)]
    return {name.upper() for name in (names if handlers is None else ["options", *handlers])}


def _describes_alone(kind: Any, view: Any) -> bool:
    """Whether the REST framework describes a view without code of the site."""
    if hasattr(kind, "get_serializer") or hasattr(kind, "get_queryset") or "options" in getattr(view, "actions", ()):
        return False
    settings = _attribute(view, kind, "settings")
    parts = [getattr(settings, name) for name in _FUNCTIONS]
    for name in dir(kind):
        if name.endswith("_class"):
            parts.append(_attribute(view, kind, name))
        elif name.endswith("_classes"):
            parts += _attribute(view, kind, name)
    # A combination of permissions is not a class, and may contain one of the site.
    return all(part is None or _is_of_framework(part) for part in parts)


def _is_of_framework(part: Any) -> bool:
    module: str = _module_of(part) if isfunction(part) else getattr(part, "__module__", "")
    return (isfunction(part) or isinstance(part, type)) and module.startswith(_FRAMEWORK)


def _class_of(view: Any) -> Any:
    """Return the class of a view of a class, of Django or of the REST framework; None for other views."""
    kind = getattr(view, "cls", None) or getattr(view, "view_class", None)
    return kind if isinstance(kind, type) and hasattr(kind, "http_method_names") else None


def _attribute(view: Any, kind: Any, name: str) -> Any:
    """Return an attribute of the instances that answer: that of the class, unless `as_view` was given another one."""
    options: Mapping[str, Any] = getattr(view, "view_initkwargs", None) or getattr(view, "initkwargs", {})
    return options[name] if name in options else getattr(kind, name)


def _layers(view: Any) -> Iterator[Any]:
    """Return a view, and what its decorators wrap, from the outside."""
    while view is not None:
        yield view
        view = getattr(view, "__wrapped__", None)


def _module_of(function: Any) -> str:
    """Return the module whose code a function runs; `wraps` gives it the name of another one."""
    name: str = getattr(function, "__globals__", {}).get("__name__", "")
    return name


def _name_of(kind: Any) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"
