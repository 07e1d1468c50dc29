"""Everyday tasks in a real browser, each within a number of clicks from the first page of the admin."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest
from selenium.webdriver.common.keys import Keys

from project.demo.place import Place
from tests.browser.chromium import Browser
from tests.browser.conftest import logged_in, new_site
from tests.browser.seed import ADMIN

pytestmark = [pytest.mark.slow, pytest.mark.release, pytest.mark.product]

_YESTERDAY = datetime.now(UTC).replace(hour=10, minute=3, second=0, microsecond=0) - timedelta(days=1)
_TO_SEE = f"""
from datetime import datetime
from limits_app import CallLimit, limits
from limits_app.models import Denial
at = datetime.fromisoformat("{_YESTERDAY.isoformat()}")
Denial.objects.create(
    minute=at, first=at, last=at, resource="openai/gpt-4", key="call_count", entity="user:7", bucket="entity", count=3
)
limits.set_resource_limits("billing", [CallLimit.per_minute(60)])
"""
"""A rejection of yesterday, and a limit."""
_MODELS = "from limits_app.models import AuditEvent, Entity, Limit, Policy"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    """A site whose limits the tasks may change."""
    place = new_site(tmp_path_factory.mktemp("tasks"))
    run(place, _TO_SEE)
    return place


@pytest.fixture(scope="module")
def served(place: Place) -> Iterator[Browser]:
    """The browser of this module."""
    with logged_in(place) as window:
        yield window


def run(place: Place, code: str) -> str:
    """Run code at the site, and return what it prints."""
    return place.manage("shell", "--verbosity=0", "--command", f"{_MODELS}\n{code}").strip()


class Clicks:
    """A person at the first page of the admin, whose clicks are counted; typing is not."""

    def __init__(self, window: Browser) -> None:
        self.count = 0
        self._window = window
        window.open("admin/")

    def press(self, selector: str) -> None:
        """Click on what a CSS selector names."""
        self._window.run("window.isLeft = true")
        self._window.press(selector)
        self.count += 1

    def follow(self, path: str, within: str = "#content") -> None:
        """Click on the link to a page of the app."""
        self.press(f"{within} a[href$='/limits_app/{path}']")

    def find(self, client: str) -> None:
        """Type a client into the search, and press Enter."""
        self._window.fill("#limits-find", client)
        self._window.driver.switch_to.active_element.send_keys(Keys.ENTER)
        self._window.one(".limits-doing")

    def type(self, **texts: str) -> None:
        """Type into fields, by the id that forms give them; leave the last one."""
        for name, text in texts.items():
            self._window.fill(f"#id_{name}", text)
        self._window.driver.switch_to.active_element.send_keys(Keys.TAB)

    def type_time(self, field: str, at: datetime) -> None:
        """Type into a field for a date and a time, whose order of parts depends on the browser."""
        script = "arguments[0].value = arguments[1]"
        self._window.run(script, self._window.one(f"#{field}"), f"{at:%Y-%m-%dT%H:%M}")

    def reads(self, text: str) -> None:
        """Read what follows on what was typed."""
        self._window.until(lambda: text in self._window.text("#limits-effect"), f"{text} is not said")

    def done(self) -> str:
        """The message of success on the page that the last click led to; Django writes its first letter large."""
        self._window.until(lambda: not self._window.run("return window.isLeft"), "the page stays")
        return self._window.text(".messagelist :is(.success, .info)").lower()


def test_a_customer_gets_limits_of_requests_and_tokens(window: Browser, place: Place) -> None:
    clicks = Clicks(window)
    clicks.follow("overview/")
    clicks.follow("limitsentry/limit/")
    clicks.press(".limits-limit details summary")
    clicks.type(who="one client", entity="tenant:hooli", number_1="100")
    clicks.type(number_2="1M", unit_2="tokens", per_2="per calendar day")
    clicks.reads("use 1,000,000 tokens per day over all resources together.")
    assert window.barriers() == []
    window.take("task-customer")
    clicks.press("input[name=_save]")
    assert "tenant:hooli" in clicks.done()
    assert clicks.count <= 4
    code = "print(*Limit.objects.filter(policy__entity__identifier='tenant:hooli'))"
    assert "100" in run(place, code)
    assert "tokens=1M/day@" in run(place, code)


def test_a_team_gets_tokens_that_its_members_share(window: Browser, place: Place) -> None:
    run(place, "Entity.objects.create(identifier='team:x')")
    team = "Entity.objects.get(identifier='team:x')"
    for number in range(3):
        run(place, f"Entity.objects.create(identifier='key:x{number}', parent={team})")
    clicks = Clicks(window)
    clicks.follow("overview/")
    clicks.follow("limitsentry/limit/")
    clicks.type(who="a team", entity="team:x", number_1="1M", unit_1="tokens", per_1="per calendar day")
    clicks.reads("team:x has 3 members: key:x0, key:x1, key:x2.")
    window.take("task-team")
    clicks.press("input[name=_save]")
    assert "all members of team:x together may use 1,000,000 tokens per day" in clicks.done()
    assert clicks.count <= 4
    assert run(place, "print(Entity.objects.filter(parent__identifier='team:x', cascade=True).count())") == "3"


def test_a_team_gets_a_budget_and_a_mail_at_80_percent_of_it(window: Browser, place: Place) -> None:
    run(place, "Entity.objects.create(identifier='team:y')")
    clicks = Clicks(window)
    clicks.follow("overview/")
    clicks.follow("limitsentry/limit/")
    clicks.type(who="a team", entity="team:y", number_1="500", unit_1="USD", per_1="per calendar month")
    clicks.reads("500 USD per month")
    clicks.press("input[name=_save]")
    assert "500 usd per month" in clicks.done()
    clicks.press(".limits-alert a")
    clicks.type(target="ops@example.org")
    window.take("task-budget")
    clicks.press("input[name=_save]")
    assert "team:y 80 %" in clicks.done()
    assert clicks.count <= 5
    values = "AlertRule.objects.filter(entity='team:y').values_list('kind', 'percent', 'target')"
    code = f"from limits_app.models import AlertRule; print(*{values})"
    assert run(place, code) == "('threshold', 80, 'ops@example.org')"


def test_spend_of_each_client_of_last_month_is_a_file(window: Browser) -> None:
    clicks = Clicks(window)
    clicks.follow("activityentry/")
    clicks.follow("usagesnapshot/")
    link = window.one(".limits-spans a[href*='format=spend']")
    assert "span=last_month" in str(link.get_attribute("href"))
    clicks.press(".limits-spans a[href*='format=spend']")
    assert clicks.count <= 3


def test_a_group_gets_a_plan(window: Browser, place: Place) -> None:
    run(place, "from django.contrib.auth.models import Group; Group.objects.create(name='free')")
    clicks = Clicks(window)
    clicks.follow("limitsentry/")
    clicks.follow("plan/")
    clicks.follow("limitsentry/limit/?who=plan")
    clicks.type(plan="free", groups="free", number_1="1,000", per_1="per calendar day")
    clicks.reads("The plan “free” will be created")
    window.take("task-plan")
    clicks.press("input[name=_save]")
    assert "each member of “free” may make 1,000 requests per day" in clicks.done()
    assert clicks.count <= 4
    assert run(place, "from limits_app.models import PlanGroup; print(*PlanGroup.objects.all())") == "free"


def test_a_number_is_changed_and_the_change_undone(window: Browser, place: Place) -> None:
    run(place, "from limits_app import limits; limits.set_resource_limits('orders', '10/min')")
    policy = run(place, "print(Policy.objects.get(resource__name='orders').pk)")
    clicks = Clicks(window)
    clicks.follow("limitsentry/")
    clicks.press(f"#result_list th a[href*='limit/?policy={policy}']")
    clicks.type(number_1="20")
    clicks.reads("Replaces: 10 requests per minute.")
    clicks.press("input[name=_save]")
    assert "make 20 requests per minute" in clicks.done()
    assert clicks.count <= 3
    assert run(place, f"print(*Limit.objects.filter(policy={policy}))").startswith("calls=20/")
    assert window.barriers() == []
    window.take("task-undo-at-once")
    clicks.press("button[name=_undo]")
    assert "was undone" in clicks.done()
    assert clicks.count <= 4
    assert run(place, f"print(*Limit.objects.filter(policy={policy}))").startswith("calls=10/")


def test_a_user_is_blocked_and_unblocked(window: Browser, place: Place) -> None:
    clicks = Clicks(window)
    clicks.follow("overview/")
    window.fill("#limits-block", "user:7")
    window.take("task-block")
    clicks.press("form[action$='entity/block/'] button")
    assert "“user:7” is blocked" in clicks.done()
    assert clicks.count <= 2
    assert run(place, "print(Entity.objects.get(identifier='user:7').blocked)") == ("True")
    clicks.press("button[name=_unblock]")
    assert "is not blocked any more" in clicks.done()
    assert clicks.count <= 3
    assert run(place, "print(Entity.objects.get(identifier='user:7').blocked)") == ("False")


@pytest.mark.parametrize(("client", "ends"), [("tenant:hooli", "today"), ("tenant:globex", "friday")])
def test_a_client_is_helped_for_a_while(window: Browser, place: Place, client: str, ends: str) -> None:
    clicks = Clicks(window)
    clicks.follow("overview/")
    clicks.find(client)
    clicks.press("summary")
    window.take("task-help")
    clicks.press(f"button[name=ends][value={ends}]")
    assert "2 times its limits until" in clicks.done()
    assert clicks.count <= 3
    assert int(run(place, f"print(Policy.objects.filter(entity__identifier='{client}', extends=True).count())")) > 0


def test_a_limit_of_a_client_is_set_to_a_number_for_a_while(window: Browser, place: Place) -> None:
    run(place, "from limits_app import limits; limits.set_entity_limits('tenant:number', '10/min', resource='billing')")
    clicks = Clicks(window)
    clicks.follow("overview/")
    clicks.find("tenant:number")
    clicks.press("summary")
    clicks.type(number="75")
    window.take("task-set")
    assert window.barriers() == []
    clicks.press("button[name=ends][value=today]")
    assert "may use 75 requests per minute until" in clicks.done()
    assert clicks.count <= 3


def test_all_clients_are_boosted_by_half_until_friday(window: Browser, place: Place) -> None:
    now = datetime.now(UTC)
    friday = (now + timedelta(days=(4 - now.weekday()) % 7 or 7)).replace(hour=23, minute=59)
    clicks = Clicks(window)
    clicks.follow("overview/")
    clicks.press(".limits-advanced summary")
    clicks.follow("policy/boost/?whom=everybody")
    clicks.type(factor="1.5", reason="a sale")
    clicks.type_time("id_until", friday)
    clicks.press("input[name=confirmed]")
    window.one("input[name=listed]")
    window.take("task-boost")
    clicks.press("input[name=confirmed]")
    assert "are boosted until" in clicks.done()
    assert clicks.count <= 5
    code = "print(Limit.objects.filter(policy__resource__name='billing', policy__entity=None).count())"
    assert run(place, code) == "2"


def test_it_is_seen_why_a_user_was_rejected(window: Browser) -> None:
    clicks = Clicks(window)
    clicks.follow("activityentry/")
    window.fill("#limits-entity", "user:7")
    clicks.type_time("limits-from", _YESTERDAY)
    clicks.type_time("limits-to", _YESTERDAY)
    clicks.press(".limits-choice button")
    window.until(lambda: "entity=user" in window.driver.current_url, "nothing is shown")
    window.take("task-why")
    assert "user:7" in window.text(".limits-rows tbody th")
    assert "openai/gpt-4" in window.text(".limits-rows tbody th")
    assert clicks.count <= 2


def test_the_heaviest_clients_of_yesterday_are_shown(window: Browser) -> None:
    clicks = Clicks(window)
    clicks.follow("activityentry/")
    clicks.follow("usagesnapshot/")
    clicks.press(".limits-spans a[href^='?span=yesterday']")
    window.take("task-usage")
    assert "tenant:acme" in window.text(".limits-columns tbody tr:first-child th")
    assert clicks.count <= 3


def test_usage_of_last_month_is_a_file(window: Browser) -> None:
    clicks = Clicks(window)
    clicks.follow("activityentry/")
    clicks.follow("usagesnapshot/")
    clicks.press("a[href*='span=last_month'][href*='format=csv']")
    assert clicks.count <= 3


@pytest.mark.parametrize("entry", ["overview/", "activityentry/"])
def test_the_change_that_a_colleague_made_yesterday_is_undone(window: Browser, place: Place, entry: str) -> None:
    resource = f"invoices-{entry.strip('/')}"
    run(
        place,
        f"""
