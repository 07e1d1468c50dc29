"""The codecs that a store has met: one for each layout, found by layout, by name and by definitions."""

from __future__ import annotations

import pytest

from limits_app.core.record import schema_of
from limits_app.core.limits import CallLimit
from limits_app.stores import codecs
from limits_app.stores.codecs import Codecs, LayoutCodec


@pytest.fixture
def met() -> Codecs[LayoutCodec]:
    """Codecs whose names have 8 bytes."""
    return Codecs(lambda layout: LayoutCodec(layout, 8))


def test_a_layout_has_one_codec_however_it_is_found(met: Codecs[LayoutCodec]) -> None:
    layout = schema_of((CallLimit(5, 60),))
    assert met.get(layout) is None
    codec = met[layout]
    assert met[layout] is met.get(layout) is met.named(codec.name) is met.defined(codec.definitions) is codec


def test_a_layout_that_was_never_met_is_read_from_its_definitions(met: Codecs[LayoutCodec]) -> None:
    stored = LayoutCodec(schema_of((CallLimit(6, 60),)), 8)
    assert met.named(stored.name) is None
    assert met.defined(stored.definitions) is met.named(stored.name)


@pytest.mark.parametrize("definitions", [None, b"[1, [[]]]", b'[1, [["newer", 1]]]', b"?"])
def test_what_nobody_here_can_read_has_no_codec(met: Codecs[LayoutCodec], definitions: bytes | None) -> None:
    assert met.defined(definitions) is None


def test_as_many_as_there_are_at_most_and_then_anew(met: Codecs[LayoutCodec], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codecs, "_MOST", 2)
    layouts = [schema_of((CallLimit(most, 60),)) for most in (1, 2, 3)]
    first, *_, last = [met[layout] for layout in layouts]
    assert met.named(first.name) is None
    assert [*met] == [layouts[-1]]
    assert met.named(last.name) is last
