"""Settings: defaults, liveness, and a clear error for whatever is wrong."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from ipaddress import IPv4Network, IPv6Network
from pathlib import Path
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.test import override_settings

from limits_app import conf
from limits_app.checks import check_settings
from limits_app.conf import StoreKind, StoreSettings, UnknownKeys


def test_every_key_has_a_check_of_its_own() -> None:
    assert len({key.check_id for key in conf.KEYS.values()}) == len(conf.KEYS)
    for name, key in conf.KEYS.items():
        assert name == key.name


@pytest.mark.parametrize(
    ("key", "given", "value"),
    [
        (conf.STATE_DIR, "/var/lib/limits", Path("/var/lib/limits")),
        (conf.STATE_DIR, Path("/var/lib/limits"), Path("/var/lib/limits")),
        (conf.UNKNOWN_KEYS, "raise", UnknownKeys.RAISE),
        (conf.UNKNOWN_KEYS, UnknownKeys.WARN, UnknownKeys.WARN),
        (conf.ENTITY_OF_REQUEST, repr, repr),
        (conf.RESOLVER_TTL_SECONDS, 0.5, 0.5),
        (conf.EXPECTED_PROCESSES, None, None),
        (conf.BREAKER_FAILURE_RATIO, 1, 1),
        (
            conf.STORES,
            {"default": {"KIND": "memory"}},
            {"default": StoreSettings(StoreKind.MEMORY, None, 48, idle_factor=7)},
        ),
        (conf.TRUSTED_PROXIES, ["10.0.0.7/8", "unix"], (IPv4Network("10.0.0.0/8"), None)),
        (conf.TRUSTED_PROXIES, ("::1",), (IPv6Network("::1"),)),
        (conf.HEADERS, "both", conf.HeaderStyle.BOTH),
        (conf.REFUSAL_HANDLER, "shop.limits.refuse", "shop.limits.refuse"),
    ],
)
def test_a_good_value_is_taken_as_it_is_meant(key: conf.SettingKey[Any], given: object, value: object) -> None:
    with override_settings(LIMITS={key.name: given}):
        assert conf.get(key) == value
        assert conf.problems() == []


def test_an_override_counts_immediately_and_ends_with_its_block() -> None:
    with override_settings(LIMITS={"MAP_MEGABYTES": 8}):
        assert conf.get(conf.MAP_MEGABYTES) == 8
        with override_settings(LIMITS=None):
            assert conf.get(conf.MAP_MEGABYTES) == 48
        assert conf.get(conf.MAP_MEGABYTES) == 8
    assert conf.get(conf.MAP_MEGABYTES) == 48


def test_a_store_has_its_own_options_and_inherits_the_others() -> None:
    stores = {"default": {"KIND": "process"}, "big": {"KIND": "process", "STATE_DIR": "/big", "MAP_MEGABYTES": 512}}
    with override_settings(LIMITS={"STORES": stores, "STATE_DIR": "/small", "STORE": "big"}):
        assert conf.store_settings("default") == StoreSettings(StoreKind.PROCESS, Path("/small"), 48, idle_factor=7)
        assert conf.store_settings() == StoreSettings(StoreKind.PROCESS, Path("/big"), 512, idle_factor=7)


def test_unknown_store_is_named_beside_the_existing_ones() -> None:
    with pytest.raises(ImproperlyConfigured, match="has no 'redis': add it, or use one of 'default'"):
        conf.store_settings("redis")


BAD_VALUES = [
    ("STORE", "a:b", "E010", "must be a letter followed by"),
    ("STORE", "missing", "E010", "LIMITS['STORES'] has no 'missing': add it, or use one of 'default'"),
    ("STORES", None, "E011", "LIMITS['STORES']: must be a dict such as {'default': {'KIND': 'process'}}, not None"),
    ("STORES", {"default": "process"}, "E011", "'default' must be a dict with a 'KIND'"),
    ("STORES", {"default": {"KIND": "file"}}, "E011", "KIND must be 'process' or 'memory' or "),
    ("STORES", {"default": {"KIND": "redis", "URL": "http://x"}}, "E011", "URL must be an address that starts with"),
    (
        "STORES",
        {"default": {"KIND": "redis", "URL": "redis://:pa/ss@redis:6379/0"}},
        "E011",
        "URL must be an address that starts with redis://, rediss:// or unix://, with special characters",
    ),
    (
        "STORES",
        {"default": {"KIND": "redis", "URL": "redis://:12/3@redis:6379/0"}},
        "E011",
        "URL must be an address that starts with redis://, rediss:// or unix://, with special characters",
    ),
    (
        "STORES",
        {"default": {"KIND": "redis", "URL": "http://:secret@redis:6379/0"}},
        "E011",
        "URL must be an address that starts with redis://, rediss:// or unix://, with special characters",
    ),
    ("STORES", {"default": {"KIND": "redis", "CLUSTER": 1}}, "E011", "CLUSTER must be True or False, not 1"),
    ("STORES", {"default": {"KIND": "redis", "PREFIX": "a{b}"}}, "E011", "PREFIX must be 1 to 32 letters, digits"),
    ("STORES", {"default": {"KIND": "redis", "REPLY_TIMEOUT_SECONDS": 0}}, "E011", "REPLY_TIMEOUT_SECONDS must be a"),
    (
        "STORES",
        {"default": {"KIND": "redis", "CACHE": "default", "URL": "redis://x"}},
        "E011",
        "'default' names its server twice, by CACHE and by URL: leave one of them out",
    ),
    ("STORES", {"default": {"KIND": "redis", "CLUSTER": True}}, "E011", "CLUSTER takes the URL of one of its servers"),
    ("STORES", {"default": {"KIND": "memory", "MAP_MEGABYTES": 1}}, "E011", "does not take 'MAP_MEGABYTES', only"),
    ("STORES", {"default": {"KIND": "process", "SIZE": 1}}, "E011", "only 'KIND', 'STATE_DIR', 'MAP_MEGABYTES'"),
    ("STORES", {"default": {"KIND": "process", "STATE_DIR": "here"}}, "E011", "STATE_DIR must be an absolute path"),
    ("STATE_DIR", "/var/\0", "E012", "must be an absolute path"),
    ("MAP_MEGABYTES", 0, "E013", "must be a whole number from 1 to 1048576, not 0"),
    ("MAP_MEGABYTES", True, "E013", "must be a whole number"),
    ("MAP_MEGABYTES", "64", "E013", "must be a whole number from 1 to 1048576, not '64'"),
    ("UNKNOWN_KEYS", "ignore", "E014", "must be 'warn' or 'raise', not 'ignore'"),
    ("ENTITY_OF_REQUEST", "identify", "E015", "must be a function that takes a request, or the dotted path of one"),
    ("ENTITY_OF_REQUEST", "a..b", "E015", "must be a function"),
    ("STORES", {"default": {"KIND": "redis", "URL": "redis://[::1"}}, "E011", "redis://"),
    ("RESOLVER_TTL_SECONDS", 10**400, "E016", "must be a number of seconds above 0 and at most 1000000000, not 1000"),
    ("RESOLVER_TTL_SECONDS", 0, "E016", "must be a number of seconds above 0 and at most 1000000000, not 0"),
    (
        "RESOLVER_TTL_SECONDS",
        float("nan"),
        "E016",
        "must be a number of seconds above 0 and at most 1000000000, not nan",
    ),
    ("RESOLVER_MAX_ENTRIES", "x" * 10_000, "E017", "must be a whole number from 1 to"),
    ("IDLE_FACTOR", 0.5, "E019", "must be a number from 1 to 1000, not 0.5"),
    ("IDLE_FACTOR", float("nan"), "E019", "must be a number from 1 to 1000, not nan"),
    ("BREAKER_FAILURE_RATIO", 0, "E033", "must be a number above 0 and at most 1, not 0"),
    ("BREAKER_FAILURE_RATIO", float("nan"), "E033", "must be a number above 0 and at most 1"),
    ("TRUSTED_PROXIES", "10.0.0.0/8", "E051", "must be a list of addresses and networks such as"),
    ("TRUSTED_PROXIES", ["10.1."], "E051", "must be a list of addresses and networks such as"),
    ("TRUSTED_PROXIES", ["0.0.0.0/0"], "E051", "must not include every address, as '0.0.0.0/0' does"),
    ("HEADERS", True, "E053", "must be 'draft' or 'legacy' or 'both' or 'none'"),
    ("REFUSAL_HANDLER", 429, "E054", "must be a function that takes a request"),
    ("ALERT_PRIVATE_TARGETS", "yes", "E070", "must be True or False"),
    ("REQUEST_ID_HEADER", "X Id", "E069", "must be 1 to 32 letters, digits"),
]


@pytest.mark.parametrize(("key", "value", "check_id", "message"), BAD_VALUES)
def test_an_invalid_value_is_rejected_and_reported(key: str, value: object, check_id: str, message: str) -> None:
    with override_settings(LIMITS={key: value}):
        with pytest.raises(ImproperlyConfigured) as caught:
            conf.get(conf.STORE)
        reports = check_settings()
    assert message in str(caught.value)
    assert len(str(caught.value)) < 250
    assert [(report.id, report.msg) for report in reports] == [(f"limits_app.{check_id}", str(caught.value))]


@pytest.mark.parametrize("value", [[], "default", 7])
def test_settings_that_are_no_dict_are_refused(value: object) -> None:
    with override_settings(LIMITS=value):
        with pytest.raises(ImproperlyConfigured, match="LIMITS must be a dict, not"):
            conf.get(conf.STORE)
        assert [report.id for report in check_settings()] == ["limits_app.E001"]


def test_several_bad_values_are_reported_together_in_the_order_of_their_ids() -> None:
    with override_settings(LIMITS={"RESOLVER_MAX_ENTRIES": 0, "STATE_DIR": 1}):
        assert [report.id for report in check_settings()] == ["limits_app.E012", "limits_app.E017"]


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("UNKNOWN_KEY", "Did you mean 'UNKNOWN_KEYS'?"),
        ("state_dir", "Did you mean 'STATE_DIR'?"),
        ("COLOUR", "The keys are ENABLED, TESTING, STORE, "),
        (7, "The keys are ENABLED, TESTING, STORE, "),
    ],
)
def test_unknown_key_is_reported_with_a_suggestion(name: object, hint: str) -> None:
    with override_settings(LIMITS={name: 1}):
        assert conf.get(conf.STORE) == "default"
        [report] = check_settings()
    assert report.id == "limits_app.E002"
    assert report.msg == f"LIMITS has an unknown key {name!r}, which has no effect"
    assert report.hint is not None
    assert report.hint.startswith(hint)


@pytest.mark.parametrize("reference", [repr, "builtins.repr"])
def test_the_function_that_identifies_is_found(reference: object) -> None:
    with override_settings(LIMITS={"ENTITY_OF_REQUEST": reference}):
        assert conf.function_of(conf.ENTITY_OF_REQUEST) is repr
        assert check_settings() == []


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("nowhere.at_all", "cannot be imported: No module named 'nowhere'"),
        ("os.no_such_name", "cannot be imported: "),
        ("os.sep", "names 'os.sep', which is not a function"),
    ],
)
def test_a_path_that_leads_to_no_function_is_reported(reference: str, message: str) -> None:
    with override_settings(LIMITS={"ENTITY_OF_REQUEST": reference}):
        with pytest.raises(ImproperlyConfigured, match=message):
            conf.function_of(conf.ENTITY_OF_REQUEST)
        assert [report.id for report in check_settings()] == ["limits_app.E018"]


async def _who(request: object) -> str:
    return "somebody"


@pytest.mark.parametrize(
    ("key", "function", "message"),
    [
        ("ENTITY_OF_REQUEST", _who, "must be a regular function, not `async def`"),
        ("API_KEY_OF_REQUEST", _who, "must be a regular function, not `async def`"),
        ("API_KEY_OF_REQUEST", lambda: "key", r"cannot be called with \(request\)"),
        ("REFUSAL_HANDLER", lambda request: None, r"cannot be called with \(request, error\)"),
    ],
)
def test_a_function_that_would_fail_with_the_first_request_is_reported(key: str, function: Any, message: str) -> None:
    with override_settings(LIMITS={key: function}):
        [report] = check_settings()
    assert report.id == "limits_app.E057"
    assert re.search(message, report.msg)


async def _refuse(request: object, error: Exception) -> None: ...


def test_a_rejection_handler_may_be_async_and_need_not_have_a_signature() -> None:
    with override_settings(LIMITS={"REFUSAL_HANDLER": _refuse, "ENTITY_OF_REQUEST": type}):
        assert check_settings() == []


def test_without_configured_settings_the_defaults_hold() -> None:
    code = "from limits_app import conf; print(conf.get(conf.MAP_MEGABYTES), conf.problems())"
    environment = {name: value for name, value in os.environ.items() if name != "DJANGO_SETTINGS_MODULE"}
    root = Path(conf.__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=root, env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "48 []"
