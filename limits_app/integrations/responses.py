"""Responses: what a URL rule keeps charged once the response of a request was made, and what the request has cost."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeVar

from django.http import HttpRequest
from django.http.response import HttpResponseBase

from limits_app.engine.errors import InvalidLimit, InvalidRequest
from limits_app.integrations.charges import Charge
from limits_app.services.integration import HEADER_COST, Amount, GivenAmount, parse_amount

if TYPE_CHECKING:
    from limits_app.integrations.request import RequestLimits

logger = logging.getLogger("limits_app")

CostFunction = Callable[[HttpRequest, HttpResponseBase], "GivenAmount | Mapping[str, GivenAmount] | None"]
F = TypeVar("F", bound=CostFunction)

_COSTS: Final[dict[str, CostFunction]] = {}
"""The functions that URL rules may name, by the path of each."""
_REPORTED: Final = set[str]()
"""The costs of which a problem was logged; not the problems, whose text has values of responses."""


def cost_function(function: F) -> F:
    """Let URL rules name a function as the cost of a request; a decorator.

    It is called with the request and its response. It returns the amount that the request has used of each limit of the
    rule, or amounts by limit key, or None to keep the charge. Rules name it by its path, such as
    `shop.costs.of_report`; they call no other functions.
    """
    _COSTS[f"{function.__module__}.{function.__qualname__}"] = function
    return function


def settle_responses(limits: RequestLimits, response: HttpResponseBase) -> None:
    """Keep the charge for responses that count, and undo the rest; report what requests have cost."""
    for charge in limits.by_rules:
        acquisition = charge.acquisition
        if acquisition is None or acquisition.is_released:
            continue
        if charge.counts_responses and not charge.counts(response.status_code):
            if acquisition.holds_permits:  # these are held until the response was sent
                limits.uncounted.append(acquisition)
            else:
                acquisition.undo(has_run=True)
            continue
        for rule in charge.rules:
            if rule.cost and rule.counts(response.status_code):
                _report_cost(charge, rule.cost, limits.request, response)
        if charge.request is not None and charge.may_block(response.status_code):
            charge.request.count(acquisition)


def _report_cost(charge: Charge, cost: str, request: HttpRequest, response: HttpResponseBase) -> None:
    """Report the cost of a request as its usage; what the view has reported itself stays."""
    try:
        named = _cost_of(cost, request, response)
        if named is None:
            return
        acquisition = charge.acquisition
        if acquisition is None:
            return
        acquisition.expects_overuse, permits = True, acquisition.shape.permit_keys
        open_keys = [
            key for key, use in charge.uses().items() if use.used is None and charge.prefix + key not in permits
        ]
        costs = named if isinstance(named, Mapping) else dict.fromkeys(open_keys, named)
        charge.update({key: amount for key, amount in costs.items() if key in open_keys})
    except (InvalidLimit, InvalidRequest) as error:
        _report_once(cost, f"has an invalid value, and the request keeps what it was charged: {error}")
    except Exception:
        logger.exception("the cost %s failed: the request keeps what it was charged", cost)


def _cost_of(cost: str, request: HttpRequest, response: HttpResponseBase) -> Any:
    if not cost.startswith(HEADER_COST):
        function = _COSTS.get(cost)
        if function is None:
            _report_once(cost, "is not a function with @cost_function, or its module was not imported")
        return None if function is None else function(request, response)
    text = response.headers.get(cost.removeprefix(HEADER_COST))
    return None if text is None else _amounts(text)


def _amounts(text: str) -> Amount | Mapping[str, Amount]:
    """Read a header: one amount such as `12`, or amounts by key such as `tokens=12, calls=1`."""
    if "=" not in text:
        return parse_amount(text.strip())
    pairs = [word.partition("=") for word in text.split(",")]
    return {key.strip(): parse_amount(amount.strip()) for key, _, amount in pairs}


def _report_once(cost: str, problem: str) -> None:
    """Log the first problem of a cost: responses may have any number of different invalid values."""
    if cost not in _REPORTED:
        _REPORTED.add(cost)
        logger.error("the cost %s %s", cost, problem)
