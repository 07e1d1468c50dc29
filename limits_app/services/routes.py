"""Routes: the rules that may match a path, found by walking the segments of the path once."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from django.urls.converters import IntConverter, SlugConverter, StringConverter, UUIDConverter

from limits_app.models.validators import WILDCARD, route_pattern

_WITHIN_SEGMENT: Final = frozenset({IntConverter, SlugConverter, StringConverter, UUIDConverter})
"""Converters that never match a slash; others may."""


class Route:
    """A path with parameters or wildcards, compiled.

    Parameters of the type `path` match line breaks too, unlike Django's: a client must not avoid a rule by adding one.
    """

    __slots__ = ("_converters", "_regex", "segments")

    def __init__(self, path: str) -> None:
        """Raise ImproperlyConfigured or re.error for an invalid route."""
        pattern = route_pattern(path)
        self._regex = re.compile(pattern.regex.pattern, re.DOTALL)
        self._converters: Mapping[str, object] = pattern.converters
        self.segments = path.removeprefix("/").split("/")

    def fits(self, path: str) -> bool:
        """Whether the path of a request, without its first slash, matches this route."""
        match = self._regex.search(path)
        if match is None:
            return False
        try:
            for name, converter in self._converters.items():
                converter.to_python(match[name])  # type: ignore[attr-defined]  # Django's converters have no type
        except ValueError:
            return False
        return True

    def is_open(self, index: int) -> bool:
        """Whether a segment with parameters, or a wildcard, may match several segments of a path."""
        segment = self.segments[index]
        if segment == WILDCARD:
            return index == len(self.segments) - 1
        names = [name for name in self._converters if f"{name}>" in segment]
        return not names or any(type(self._converters[name]) not in _WITHIN_SEGMENT for name in names)


@dataclass(slots=True)
class _Node:
    """What may follow some segments: a certain segment, any one segment, any number of segments, or the end."""

    certain: dict[str, _Node] = field(default_factory=dict)
    any: list[_Node] = field(default_factory=list)
    open: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)


class RouteTree:
    """Finds the routes that share the literal segments of a path, however many other routes there are."""

    def __init__(self) -> None:
        self._root = _Node()
        self._depth = 0

    def add(self, route: Route, number: int) -> None:
        """Add a route under a number."""
        self._depth = max(self._depth, len(route.segments))
        node = self._root
        for index, segment in enumerate(route.segments):
            if "<" not in segment and segment != WILDCARD:
                node = node.certain.setdefault(segment, _Node())
            elif route.is_open(index):
                node.open.append(number)
                return
            else:
                node.any = node.any or [_Node()]
                node = node.any[0]
        node.ends.append(number)

    def candidates(self, path: str) -> list[int]:
        """Return the numbers of the routes that may match a path without its first slash, in no particular order."""
        if not self._depth:
            return []
        numbers: list[int] = []
        nodes = [self._root]
        for segment in path.split("/", self._depth):
            following: list[_Node] = []
            for node in nodes:
                numbers += node.open
                following += node.any
                if segment in node.certain:
                    following.append(node.certain[segment])
            nodes = following
        for node in nodes:
            numbers += node.ends
        return numbers
