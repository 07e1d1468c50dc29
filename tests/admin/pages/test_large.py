"""Lists with a hundred thousand rows, and overview, rejections and usage with a million."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime
from time import process_time

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from limits_app import CallLimit, limits
from limits_app.models.namespaces import current_digest
from tests.admin.rows import fill
from tests.docs.pages import ROOT

pytestmark = pytest.mark.release

NUMBERS = "WITH RECURSIVE n (i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < 999999)"
DENIALS = f"""
    INSERT INTO limits_app_denial (resource, bucket, entity, "key", minute, count, "first", "last", request_ids,
        namespace)
    {NUMBERS} SELECT 'r' || (i % 10), 'entity', 'user:' || (i % 1000), 'call_count', m, 1, m, m, printf('%012x', i), ?
    FROM (SELECT i, datetime(?, '-' || (i / 1000) || ' minutes') AS m FROM n)
"""  # noqa: S608 - of constants
SNAPSHOTS = f"""
    INSERT INTO limits_app_usagesnapshot (resource, bucket, entity, "key", period, start, admitted_milli, refused,
        namespace, plan, below)
    {NUMBERS} SELECT 'r' || (i % 10), 'entity', 'user:' || (i % 2000), 'call_count', 'hour', m, i % 9000, i % 7,
        ?, '', 0
    FROM (SELECT i, datetime(?, '-' || (i / 2000) || ' hours') AS m FROM n)
"""  # noqa: S608 - of constants
DAYS = """
    INSERT INTO limits_app_usagesnapshot (resource, bucket, entity, "key", period, start, admitted_milli, refused,
        namespace, plan, below)
    SELECT resource, bucket, entity, "key", 'day', date(start) || ' 00:00:00', sum(admitted_milli), sum(refused),
        namespace, plan, below
    FROM limits_app_usagesnapshot GROUP BY resource, bucket, entity, "key", date(start), namespace, plan, below
"""
MOST_QUERIES = 15
MOST_SECONDS = 0.5
"""Of the processor, that other programs of the machine do not add to; SQLite runs in this process."""
PAGES = (
    ("entity", ""),
    ("entity", "?p=200"),
    ("entity", "?q=user:0777"),
    ("entity", "?q=nobody"),
    ("entity", "?blocked__exact=1"),
    ("entity", "?o=1"),
    ("policy", ""),
    ("policy", "?p=200"),
    ("policy", "?q=user:0777"),
    ("policy", "?q=api/00007"),
    ("policy", "?scope=entity_on_resource"),
    ("policy", "?holds=now"),
    ("policy", "?kind=rate"),
    ("policy", "?o=4"),
    ("resource", ""),
    ("overview", ""),
    ("denial", ""),
    ("denial", "?p=50"),
    ("denial", "?entity=user:7&from=2020-01-01T00:00"),
    ("denial", "?key=call_count"),
    ("denial", "?request_id=0123456789ab"),
    ("usagesnapshot", "?span=yesterday"),
    ("usagesnapshot", "?span=today&entity=user:7"),
    ("auditevent", ""),
    ("auditevent", "?client=user:7"),
    ("auditevent", "?q=user:0777"),
    ("candidate", ""),
    ("endpoint", ""),
    ("plan", ""),
)
PICKER = "?app_label=limits_app&model_name=policy&field_name=entity"
OTHERS = (
    ("client", "?entity=user:7"),
    ("client", "?entity=user:0777"),
    ("client", "?find=0777"),
    ("client", "?find=nobody"),
    ("explain", "?resource=r1&entity=user:7"),
    ("entity_autocomplete", f"{PICKER}&term=user:07"),
    ("entity_autocomplete", f"{PICKER}&term="),
    ("exemptions", ""),
)
"""Pages about one client, searches and pickers."""


@pytest.mark.django_db(transaction=True)  # within one that changed limits, each request would read the rules again
def test_pages_are_fast_with_many_rows(admin_client: Client) -> None:
    fill(entities=100_000, policies=100_000)
    limits.set_resource_limits("r1", [CallLimit.per_minute(5)])
    now = datetime.now(UTC)
    with connection.cursor() as cursor:
        raw = cursor.connection
        raw.execute(DENIALS, [current_digest(), f"{now:%Y-%m-%d %H:%M:00}"])
        raw.execute(SNAPSHOTS, [current_digest(), f"{now:%Y-%m-%d %H:00:00}"])
        raw.execute(DAYS)
        cursor.execute("ANALYZE")
    slow = {}
    pages = [*[(f"{model}_changelist", query) for model, query in PAGES], *OTHERS]
    for name, query in pages:
        address = reverse(f"admin:limits_app_{name}") + query
        seconds, queries = [], []
        for _round in range(3):
            start = process_time()
            with CaptureQueriesContext(connection) as captured:
                assert admin_client.get(address).status_code == 200
            seconds.append(process_time() - start)
            queries.append(len(captured))
        if max(queries) > MOST_QUERIES or min(seconds) > MOST_SECONDS:
            slow[address] = queries, min(seconds)
    assert slow == {}


@pytest.mark.product
def test_pages_are_fast_with_many_rows_under_django_unfold() -> None:
    name = f"{__file__}::{test_pages_are_fast_with_many_rows.__name__}"
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "--no-cov", "-pno:cacheprovider", "-m", "", name]
    done = subprocess.run(
        [*command, "--ds=tests.browser.unfold_settings"], cwd=ROOT, check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
