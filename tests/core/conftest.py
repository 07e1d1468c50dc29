"""What the tests of the core share."""

from __future__ import annotations

from hypothesis import Phase, settings

# A mutant is to be killed, not explained: no shrinking, and the same examples for every one of them.
settings.register_profile("mutants", derandomize=True, database=None, phases=[Phase.explicit, Phase.generate])
