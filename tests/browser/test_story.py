"""A limit's life, as an administrator sees it: created, hit, explained, boosted, seen to move, and taken back."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from tests.browser.chromium import Browser

pytestmark = [pytest.mark.slow, pytest.mark.product]

ADMIN = "admin/limits_app/"


def hit(window: Browser, times: int) -> list[int]:
    """Call the view that the limit is about."""
    return [window.status("api/ping/") for _ in range(times)]


def choose(window: Browser, field: str, name: str) -> None:
    """Search for a related row by typing, and take it."""
    window.press(f"[aria-labelledby='select2-id_{field}-container']")
    search = window.one(".select2-search__field")
    search.send_keys(name)
    option = f"//li[contains(@class, 'select2-results__option--highlighted') and text()='{name}']"
    window.until(lambda: window.driver.find_elements(By.XPATH, option), f"{name} is not found")
    search.send_keys(Keys.ENTER)


def add_policy(window: Browser, calls: int, **dates: str) -> None:
    """Fill in the form of a policy for the resource `api`."""
    window.open(f"{ADMIN}policy/add/")
    choose(window, "resource", "api")
    for field, text in {"reason": "the story", **dates}.items():
        window.fill(f"#id_{field}", text)
    limit = {
        "kind": "requests",
        "key": "call_count",
        "capacity": str(calls),
        "window_seconds": "3600",
        "algorithm": "Fixed",
    }
    for field, text in limit.items():
        window.fill(f"#id_limits-0-{field}", text)
    window.press("input[name=_save]")
    window.one(".messagelist .success")


def rolled_up(window: Browser, admitted: str, refused: str) -> None:
    """Look at the usage of `api` until it says so; the live page has it rolled up."""

    def said() -> bool:
        window.open(f"{ADMIN}usagesnapshot/?resource=api")
        figures = [one.text for one in window.all(".limits-totals dd")]
        return figures[:2] == [admitted, refused]

    window.open(f"{ADMIN}activityentry/live/")
    window.until(lambda: window.text("#limits-live-status") == "Live", "it does not become live")
    window.until(said, f"there are not {admitted} admitted and {refused} refused")


def test_a_limit_is_created_hit_explained_boosted_and_reverted(window: Browser) -> None:
    assert hit(window, 2) == [200, 200]
    add_policy(window, 3)
    assert hit(window, 5) == [200, 200, 200, 429, 429]

    rolled_up(window, "5", "2")
    window.open(f"{ADMIN}clientsentry/effective/?resource=api&entity=ip:127.0.0.1")
    window.until(lambda: "at its limit" in window.text("#limits-explanation"), "it is not explained")
    assert "3 of 3 used, 0 left" in window.text("#limits-explanation")
    assert "The next request is rejected" in window.text("#limits-verdict")
    window.take("story-refused")
    explanation = window.driver.current_url

    tomorrow = datetime.now(UTC) + timedelta(days=1)
    add_policy(window, 10, valid_until_0=f"{tomorrow:%Y-%m-%d}", valid_until_1="12:00:00")
    window.driver.get(explanation)
    assert "3 of 10 used, 7 left" in window.text("#limits-explanation")
    assert hit(window, 4) == [200] * 4
    window.until(lambda: "7 of 10 used, 3 left" in window.text("#limits-explanation"), "the bar does not move")
    window.take("story-boosted")

    window.open(f"{ADMIN}activityentry/live/")
    window.until(lambda: window.text("#limits-live-admitted") != "-", "there is no rate")
    assert hit(window, 2) == [200] * 2
    window.until(lambda: float(window.text("#limits-live-admitted")) > 0, "the rate does not move")
    assert "api" in window.text("#limits-live-tightest")
    window.take("story-live")
    rolled_up(window, "11", "2")

    window.open(f"{ADMIN}auditevent/?o=-1")
    window.one("#result_list tbody th a").click()
    window.press(".object-tools a[href$='/revert/']")
    window.take("story-revert")
    window.press("main form input[type=submit]")
    window.one(".messagelist .success")
    assert hit(window, 1) == [429]
