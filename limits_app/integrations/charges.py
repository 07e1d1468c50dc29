"""What ways in charged for one request, so that each limit is charged once however many of them see it."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from functools import partial
from operator import attrgetter
from typing import Final

from limits_app.core.acquisition import Acquisition
from limits_app.core.amounts import Amount
from limits_app.integrations.amounts import one_of_each, taken_by, the_rest
from limits_app.services import Share
from limits_app.services.asking import Asked
from limits_app.services.shadowing import ShadowedAcquisition

__all__ = ["NOTHING", "ONE_OF_EACH", "Charge", "Charges", "Key"]

Key = tuple[str, str | None]
"""A resource and an entity."""

NOTHING: Final[Mapping[str, Amount]] = {}
ONE_OF_EACH: Final = attrgetter("ones")


Charge = tuple[tuple[Acquisition, ...], Mapping[str, Amount]]
"""What ways in took of a resource for an entity, and the amounts that they named."""


class Charges(dict[Key, Charge]):
    """The charges of a request, also those that were given back."""

    def before(self, key: Key) -> Charge | None:
        """What was charged already, unless it was given back, or nothing was set that could have been taken."""
        charge = self.get(key)
        if charge is None or charge[0][-1].claim.settled:
            return None
        return charge if any(map(_took, charge[0])) else None

    def resources(self, acquisition: Acquisition) -> list[str]:
        """Of what resources an acquisition is, as far as ways in took it."""
        return [resource for (resource, _), (acquisitions, _) in self.items() if acquisition in acquisitions]

    def rest(self, key: Key, named: Mapping[str, Amount]) -> Asked:
        """What is still to be asked; NOTHING when that is nothing."""
        before = self.before(key) if self else None
        if before is None:
            return partial(one_of_each, named) if named else ONE_OF_EACH
        new = {name: amount for name, amount in named.items() if name not in before[1]}
        return partial(the_rest, taken_by(before[0]), new) if new else NOTHING

    def note(self, key: Key, named: Mapping[str, Amount], acquisition: Acquisition) -> None:
        """Add what was taken; an amount that is named takes the place of the 1 that was taken before."""
        before = self.before(key) if key in self else None
        if before is None:
            self[key] = (acquisition,), named
            return
        acquisitions, names = before
        for earlier in acquisitions:
            _give_back(earlier, named.keys() - names.keys())
        self[key] = (*acquisitions, acquisition), {**named, **names}

    def new(self, shares: Iterable[Share]) -> dict[Key, Share]:
        """The shares that were not charged yet, each once; what asks for nothing in particular takes 1 of each."""
        found: dict[Key, Share] = {}
        for share in shares:
            key = share.resource, share.entity
            if self.before(key) is None:
                found[key] = share if share.requested else share._replace(requested=ONE_OF_EACH)
        return found

    def withdraw(self, key: Key) -> Charge | None:
        """Forget what was charged already, and report it as not used; who asks releases it.

        None where nothing is held, or where it was taken in one step with something else.
        """
        charge = self.before(key)
        if charge is None:
            return None
        others = [one for other, (acquisitions, _) in self.items() if other != key for one in acquisitions]
        if any(one in others for one in charge[0]):
            return None
        del self[key]
        for acquisition in charge[0]:
            if not acquisition.claim.settled:
                _give_back(acquisition, acquisition.acquisitions)
        return charge

    def give_back(self, of: Container[Acquisition]) -> None:
        """Report nothing as used of what was charged and is held, calls included, as far as it is among `of`."""
        for acquisitions, _ in self.values():
            for acquisition in acquisitions:
                if not acquisition.claim.settled and acquisition in of:
                    _give_back(acquisition, acquisition.acquisitions)


def _took(acquisition: Acquisition) -> bool:
    """Whether there was anything to take, be it of what is only tried."""
    return bool(acquisition.claim.plan.limits) or isinstance(acquisition, ShadowedAcquisition)


def _give_back(acquisition: Acquisition, keys: Container[str]) -> None:
    """Report nothing as used of some limits, unless somebody reported otherwise."""
    acquisition.update({key: 0 for key, use in acquisition.acquisitions.items() if key in keys and use.used is None})
