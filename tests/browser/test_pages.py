"""The pages in a real browser: for everybody, at every size, under a policy that forbids scripts and styles inside."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.keys import Keys

from project.demo.place import Place
from tests.browser.chromium import DESKTOP, PHONE, Browser
from tests.browser.seed import ADMIN as ADMIN_NAME
from tests.browser.seed import READER

pytestmark = [pytest.mark.slow, pytest.mark.release, pytest.mark.product]

ADMIN = "admin/limits_app/"
EXPLAIN = f"{ADMIN}clientsentry/effective/?resource=openai/gpt-4&entity=tenant:acme"
USAGE = f"{ADMIN}usagesnapshot/"
LIVE = f"{ADMIN}activityentry/live/"
_ROOM = """
    const width = document.documentElement.clientWidth;
    return [...document.querySelectorAll(".limits-figures")]
        .filter((one) => one.getBoundingClientRect().right > width).map((one) => one.textContent);
"""
"""Figures that stick out of the page, where nobody sees them."""
_HIDDEN = """
    const width = document.documentElement.clientWidth;
    const {left} = document.querySelector("#content-main").getBoundingClientRect();
    const parts = ".limits-lines :is(input:not([type=hidden]), select, label, .help)";
    return [...document.querySelectorAll(parts)]
        .filter((one) => one.checkVisibility())
        .filter((one) => one.getBoundingClientRect().right > width || one.getBoundingClientRect().left < left)
        .map((one) => one.outerHTML);
"""
"""What of the fields of limits lies beside the window, or behind the navigation."""

_BESIDE = """
    const {parentElement} = document.querySelector("#result_list");
    return parentElement.scrollWidth - parentElement.clientWidth;
"""
"""How much of a list lies beside the page."""

_SAID = """
    return [...document.querySelectorAll(".limits-lines .help")]
        .filter((one) => one.checkVisibility()).map((one) => one.textContent).join();
"""
_HELP = """
    return [...document.querySelectorAll(".limits-lines .help")]
        .filter((one) => one.checkVisibility()).map((one) => one.id);