from datetime import timedelta
from unittest import mock
from django.utils import timezone
from limits_app import audit, limits
limits.set_resource_limits("{resource}", "60/min")
yesterday = timezone.now() - timedelta(days=1)
with mock.patch.object(timezone, "now", return_value=yesterday), audit.acting(actor="carol", source="admin"):
    limits.set_resource_limits("{resource}", "2/min", reason="by mistake")
for number in range(9):
    limits.set_entity(f"tenant:{entry}{{number}}", name="later")
""",
    )
    event = run(place, "print(AuditEvent.objects.filter(reason='by mistake').latest('pk').pk)")
    clicks = Clicks(window)
    clicks.follow(entry)
    recent = window.text(".limits-long:has(.limits-list)")
    assert f"Each client on {resource}: 60 → 2 requests per minute" in recent
    assert "carol: by mistake" in recent
    clicks.follow(f"auditevent/{event}/revert/")
    window.take("task-undo")
    clicks.press(".submit-row input[type=submit]")
    assert "undone:" in clicks.done()
    assert clicks.count <= 3
    code = (
        f"print(Limit.objects.get(policy__resource__name='{resource}', policy__valid_until=None).definition().capacity)"
    )
    assert run(place, code) == "60"


def test_the_last_change_is_undone(window: Browser, place: Place) -> None:
    run(place, "from limits_app import limits; limits.set_resource_limits('atlas', '5/min')")
    run(place, "from limits_app import limits; limits.set_resource_limits('atlas', '3/min')")
    clicks = Clicks(window)
    clicks.follow("overview/")
    clicks.press("a[href$='/revert/']")
    clicks.press(".submit-row input[type=submit]")
    assert "undone:" in clicks.done()
    assert clicks.count <= 3
    assert run(place, "print(Limit.objects.get(policy__resource__name='atlas'))").startswith("calls=5/")


def test_another_limit_is_tried_and_then_enforced(window: Browser, place: Place) -> None:
    policy = run(
        place,
        "print(Policy.objects.get(resource__name='billing', entity=None, valid_until=None).pk)",
    )
    clicks = Clicks(window)
    clicks.follow("limitsentry/")
    clicks.press(f"#result_list th a[href*='limit/?policy={policy}']")
    clicks.type(number_1="33")
    clicks.press("input[name=_try]")
    window.until(lambda: "No request was evaluated so far" in window.text(), "the trial is not shown")
    assert window.barriers() == []
    window.take("task-try")
    clicks.press("input[name=confirmed]")
    assert "enforced for" in clicks.done()
    assert clicks.count <= 4
    assert run(place, f"print(*Limit.objects.filter(policy={policy}))").startswith("calls=33/")


def test_a_candidate_in_the_list_is_enforced_once_it_is_confirmed(window: Browser, place: Place) -> None:
    run(place, "from limits_app import limits; limits.set_resource_limits('queue', '9/min')")
    policy = run(place, "print(Policy.objects.get(resource__name='queue').pk)")
    run(place, f"from limits_app import limits; limits.set_candidate(Policy.objects.get(pk={policy}), '7/min')")
    clicks = Clicks(window)
    clicks.follow("limitsentry/")
    clicks.follow("candidate/")
    assert window.barriers() == []
    window.take("task-candidate")
    clicks.press("#result_list button[formaction$='/promote/']")
    clicks.press("input[name=confirmed]")
    assert "enforced for" in clicks.done()
    assert clicks.count <= 4
    assert run(place, f"print(*Limit.objects.filter(policy={policy}))").startswith("calls=7/")


def test_a_url_is_limited(window: Browser) -> None:
    clicks = Clicks(window)
    clicks.follow("overview/")
    clicks.follow("limitsentry/limit/")
    clicks.type(target="/api/aping/", number_1="1")
    clicks.reads("Each user may make 1 request per minute on /api/aping/.")
    assert "matches 1 URL" in window.text("#limits-matches")
    window.take("task-url")
    clicks.press("input[name=_save]")
    assert "/api/aping/" in clicks.done()
    assert clicks.count <= 3
    assert {window.status("api/aping/") for _ in range(4)} >= {429}


def test_a_pool_of_three_regions_serves_a_resource(window: Browser, place: Place) -> None:
    clicks = Clicks(window)
    clicks.follow("settingsentry/")
    clicks.follow("pool/add/")
    regions = ("us-east-1", "eu-west-1", "ap-south-1")
    fields = {f"members-{row}-name": region for row, region in enumerate(regions)}
    texts = {f"members-{row}-limits_text": "tokens=400k/min" for row in range(len(regions))}
    clicks.type(name="regions", **fields, **texts)
    window.take("task-pool")
    clicks.press("input[name=_save]")
    assert "regions" in clicks.done()
    window.open("admin/limits_app/resource/")
    clicks.follow("resource/add/")
    clicks.type(name="llm/claude")
    clicks.press("[aria-labelledby='select2-id_pool-container']")
    window.one(".select2-search__field").send_keys("regions")
    window.until(lambda: "regions" in window.text(".select2-results__option--highlighted"), "the pool is not found")
    window.one(".select2-search__field").send_keys(Keys.ENTER)
    clicks.press("input[name=_save]")
    clicks.done()
    assert clicks.count <= 8
    code = "print(*Limit.objects.filter(member__pool__resources__name='llm/claude'))"
    assert run(place, code) == "tokens=400k/min tokens=400k/min tokens=400k/min"


def test_everything_is_off_for_an_hour_and_back(window: Browser, place: Place) -> None:
    clicks = Clicks(window)
    clicks.follow("settingsentry/")
    clicks.follow("emergencyswitch/")
    clicks.type(reason="an outage")
    window.take("task-emergency")
    clicks.press("button[name=mode][value=off]")
    assert "an outage" in window.text(".limits-totals")
    assert window.barriers() == []
    clicks.press("input[name=confirmed]")
    assert "all limits are switched off" in clicks.done()
    assert clicks.count <= 4
    switch = "from limits_app import limits; switch = limits.emergency(); print(switch.mode, bool(switch.until))"
    assert run(place, switch) == "off True"
    clicks = Clicks(window)
    window.take("task-back")
    assert window.barriers() == []
    clicks.press(".limits-banner a")
    clicks.press("input[name=confirmed]")
    assert clicks.count <= 2
    assert run(place, switch) == "enforce False"


def test_an_office_network_is_exempted(window: Browser, place: Place) -> None:
    clicks = Clicks(window)
    clicks.follow("settingsentry/")
    clicks.follow("settingsentry/exemptions/")
    window.fill("#content [name=entity]", "203.0.113.0/24")
    window.fill("#content [name=reason]", "our office")
    window.take("task-exempt")
    clicks.press("form[aria-labelledby=limits-exempt-title] button")
    clicks.done()
    assert clicks.count <= 3
    code = "print(*Policy.objects.filter(effect='unlimited').values_list('entity__identifier', flat=True))"
    assert "203.0.113.0/24" in run(place, code)


def test_mail_is_sent_when_a_customer_reaches_80_percent(window: Browser, place: Place) -> None:
    clicks = Clicks(window)
    clicks.follow("alertsentry/")
    clicks.follow("alertrule/add/")
    clicks.type(name="near", kind="a limit has", percent="80", entity="tenant:acme", target="ops@example.org")
    window.take("task-mail")
    clicks.press("input[name=_save]")
    assert "near" in clicks.done()
    assert clicks.count <= 4
    code = (
        "from limits_app.models import AlertRule; rules = AlertRule.objects.filter(entity='tenant:acme'); "
        "print(*rules.values_list('percent', 'entity', 'target'))"
    )
    assert run(place, code) == "(80, 'tenant:acme', 'ops@example.org')"


def test_the_heaviest_clients_of_a_week_and_one_client_by_day_are_shown(window: Browser) -> None:
    clicks = Clicks(window)
    clicks.follow("activityentry/")
    clicks.follow("usagesnapshot/")
    assert "tenant:acme" in window.text(".limits-columns tbody tr:first-child th")
    clicks.press(".limits-columns tbody tr:first-child th a")
    assert "tenant:acme" in window.text(".limits-spans strong")
    chart = window.run("return JSON.parse(document.querySelector('#limits-chart-data').textContent)")
    assert len(chart["times"]) == 7
    assert clicks.count <= 3


def test_support_helps_a_client_with_its_role(window: Browser, place: Place) -> None:
    place.manage("limits", "roles")
    made = "from django.contrib.auth.models import Group, User\n"
    made += "User.objects.create_user('support', password='support', is_staff=True)"
    run(place, f"{made}.groups.add(Group.objects.get(name='limits support'))")
    window.log_in("support")
    try:
        clicks = Clicks(window)
        clicks.follow("overview/")
        clicks.find("tenant:initech")
        clicks.press("summary")
        clicks.press("button[name=ends][value=today]")
        assert "2 times its limits until" in clicks.done()
        assert clicks.count <= 3
        assert window.all("a[href$='/limits_app/limitsentry/limit/']") == []
    finally:
        window.log_in(ADMIN)
    assert (
        int(run(place, "print(Policy.objects.filter(entity__identifier='tenant:initech', extends=True).count())")) > 0
    )
