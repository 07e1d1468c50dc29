"""What requests may say: JSON, within bounds, that can be answered and stored."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import IO, Any

from django.conf import settings
from django.utils.translation import gettext as _
from rest_framework.exceptions import ParseError
from rest_framework.negotiation import DefaultContentNegotiation
from rest_framework.parsers import JSONParser

from limits_app.api.problems import TooLarge

__all__ = ["AlwaysJSON", "BoundedJSONParser"]


class BoundedJSONParser(JSONParser):
    """Reads no more than the site admits, and refuses numbers, text and nesting that could not be written back."""

    def parse(
        self, stream: IO[Any], media_type: str | None = None, parser_context: Mapping[str, Any] | None = None
    ) -> Any:
        """Give the body as plain data; ParseError where it is none."""
        most: int | None = settings.DATA_UPLOAD_MAX_MEMORY_SIZE
        body: bytes = stream.read() if most is None else stream.read(most + 1)
        if most is not None and len(body) > most:
            raise TooLarge(_("The body is longer than %(bytes)d bytes.") % {"bytes": most})
        try:
            parsed = json.loads(body)
            json.dumps(parsed, ensure_ascii=False, allow_nan=False).encode()
        except (ValueError, RecursionError) as error:
            raise ParseError(_("The body is no JSON, or has numbers or text that JSON cannot say.")) from error
        return parsed


class AlwaysJSON(DefaultContentNegotiation):
    """There is one form of answer, whatever the client would like best."""

    def select_renderer(self, request: Any, renderers: Any, format_suffix: str | None = None) -> Any:
        """Give the only renderer."""
        return renderers[0], renderers[0].media_type
