"""Sealing: objects as text that only who knows the site's secret key can have written.

Whoever reads a pickle runs what it says, so none is read that came from elsewhere.
"""

from __future__ import annotations

import base64
import pickle
from typing import Final

from django.core.signing import Signer

__all__ = ["opened", "sealed"]

_SALT: Final = "limits_app.workers"


def sealed(value: object) -> str:
    """Give an object as text; PicklingError, TypeError or AttributeError where it cannot travel."""
    return Signer(salt=_SALT).sign(base64.b64encode(pickle.dumps(value)).decode())


def opened(text: str) -> object:
    """Give the object back; BadSignature for text that somebody else has written."""
    return pickle.loads(base64.b64decode(Signer(salt=_SALT).unsign(text)))  # noqa: S301 - our own, as its seal says