"""
"""What is said about fields of limits."""

OURS = {
    "explain": EXPLAIN,
    "explain-pool": f"{ADMIN}clientsentry/effective/?resource=claude",
    "explain-shadow": f"{ADMIN}clientsentry/effective/?resource=trial",
    "exemptions": f"{ADMIN}settingsentry/exemptions/",
    "explain-nothing": f"{ADMIN}clientsentry/effective/",
    "usage": f"{USAGE}?span=month",
    "live": LIVE,
    "overview": f"{ADMIN}overview/",
    "limit": f"{ADMIN}limitsentry/limit/",
    "limit-of-team": f"{ADMIN}limitsentry/limit/?who=team&entity=tenant:acme",
    "limit-of-plan": f"{ADMIN}limitsentry/limit/?who=plan",
    "limit-change": f"{ADMIN}limitsentry/limit/?policy=2",
    "client": f"{ADMIN}clientsentry/client/?entity=tenant:acme",
    "client-boost": f"{ADMIN}clientsentry/client/?entity=tenant:acme&boost=1",
    "client-search": f"{ADMIN}clientsentry/client/?find=tenant",
    "rejections": f"{ADMIN}denial/",
    "candidates": f"{ADMIN}candidate/",
    "new-candidate": f"{ADMIN}candidate/add/?policy=2",
    "alerts": f"{ADMIN}alert/",
    "alert-rules": f"{ADMIN}alertrule/",
    "new-alert-rule": f"{ADMIN}alertrule/add/",
    "index": ADMIN,
    "policies": f"{ADMIN}policy/",
    "resources": f"{ADMIN}resource/",
    "entities": f"{ADMIN}entity/",
    "policy": f"{ADMIN}policy/2/change/",
    "audit": f"{ADMIN}auditevent/",
    "event": f"{ADMIN}auditevent/1/change/",
    "revert": f"{ADMIN}auditevent/1/revert/",
    "emergency": f"{ADMIN}emergencyswitch/",
    "new-policy": f"{ADMIN}policy/add/",
    "boost": f"{ADMIN}policy/boost/",
    "import": f"{ADMIN}policy/import/",
    "entity": f"{ADMIN}entity/1/change/",
    "pools": f"{ADMIN}pool/",
    "new-pool": f"{ADMIN}pool/add/",
    "new-member": f"{ADMIN}poolmember/add/",
    "endpoints": f"{ADMIN}endpoint/",
    "endpoint": f"{ADMIN}endpoint/1/change/",
}


@pytest.mark.parametrize("name", OURS)
def test_a_page_is_accessible_and_fits_a_phone(name: str, window: Browser) -> None:
    window.open(OURS[name])
    settle(window, name)
    window.take(name)
    assert window.barriers() == []
    assert window.run("return document.documentElement.scrollWidth <= window.innerWidth")
    window.resize(PHONE)
    window.take(f"{name}-phone")
    assert window.run("return [document.documentElement.scrollWidth, visualViewport.scale]") == [PHONE[0], 1]


@pytest.mark.parametrize("action", ["boost_entities", "reset_state", "top_up_state", "shadow_policies"])
def test_the_confirmation_of_an_action_is_accessible_and_fits_a_phone(action: str, window: Browser) -> None:
    window.open(f"{ADMIN}policy/")
    window.press("#result_list tbody tr:last-child input.action-select")
    window.press(f"select[name=action] option[value={action}]")
    window.press("button[name=index]")
    window.one("form input[name=confirmed]")
    window.take(f"action-{action}")
    assert window.barriers() == []
    window.resize(PHONE)
    assert window.run("return document.documentElement.scrollWidth") <= PHONE[0]


@pytest.mark.parametrize("name", OURS)
def test_a_page_has_dark_colours_that_can_be_read(name: str, window: Browser) -> None:
    window.darken()
    for width in (1280, 390):
        window.resize((width, 844))
        window.open(OURS[name])
        settle(window, name)
        window.take(f"{name}-dark-{width}")
        assert window.barriers() == []
        assert window.run("return document.documentElement.scrollWidth") <= width


_CRUMBS = """
    const crumbs = document.querySelector(".breadcrumbs");
    const {backgroundColor, color} = getComputedStyle(crumbs);
    const parts = [...crumbs.querySelectorAll("li")];
    const isLine = parts.every((part) => Math.abs(part.offsetTop - parts[0].offsetTop) < 4);
    const hasMark = (part) => part.display === "list-item" && part.listStyleType !== "none";
    return {backgroundColor, color, isLine, isMarked: parts.map((part) => getComputedStyle(part)).some(hasMark)};
