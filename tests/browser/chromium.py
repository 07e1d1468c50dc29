"""Chromium as a person uses it, at a size that a test chooses: its errors are kept, and pages can be judged."""

from __future__ import annotations

import os
import shutil
from base64 import b64decode
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast
from urllib.error import HTTPError
from urllib.request import urlopen

from selenium.common.exceptions import StaleElementReferenceException
from selenium.webdriver import Chrome, ChromeOptions
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.wait import WebDriverWait

from tests.servers.machine import install

__all__ = ["DESKTOP", "PHONE", "Browser", "browser"]

DESKTOP = (1280, 900)
PHONE = (360, 740)
ROOT = Path(__file__).resolve().parents[2]
SCREENSHOTS = ROOT / "build" / "screenshots"
PICTURES = ROOT / "docs" / "images"
"""The pictures of the docs, which `make pictures` takes."""

_PATIENCE = 15
_PACKAGES = {"chromium": "chromium", "chromedriver": "chromium-driver"}
_THEIRS = ["#searchbar", ".select2-container", ".vDateField", ".vTimeField", "td.delete"]
"""What Django's admin brings, and we cannot better."""

_JUDGE = """
    const theirs = arguments[0];
    const done = arguments[1];
    const told = ({id, impact, nodes}) => ({id, impact, where: nodes.map(({html}) => html)});
    axe.run({include: [["body"]], exclude: theirs}, {resultTypes: ["violations"]}).then(
        ({violations}) => done(violations.map(told)));
"""


@cache
def _program(name: str) -> str:
    if shutil.which(name) is None:
        install(_PACKAGES[name])
    found = shutil.which(name)
    assert found is not None, f"there is no {name}: install the package {_PACKAGES[name]}"
    return found


@cache
def _axe() -> str:
    spec = find_spec("axe_core_python")
    assert spec is not None, "there is no axe-core: `pip install axe-core-python`"
    return (Path(str(spec.origin)).parent / "axe.min.js").read_text()


@cache
def _docs() -> str:
    return "".join(page.read_text(encoding="utf-8") for page in (ROOT / "docs").glob("*.md"))


class Browser:
    """A window on a site."""

    def __init__(self, driver: Chrome, url: str) -> None:
        self.driver = driver
        self.url = url

    def open(self, path: str) -> None:
        """Go to a page."""
        self.driver.get(self.url + path.lstrip("/"))

    def log_in(self, name: str) -> None:
        """Become somebody in the admin, whose password is the name."""
        self.driver.delete_all_cookies()
        self.open("admin/login/?next=/admin/limits_app/")
        self.fill("#id_username", name)
        self.fill("#id_password", name)
        self.press("input[type=submit]")
        self.until(lambda: name in self.text("#user-tools").lower(), f"nobody became {name}")

    def status(self, path: str) -> int:
        """The status with which the site answers a request from elsewhere."""
        try:
            with urlopen(self.url + path, timeout=10) as answer:
                return int(answer.status)
        except HTTPError as error:
            with error:
                return error.code

    def one(self, selector: str) -> WebElement:
        """The element that a CSS selector names, as soon as it is there."""
        return cast(WebElement, self.until(lambda: (self.all(selector) or [None])[0], selector))

    def all(self, selector: str) -> list[WebElement]:
        """The elements that a CSS selector names."""
        return list(self.driver.find_elements(By.CSS_SELECTOR, selector))

    def text(self, selector: str = "main") -> str:
        """What can be read there."""
        return self.one(selector).text

    def fill(self, selector: str, text: str) -> None:
        """Write into a field what it is to say."""
        field = self.one(selector)
        if field.tag_name != "select":
            field.clear()
        field.send_keys(text)

    def press(self, selector: str) -> None:
        """Press a button that leads to another page."""
        button = self.one(selector)
        self.run("arguments[0].scrollIntoView({block: 'center'})", button)
        button.click()

    def until(self, condition: Callable[[], Any], complaint: str) -> Any:
        """Wait for something that is to happen in the page."""
        left = [StaleElementReferenceException]  # by a page that another one takes the place of
        wait = WebDriverWait(self.driver, _PATIENCE, poll_frequency=0.1, ignored_exceptions=left)
        return wait.until(lambda _: condition(), complaint)

    def run(self, script: str, *arguments: Any) -> Any:
        """Run a script in the page, and give what it returns."""
        return self.driver.execute_script(script, *arguments)

    def resize(self, size: tuple[int, int]) -> None:
        """Become a desktop or a phone."""
        width, height = size
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": size == PHONE}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)

    def darken(self, dark: bool = True) -> None:
        """Prefer dark colours, or light ones."""
        feature = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})

    def take(self, name: str) -> None:
        """Keep a picture of what can be seen; with LIMITS_PICTURES, also for the docs that name it."""
        SCREENSHOTS.mkdir(parents=True, exist_ok=True)
        picture = self.driver.execute_cdp_cmd("Page.captureScreenshot", {"format": "png"})
        (SCREENSHOTS / f"{name}.png").write_bytes(b64decode(picture["data"]))
        if "LIMITS_PICTURES" in os.environ and f"images/{name}.png" in _docs():
            (PICTURES / f"{name}.png").write_bytes(b64decode(picture["data"]))

    def complaints(self) -> list[str]:
        """What the browser complained of since the last time: errors of scripts, and what the policy forbids."""
        said = cast("list[dict[str, str]]", self.driver.get_log("browser"))
        return [one["message"] for one in said if one["level"] == "SEVERE"]

    def barriers(self) -> list[dict[str, Any]]:
        """What keeps people from using the page, as far as it is serious."""
        self.run(_axe())
        found = self.driver.execute_async_script(_JUDGE, [[one] for one in _THEIRS])
        return [one for one in found if one["impact"] in {"serious", "critical"}]


@contextmanager
def browser(url: str, directory: Path) -> Iterator[Browser]:
    """A browser with a profile of its own."""
    options = ChromeOptions()
    options.binary_location = _program("chromium")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    size = ",".join(map(str, DESKTOP))
    for option in ("headless=new", "disable-dev-shm-usage", "disable-gpu", "lang=en", f"window-size={size}"):
        options.add_argument(f"--{option}")
    options.add_argument(f"--user-data-dir={directory}")
    if os.geteuid() == 0:
        options.add_argument("--no-sandbox")  # Chromium has none for root
    driver = Chrome(options, Service(_program("chromedriver")))
    try:
        window = Browser(driver, url)
        window.resize(DESKTOP)
        yield window
    finally:
        driver.quit()
