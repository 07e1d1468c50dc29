"""Errors that views of the REST framework answer with, besides its own Throttled."""

from __future__ import annotations

from django.utils.translation import gettext_lazy as _
from rest_framework import status
from rest_framework.exceptions import APIException

from limits_app.core.errors import StoreUnavailable
from limits_app.integrations.refusals import seconds_of

__all__ = ["TooMuchAtOnce", "Unavailable"]


class TooMuchAtOnce(APIException):
    """422: the request costs more than can ever be admitted."""

    status_code = status.HTTP_422_UNPROCESSABLE_ENTITY
    default_detail = _("The request asks for more than can ever be admitted.")
    default_code = "too_much_at_once"


class Unavailable(APIException):
    """503: the store of the limits is down, and the policy says `block`; `wait` is when it is asked again."""

    status_code = status.HTTP_503_SERVICE_UNAVAILABLE
    default_detail = _("Limits cannot be checked at the moment. Try again in a few seconds.")
    default_code = "limits_unavailable"

    def __init__(self, error: StoreUnavailable) -> None:
        super().__init__()
        self.wait = seconds_of(error)
