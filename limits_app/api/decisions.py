"""Decisions for other programs: acquire limits, and extend, settle, renew or cancel by a token in the body."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from decimal import Decimal
from typing import Any, ClassVar, TypeVar

from django.utils import timezone
from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers
from rest_framework.exceptions import ValidationError
from rest_framework.request import Request
from rest_framework.response import Response

from limits_app.api.base import ApiView
from limits_app.api.fields import DateTimeField, Exact, StrictSerializer, validated
from limits_app.api.live_serializers import LimitStatusSerializer, Number
from limits_app.api.schema import extend_schema
from limits_app.api.serializers import DoneSerializer
from limits_app.api.throttle import DecisionThrottle
from limits_app.engine.errors import LimitExceeded
from limits_app.integrations.drf.throttle import ThrottleRejection
from limits_app.integrations.identity import entity_of_user
from limits_app.integrations.request import limits_of
from limits_app.models.validators import validate_priority
from limits_app.services import decisions
from limits_app.services.rights import Action
from limits_app.services.tokens import LONGEST_TOKEN, InvalidToken

T = TypeVar("T")

_LONGEST_AMOUNT = 32


@extend_schema_field(
    {"oneOf": [{"type": "number", "minimum": 0}, {"type": "string", "maxLength": _LONGEST_AMOUNT}]},
)
class RequestedAmountField(serializers.Field[Any, Any, Any, Any]):
    """An amount: a number, or text for an exact amount of money. The limit checks it."""

    default_error_messages: ClassVar = {"invalid": "Must be a number, or text such as “0.05”."}

    def to_internal_value(self, data: Any) -> Any:
        """Accept numbers and short text."""
        is_number = isinstance(data, int | float) and not isinstance(data, bool)
        if not is_number and not (isinstance(data, str) and len(data) <= _LONGEST_AMOUNT):
            self.fail("invalid")
        return data

    def to_representation(self, value: Any) -> Any:
        """Return money as text."""
        return str(value) if isinstance(value, Decimal) else value


def _amounts(**options: Any) -> serializers.DictField:
    return serializers.DictField(child=RequestedAmountField(), **options)


class AcquireSerializer(StrictSerializer):
    """What to acquire: by default 1 of each call and concurrency limit."""

    resource = Exact(max_length=64)
    entity = Exact(
        required=False, allow_null=True, default=None, max_length=255, help_text="The client; null: the site itself."
    )
    amounts = _amounts(required=False, allow_null=True, default=None, help_text="By the keys of the limits.")
    priority = Exact(
        required=False,
        allow_null=True,
        default=None,
        validators=[validate_priority],
        help_text="One of `PRIORITIES`; null: that of the plan or the resource.",
    )
    lease_seconds = serializers.FloatField(
        required=False,
        default=decisions.DEFAULT_LEASE_SECONDS,
        min_value=1,
        max_value=decisions.LONGEST_LEASE_SECONDS,
        help_text="How long the token is valid without renewal.",
    )
    idempotency_key = serializers.CharField(
        required=False,
        allow_null=True,
        default=None,
        max_length=255,
        help_text="A repeated request with the same key is charged no amounts again, and takes its permits again.",
    )


class DecisionSerializer(StrictSerializer):
    """An acquisition that was admitted. `token` is null where a policy has decided in place of the store."""

    token = Exact(allow_null=True)
    lease_seconds = Number()
    expires_at = DateTimeField()
    amounts = _amounts()
    degraded = serializers.BooleanField()
    limits = LimitStatusSerializer(many=True)


class TokenSerializer(StrictSerializer):
    """The token of an acquisition."""

    token = Exact(max_length=LONGEST_TOKEN)


class ExtendSerializer(TokenSerializer):
    """What to take more of the same acquisition."""

    amounts = _amounts(help_text="By the keys of the limits.")


class SettleSerializer(TokenSerializer):
    """Used amounts: the difference from the acquired amounts is refunded or recorded as debt."""

    usage = _amounts(required=False, allow_null=True, default=None, help_text="By the keys of the limits.")


class RenewedSerializer(StrictSerializer):
    """How long the token is valid now."""

    lease_seconds = Number()
    expires_at = DateTimeField()


class _DecisionView(ApiView):
    """A verb for programs that obey the limits of this site."""

    rights: ClassVar = {"POST": (Action.USE_LIMITS,)}
    throttle_classes = (DecisionThrottle,)

    def decided(self, request: Request, decide: Callable[[str], T]) -> T:
        """Call `decide` with the user who may use the token; translate its errors."""
        try:
            return decide(entity_of_user(request.user) or "")
        except LimitExceeded as error:
            limits_of(request).refuse(error)
            raise ThrottleRejection(error) from error
        except InvalidToken as error:
            raise ValidationError({"token": [str(error)]}) from error


class AcquireView(_DecisionView):
    """Acquire limits for another program."""

    @extend_schema(request=AcquireSerializer, responses=DecisionSerializer)
    def post(self, request: Request) -> Response:
        """Acquire amounts for an entity now or not at all; the token is what the program settles them by."""
        data = validated(AcquireSerializer, request.data)
        resource = data.pop("resource")
        decision = self.decided(request, lambda user: decisions.acquire_for(user, resource, **data))
        return Response(_content(decision))


class ExtendView(_DecisionView):
    """Take more for an acquisition."""

    @extend_schema(request=ExtendSerializer, responses=DecisionSerializer)
    def post(self, request: Request) -> Response:
        """Take more of the named limits, all or nothing; the answer has another token, which replaces the first."""
        data = validated(ExtendSerializer, request.data)
        decision = self.decided(request, lambda user: decisions.extend(data["token"], user, data["amounts"]))
        return Response(_content(decision))


class SettleView(_DecisionView):
    """Report the use of an acquisition, and release it."""

    @extend_schema(request=SettleSerializer, responses=DoneSerializer)
    def post(self, request: Request) -> Response:
        """Settle a token: refund unused amounts, record debt, and return permits. A token is settled once."""
        data = validated(SettleSerializer, request.data)
        self.decided(request, lambda user: decisions.settle(data["token"], user, data["usage"]))
        return Response({"done": True})


class RenewView(_DecisionView):
    """Begin the lease of an acquisition again."""

    @extend_schema(request=TokenSerializer, responses=RenewedSerializer)
    def post(self, request: Request) -> Response:
        """Hold the token and its permits for another lease, from now on."""
        data = validated(TokenSerializer, request.data)
        return Response(_lease(self.decided(request, lambda user: decisions.renew(data["token"], user))))


class CancelView(_DecisionView):
    """Give up an acquisition."""

    @extend_schema(request=TokenSerializer, responses=DoneSerializer)
    def post(self, request: Request) -> Response:
        """Return the permits, and refund the amounts where the algorithm can."""
        data = validated(TokenSerializer, request.data)
        self.decided(request, lambda user: decisions.cancel(data["token"], user))
        return Response({"done": True})


def _content(decision: decisions.Decision) -> dict[str, Any]:
    """A `DecisionSerializer`, as plain data: to make the serializers takes longer than to decide."""
    return {
        "token": decision.token,
        "amounts": {key: use.requested for key, use in decision.acquisition.acquisitions.items()},
        "degraded": decision.outcome.degraded,
        "limits": [status.as_dict() for status in decision.limits],
        **_lease(decision.lease_seconds),
    }


def _lease(lease_seconds: float) -> dict[str, Any]:
    return {"lease_seconds": lease_seconds, "expires_at": timezone.now() + timedelta(seconds=lease_seconds)}