"""


@pytest.mark.parametrize("name", OURS)
def test_the_breadcrumbs_look_like_those_of_other_pages(name: str, window: Browser) -> None:
    window.open("admin/auth/user/")
    window.one(".breadcrumbs")
    look = window.run(_CRUMBS)
    window.open(OURS[name])
    window.one(".breadcrumbs")
    assert window.run(_CRUMBS) == look | {"isLine": True, "isMarked": False}


@pytest.mark.parametrize("name", ["explain-pool", "explain-shadow"])
def test_bars_leave_room_for_their_figures(name: str, window: Browser) -> None:
    window.open(OURS[name])
    assert "of 5 used" in window.text(".limits-labelled")
    for size in (DESKTOP, PHONE):
        window.resize(size)
        assert window.run(_ROOM) == []


@pytest.mark.parametrize("size", [DESKTOP, (1210, 900), (800, 900), PHONE])
@pytest.mark.parametrize("name", ["policy", "new-member"])
def test_limits_in_a_form_fit_the_window_and_label_each_field(
    name: str, size: tuple[int, int], window: Browser
) -> None:
    window.resize(size)
    window.open(OURS[name])
    window.one("#content-main #id_limits-0-kind")
    assert window.run(_HIDDEN) == []
    assert window.run(_HELP) == []
    for field in ("kind", "algorithm", "soft"):
        window.run("arguments[0].focus()", window.one(f"#id_limits-0-{field}"))
        assert window.run(_HELP) == [f"id_limits-0-{field}_helptext"]
        assert window.run(_HIDDEN) == []


def test_read_only_limits_are_labelled(window: Browser) -> None:
    window.log_in(READER)
    try:
        window.open(OURS["policy"])
        window.one("#content-main .limits-lines")
        assert window.barriers() == []
        assert window.run(_HELP) == []
        ActionChains(window.driver).move_to_element(window.one(".limits-lines .fieldBox.field-algorithm")).perform()
        assert "Leave empty for a token bucket" in window.run(_SAID)
    finally:
        window.log_in(ADMIN_NAME)


@pytest.mark.parametrize("width", [390, 1280, 1600])
@pytest.mark.parametrize("name", ["policies", "entities", "resources"])
def test_a_list_shows_its_last_column(name: str, width: int, window: Browser) -> None:
    window.resize((width, 900))
    window.open(OURS[name])
    window.one("#result_list")
    assert window.run(_BESIDE) == 0


LONG = "/api/v2/organisations/<organisation>/projects/<project>/exports/<format>/"


@pytest.fixture
def long_names(place: Place) -> Iterator[None]:
    """A URL rule and a client with long names that have no spaces."""
    models = "from limits_app.models import Endpoint, Entity"
    rows = f"Endpoint.objects.create(name='long', path='{LONG}', limits='1/min', enabled=False)"
    client = f"Entity.objects.create(identifier='apikey:sha256:{'0' * 64}')"
    place.manage("shell", "--verbosity=0", "--command", f"{models}\n{rows}\n{client}")
    yield
    gone = "Endpoint.objects.get(name='long').delete(); Entity.objects.get(identifier__startswith='apikey:').delete()"
    place.manage("shell", "--verbosity=0", "--command", f"{models}\n{gone}")


@pytest.mark.usefixtures("long_names")
def test_lists_wrap_long_names(window: Browser) -> None:
    for width in (390, 1280):
        window.resize((width, 900))
        for name in ("resources", "entities", "endpoints", "policies", "audit"):
            window.open(OURS[name])
            window.one("#result_list")
            assert window.run("return document.documentElement.scrollWidth") <= width, name
            assert window.run(_BESIDE) == 0, name


def settle(window: Browser, name: str) -> None:
    """Let a page that is filled by a script come to rest."""
    if name == "live":
        window.until(lambda: window.text("#limits-live-status") == "Live", "it does not become live")
    window.run("return document.fonts.ready")


def test_a_preview_is_accessible_and_fits_a_phone(window: Browser) -> None:
    window.open(f"{ADMIN}policy/3/change/")
    first = window.driver.current_window_handle
    window.fill("#id_limits-0-capacity", "5")
    window.press("input[formaction]")
    window.until(lambda: len(window.driver.window_handles) == 2, "no page was opened")
    window.driver.switch_to.window(window.driver.window_handles[1])
    try:
        assert "would have been rejected" in window.text()
        window.take("preview")
        assert window.barriers() == []
        window.resize(PHONE)
        assert window.run("return document.documentElement.scrollWidth") <= PHONE[0]
    finally:
        window.driver.close()
        window.driver.switch_to.window(first)


def test_the_explanation_is_reached_by_keyboard_alone(window: Browser) -> None:
    window.open(f"{ADMIN}clientsentry/effective/")
    window.run("document.getElementById('content-start').focus()")
    for _ in range(12):
        window.driver.switch_to.active_element.send_keys(Keys.TAB)
        if window.driver.switch_to.active_element.get_attribute("name") == "resource":
            break
    window.driver.switch_to.active_element.send_keys("openai/gpt-4", Keys.TAB)
    window.driver.switch_to.active_element.send_keys("tenant:acme", Keys.ENTER)
    assert window.until(lambda: "tenant:acme" in window.text("#limits-explanation h2"), "nothing is explained")


def test_entities_are_found_while_one_types(window: Browser) -> None:
    window.open(f"{ADMIN}clientsentry/effective/")
    window.fill("#limits-entity", "tenant:ac")
    window.until(lambda: window.all("#limits-entities option"), "nothing is offered")
    assert [one.get_attribute("value") for one in window.all("#limits-entities option")] == ["tenant:acme"]


def test_the_explanation_follows_when_other_limits_hold(window: Browser, place: Place) -> None:
    place.manage("limits", "resource", "set", "movie", "rpm=100/min", "--yes")
    window.open(f"{ADMIN}clientsentry/effective/?resource=movie")
    assert "0 of 100 used" in window.text("#limits-explanation")
    window.run("document.querySelector('.limits-source a').focus()")
    place.manage("limits", "resource", "set", "movie", "tokens=7/min", "--yes")
    window.until(lambda: "0 of 7 used" in window.text("#limits-explanation"), "the bar does not move")
    assert window.text(".limits-list h3") == "7 tokens per minute"
    assert window.run("return document.activeElement.matches('.limits-source a')")


def test_the_explanation_shows_when_a_limit_begins_to_bind(window: Browser, place: Place) -> None:
    place.manage("limits", "resource", "set", "theatre", "calls=1/h", "--yes")
    window.open(f"{ADMIN}clientsentry/effective/?resource=theatre")
    assert window.all(".limits-chip--binds") == []
    call = "from limits_app import limits; limits.acquire('theatre').release()"
    place.manage("shell", "--verbosity=0", "--command", call)
    window.until(lambda: window.all(".limits-binds .limits-chip--binds"), "nothing binds")
    assert "The next request is rejected" in window.text("#limits-verdict")


_HOLD_BACK = """
    const real = window.fetch;
    window.held = [];
    window.fetch = (...asked) => new Promise((give) => window.held.push(() => {
        const answer = real(...asked);
        give(answer);
        return answer;
    }));
