"""The pages in a browser without JavaScript: each has all that it shows, and forms say their effect after a submit."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from project.demo.place import Place
from tests.browser.chromium import Browser
from tests.browser.conftest import logged_in, new_site
from tests.browser.test_pages import OURS

pytestmark = [pytest.mark.slow, pytest.mark.release, pytest.mark.product]

FORM = "admin/limits_app/limitsentry/limit/"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    """A site whose limits the tests may change."""
    return new_site(tmp_path_factory.mktemp("without-scripts"))


@pytest.fixture(scope="module")
def served(place: Place) -> Iterator[Browser]:
    """The browser of this module, which runs no scripts of pages."""
    with logged_in(place) as window:
        window.driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
        yield window


def reads(window: Browser, selector: str, text: str) -> None:
    """Wait for a text on the page that the last click leads to."""
    assert window.until(lambda: text.lower() in window.text(selector).lower(), f"{text} is not shown")


@pytest.mark.parametrize("name", OURS)
def test_a_page_has_its_menu_and_its_content(name: str, window: Browser) -> None:
    window.open(OURS[name])
    assert window.one("h1, #content h1").text
    assert window.text("#content, main")
    if name not in {"index", "import"}:
        assert window.all(".limits-tabs a[aria-current]") or name == "new-member"


def test_the_form_shows_its_sentence_and_effect_before_saving(window: Browser) -> None:
    window.open(FORM)
    window.fill("#id_target", "/api/aping/")
    window.fill("#id_number_1", "7")
    window.press("input[name=_check]")
    reads(window, "#limits-effect", "Each user may make 7 requests per minute on /api/aping/.")
    reads(window, "#limits-matches", "matches 1 URL")
    window.press("input[name=_save]")
    reads(window, ".messagelist", "7 requests per minute")
    window.press("button[name=_undo]")
    reads(window, ".messagelist", "was undone")


def test_a_second_limit_and_a_team_are_entered(window: Browser) -> None:
    window.open(FORM)
    window.fill("#id_who", "a team")
    window.fill("#id_entity", "team:paper")
    window.fill("#id_members", "key:paper")
    window.fill("#id_number_1", "100")
    window.press(".limits-limit details summary")
    window.fill("#id_number_2", "1M")
    window.fill("#id_unit_2", "tokens")
    window.fill("#id_per_2", "per calendar day")
    window.press("input[name=_check]")
    reads(window, "#limits-effect", "All members of team:paper together may make 100 requests per minute")
    reads(window, "#limits-effect", "1,000,000 tokens per day")


def test_a_client_is_boosted_blocked_and_unblocked(window: Browser) -> None:
    window.open("admin/limits_app/clientsentry/client/?entity=tenant:globex")
    window.press(".limits-doing summary")
    window.press("button[name=ends][value=today]")
    reads(window, ".messagelist", "2 times its limits until")
    window.press("button[name=_end_boost]")
    reads(window, ".messagelist", "has ended")
    window.press(".limits-doing a[href*='entity/block/']")
    window.press("input[name=confirmed], form[method=post] [type=submit][name]")
    reads(window, ".messagelist", "is blocked")
    window.press("button[name=_unblock]")
    reads(window, ".messagelist", "is not blocked any more")


def test_everything_is_switched_off_and_on(window: Browser) -> None:
    window.open("admin/limits_app/emergencyswitch/")
    window.fill("#id_reason", "an outage")
    window.press("button[name=mode][value=off]")
    window.press("input[name=confirmed]")
    reads(window, ".limits-banner", "an outage")
    window.press(".limits-banner a")
    window.press("input[name=confirmed]")
    assert window.until(lambda: not window.all(".limits-banner"), "the limits stay off")


@pytest.mark.parametrize(("name", "words"), [("usage", "tenant:acme"), ("live", "JavaScript")])
def test_charts_have_tables_or_name_their_requirements(name: str, words: str, window: Browser) -> None:
    window.open(OURS[name])
    reads(window, "#content", words)
