"""The algorithm that the form of a limit chooses where none was chosen."""

from __future__ import annotations

import pytest
from django.forms import modelform_factory

from limits_app.admin.forms import LIMIT_FIELDS, LimitForm
from limits_app.models import Limit, Policy


@pytest.mark.parametrize(
    ("fields", "algorithm"),
    [
        ({"kind": "call"}, "sliding_window"),
        ({"kind": "call", "burst": "5"}, "token_bucket"),
        ({"kind": "call", "algorithm": "fixed_window"}, "fixed_window"),
        ({"kind": "rate", "key": "tokens"}, "token_bucket"),
    ],
)
def test_requests_are_counted_by_a_sliding_window(db: None, fields: dict[str, str], algorithm: str) -> None:
    form_class = modelform_factory(Limit, form=LimitForm, fields=[name for row in LIMIT_FIELDS for name in row])
    limit = Limit(policy=Policy.objects.create())
    form = form_class({"capacity": "10", "window_seconds": "1 min", **fields}, instance=limit)
    assert "sliding window for requests" in str(form["algorithm"].help_text)
    assert not form.errors
    assert form.instance.definition().algorithm == algorithm