"""
_LET_GO = "const done = arguments[0]; window.held.pop()().then(() => setTimeout(done, 200));"


def test_an_answer_that_was_under_way_does_not_end_a_pause(window: Browser) -> None:
    window.open(LIVE)
    settle(window, "live")
    window.run(_HOLD_BACK)
    window.until(lambda: window.run("return window.held.length"), "nothing is asked")
    window.press("#limits-live-pause")
    window.driver.execute_async_script(_LET_GO)
    assert window.text("#limits-live-status") == "Paused"
    assert window.run("return window.held.length") == 0


_COUNT = """
    const real = window.fetch;
    window.asked = 0;
    window.fetch = (...asked) => {
        window.asked += 1;
        return real(...asked);
    };
"""


def test_the_live_view_asks_nothing_while_it_is_paused(window: Browser) -> None:
    window.open(LIVE)
    settle(window, "live")
    window.press("#limits-live-pause")
    assert window.text("#limits-live-status") == "Paused"
    assert window.one("#limits-live-pause").get_attribute("aria-pressed") == "true"
    window.run(_COUNT)
    window.run("document.dispatchEvent(new Event('visibilitychange'))")
    assert window.run("return window.asked") == 0
    window.press("#limits-live-pause")
    settle(window, "live")


_DOWN = """
    const state = () => ({ at: Date.now() / 1000, totals: {}, tightest: [], known: false });
    window.fetch = async () => new Response(JSON.stringify(state()));
