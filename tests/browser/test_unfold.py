"""The pages under django-unfold, which has none of the styles of Django's own admin."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from project.demo.place import Place
from project.demo.server import Server
from tests.browser.chromium import DESKTOP, Browser, browser
from tests.browser.conftest import fill_site
from tests.browser.seed import ADMIN
from tests.browser.test_pages import OURS

pytestmark = [pytest.mark.slow, pytest.mark.release, pytest.mark.product]

PHONE = (390, 844)
PAGES = [name for name in OURS if name != "live"]  # it is filled by a script, and looks like the others
_WITHOUT_MENU = {"index"}
_FIELDS = """
    const light = (color) => {
        const [red, green, blue, alpha] = color.match(/[\\d.]+/g).map(Number);
        return alpha === 0 ? null : (red + green + blue) / 3;
    };
    const inputs = "input:not([type=hidden], [type=radio], [type=checkbox])";
    const parts = `:is(.limits-page, .field-line) :is(${inputs}, select, button)`;
    return [...document.querySelectorAll(parts)].filter((field) => {
        const {backgroundColor, color} = getComputedStyle(field);
        const behind = light(backgroundColor) ?? light(color);
        return field.checkVisibility() && Math.abs(behind - light(color)) < 80;
    }).map((field) => field.outerHTML);
"""
"""Fields and buttons that have no background of their own, or text of almost the same lightness."""


class UnfoldPlace(Place):
    """The demo site with django-unfold."""

    __slots__ = ()

    def environment(self) -> dict[str, str]:
        """The environment for every process of the site."""
        return {**Place.environment(self), "DJANGO_SETTINGS_MODULE": "tests.browser.unfold_settings"}


@pytest.fixture(scope="module")
def unfolded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """The browser of an administrator on that site."""
    place = UnfoldPlace(tmp_path_factory.mktemp("unfold"), debug=True)
    fill_site(place)
    with Server(place) as server, browser(server.address.url, place.directory / "profile") as window:
        window.open("admin/login/?next=/admin/limits_app/")
        window.fill("#id_username", ADMIN)
        window.fill("#id_password", ADMIN)
        window.press("form [type=submit]")
        window.until(lambda: "login" not in window.driver.current_url, "nobody is logged in")
        yield window


@pytest.mark.parametrize("name", PAGES)
def test_a_page_does_not_need_the_styles_of_the_stock_admin(name: str, unfolded: Browser) -> None:
    for size in (DESKTOP, PHONE):
        for is_dark in (False, True):
            unfolded.resize(size)
            unfolded.darken(is_dark)
            unfolded.open(OURS[name])
            if name not in _WITHOUT_MENU:
                unfolded.one(".limits-tabs")
            unfolded.take(f"unfold-{name}-{size[0]}{'-dark' * is_dark}")
            assert unfolded.barriers() == []
            assert unfolded.run(_FIELDS) == []
            assert unfolded.run("return document.documentElement.scrollWidth") <= size[0]


@pytest.mark.parametrize(("name", "title"), [("boost", "Grant a boost"), ("revert", "Undo “")])
def test_the_bar_has_the_title_of_a_page_that_asks_for_confirmation(name: str, title: str, unfolded: Browser) -> None:
    unfolded.resize(DESKTOP)
    unfolded.open(OURS[name])
    assert title in unfolded.text("#header-inner")


@pytest.mark.parametrize("name", ["policies", "resources", "entities", "endpoints"])
def test_the_tools_of_a_list_stay_within_the_bar_above_the_page(name: str, unfolded: Browser) -> None:
    for size in (DESKTOP, PHONE):
        unfolded.resize(size)
        unfolded.open(OURS[name])
        unfolded.one(".object-tools")
        above = unfolded.run("return document.querySelector('.object-tools').getBoundingClientRect().top")
        height = unfolded.run("return document.querySelector('.object-tools').offsetHeight")
        assert above >= 0
        assert height < 50


_BACKGROUND = """
    return [...document.querySelectorAll(arguments[0])].map((part) => {
        const {backgroundColor, borderTopColor} = getComputedStyle(part);
        return [backgroundColor, borderTopColor];
    });
"""
_NONE = "rgba(0, 0, 0, 0)"


def test_decisions_on_a_trial_look_like_buttons_and_pickers_like_fields(unfolded: Browser) -> None:
    unfolded.resize(DESKTOP)
    unfolded.darken(False)
    unfolded.open(OURS["new-candidate"])
    unfolded.one(".select2-selection")
    borders = unfolded.run(_BACKGROUND, ".select2-selection")
    assert borders
    assert {border for _background, border in borders} == {"rgb(138, 138, 138)"}
    unfolded.fill("#id_limits", "calls=5/min")
    unfolded.press("[name=_save]")
    for path in ("", "admin/limits_app/candidate/"):
        if path:
            unfolded.open(path)
        unfolded.one("button[formaction$='/promote/']")
        buttons = unfolded.run(_BACKGROUND, "button[formaction$='/promote/'], button[formaction$='/discard/']")
        assert len(buttons) == 2
        assert _NONE not in {background for background, _border in buttons}
        assert unfolded.barriers() == []
