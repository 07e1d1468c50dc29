"""What integrations use of the layers below `services`: types, constants, and checks of names and amounts."""

from __future__ import annotations

from limits_app.acquiring import Acquisition, checked_timeout
from limits_app.engine import (
    BLOCK_LEVEL,
    MAX_ENTITY_LENGTH,
    RESOURCE_PATTERN,
    Amount,
    EntityName,
    GivenAmount,
    check_entity,
    check_resource,
    checked_limits,
    checked_priority,
    is_currency,
    lower_of,
    parse_amount,
    shown,
    usage_of_units,
)
from limits_app.engine.limits import LimitDefinition, RateLimitAlgorithm
from limits_app.models import CountedBy, prefixes
from limits_app.models.namespaces import is_of_thread
from limits_app.models.patterns import is_malformed_network
from limits_app.models.plan import MAX_PLAN_LENGTH
from limits_app.models.rule_fields import HEADER_COST, CountedPart
from limits_app.models.usage import REQUEST_ID_LENGTH
from limits_app.models.users import KINDS_OF_NO_USER, entity_name, identifier_of_user, is_logged_in
from limits_app.policies import (
    LIMITED,
    Access,
    AccessTable,
    AccessVerdict,
    DefaultLimits,
    IdentityAndPlan,
    ResolutionKey,
)
from limits_app.usage.denial_counter import WEB_REQUEST

__all__ = [
    "BLOCK_LEVEL",
    "HEADER_COST",
    "KINDS_OF_NO_USER",
    "LIMITED",
    "MAX_ENTITY_LENGTH",
    "MAX_PLAN_LENGTH",
    "REQUEST_ID_LENGTH",
    "RESOURCE_PATTERN",
    "WEB_REQUEST",
    "Access",
    "AccessTable",
    "AccessVerdict",
    "Acquisition",
    "Amount",
    "CountedBy",
    "CountedPart",
    "DefaultLimits",
    "EntityName",
    "GivenAmount",
    "IdentityAndPlan",
    "LimitDefinition",
    "RateLimitAlgorithm",
    "ResolutionKey",
    "check_entity",
    "check_resource",
    "checked_limits",
    "checked_priority",
    "checked_timeout",
    "entity_name",
    "identifier_of_user",
    "is_currency",
    "is_logged_in",
    "is_malformed_network",
    "is_of_thread",
    "lower_of",
    "parse_amount",
    "prefixes",
    "shown",
    "usage_of_units",
]