"""


def test_the_live_view_shows_when_counting_is_unavailable(window: Browser) -> None:
    window.open(LIVE)
    settle(window, "live")
    window.run(_DOWN)
    window.until(lambda: window.text("#limits-live-status") == "The store is unavailable", "it stays live")
    window.until(lambda: window.text("#limits-live-refused") == "-", "it shows a rate")
    assert "ON_UNAVAILABLE" in window.text("#limits-live-problem")


def test_another_limit_is_chosen_while_the_live_view_goes_on(window: Browser) -> None:
    window.open(LIVE)
    settle(window, "live")
    window.until(lambda: window.text("#limits-live-admitted") != "-", "no rate is shown")
    window.press("#limits-live-key option[value='']")
    window.run("document.getElementById('limits-live-admitted').textContent = 'old'")
    window.until(lambda: window.text("#limits-live-admitted") != "old", "nothing is drawn any more")
    assert window.text("#limits-live-admitted") == "-"  # of tokens and calls there is no sum
    assert window.text("#limits-live-refused") == "0"
    assert window.run("return document.getElementById('limits-live-status').matches('.limits-chip--on')")


@pytest.mark.parametrize(("page", "notice"), [(LIVE, "#limits-live-status"), (EXPLAIN, "#limits-stale")])
def test_a_page_shows_when_it_is_out_of_date(page: str, notice: str, window: Browser) -> None:
    window.open(page)
    window.driver.delete_all_cookies()
    try:
        assert window.until(lambda: "you are logged out" in window.text(notice), "nothing is said")
    finally:
        window.log_in(ADMIN_NAME)
        window.complaints()  # of what it could not fetch


_CUT_OFF = """
    const page = document.documentElement.clientWidth;
    const region = document.querySelector(".limits-differences");
    const {left, right} = region.getBoundingClientRect();
    return [left >= 0 && right <= page, region.scrollWidth > region.clientWidth, getComputedStyle(region).overflowX];
"""


@pytest.mark.parametrize("name", ["event", "revert"])
def test_all_that_changed_can_be_reached_on_a_phone(name: str, window: Browser) -> None:
    window.open(OURS[name])
    window.resize(PHONE)
    fits, moves, how = window.run(_CUT_OFF)
    assert fits
    assert how == "auto" or not moves


@pytest.mark.parametrize("size", [DESKTOP, (800, 900), PHONE])
def test_error_of_a_limit_is_above_its_field(size: tuple[int, int], window: Browser) -> None:
    window.resize(size)
    window.open(OURS["new-policy"])
    window.fill("#id_limits-0-key", "tpm")
    window.fill("#id_limits-0-window_seconds", "abc")
    window.press("input[name=_save]")
    for one in window.until(lambda: window.all(".limits-lines ul.errorlist"), "nothing is wrong"):
        assert one.size["height"] < 120 < one.size["width"]


_TOOLS = """
    const lines = [...document.querySelectorAll(".object-tools a")].map((one) => one.getBoundingClientRect());
    return lines.some((one) => lines.some((other) => one.top < other.top && other.top < one.bottom));
"""


@pytest.mark.parametrize("width", [420, 640, 1280])
def test_what_a_list_offers_stands_in_lines_that_leave_each_other_alone(width: int, window: Browser) -> None:
    window.resize((width, 900))
    window.open(OURS["policies"])
    assert not window.run(_TOOLS)


@pytest.mark.parametrize("name", ["candidates", "audit", "entities"])
def test_a_list_fits_a_phone_without_being_moved(name: str, window: Browser, place: Place) -> None:
    if name == "candidates":
        code = "limits.set_candidate(limits.set_resource_limits('tried', '9/min'), 'calls=5/min')"
        place.manage("shell", "--verbosity=0", "--command", f"from limits_app import limits; {code}")
    window.resize(PHONE)
    window.open(OURS[name])
    window.one("#result_list")
    width = window.run("return document.querySelector('#result_list').parentElement.clientWidth")
    assert window.run("return document.querySelector('#result_list').scrollWidth") <= width
