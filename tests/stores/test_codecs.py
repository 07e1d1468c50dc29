"""The codecs that a store has met: one for each schema, found by schema, by name and by definitions."""

from __future__ import annotations

import pytest

from limits_app.core.limits import Blocked, CallLimit, Limit
from limits_app.core.record import new_record, schema_of
from limits_app.stores import codecs
from limits_app.stores.codecs import Codec, Codecs, definitions_of, schema_from, unpack_kept
from tests.stores.test_codec import LIMITS


@pytest.fixture
def met() -> Codecs[Codec]:
    return Codecs(Codec)


def unknown(_name: bytes) -> None:
    """No definitions are stored."""


def test_a_schema_has_one_codec_however_it_is_found(met: Codecs[Codec]) -> None:
    schema = schema_of((CallLimit(5, 60),))
    codec = met.of(schema)
    stored = codec.encode(new_record(schema))
    assert met.of(schema) is met.of_record(stored, unknown) is codec


def test_a_schema_that_was_never_met_is_read_from_its_definitions(met: Codecs[Codec]) -> None:
    written = Codec(schema_of((CallLimit(6, 60),)))
    stored = written.encode(new_record(written.schema))
    assert met.of_record(stored, unknown) is None
    read = met.of_record(stored, {written.name: written.definitions}.get)
    assert read is met.of_record(stored, unknown) is met.of(written.schema)


@pytest.mark.parametrize("definitions", [None, b"[1, [[]]]", b'[1, [["newer", 1]]]', b"?", b"1"])
def test_what_cannot_be_read_has_no_codec(met: Codecs[Codec], definitions: bytes | None) -> None:
    assert met.of_record(b"a record", lambda _name: definitions) is None


def test_as_many_as_there_are_at_most_and_then_again(met: Codecs[Codec], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codecs, "_MAX_CODECS", 2)
    schemas = [schema_of((CallLimit(most, 60),)) for most in (1, 2, 3)]
    first, *_, last = [met.of(schema) for schema in schemas]
    assert met.of_record(first.name, unknown) is None
    assert met.of_record(last.name, unknown) is last


@pytest.mark.parametrize("limit", [*LIMITS, Blocked()], ids=repr)
@pytest.mark.parametrize("counts", [False, True])
def test_a_schema_is_read_as_it_was_written(limit: Limit, counts: bool) -> None:
    schema = schema_of((limit,), 10_000_000, counts)
    assert schema_from(definitions_of(schema)) is schema


@pytest.mark.parametrize("packed", [None, b"", b"?", b"1", b'[[["newer", 1], [0], null]]', b"[[]]"])
def test_kept_use_that_cannot_be_read_is_none(packed: bytes | None) -> None:
    assert unpack_kept(packed) == {}


def test_limits_of_one_kind_that_differ_have_names_that_differ() -> None:
    names = {Codec(schema_of((limit,))).name for limit in LIMITS}
    assert len(names) == len(LIMITS)
