"""Links of the documentation lead somewhere."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote

from tests.docs.pages import PAGES, ROOT, anchors, links, name


def is_relative(target: str) -> bool:
    return "://" not in target and not target.startswith("mailto:")


def test_every_relative_link_leads_to_a_file_and_a_heading() -> None:
    targets = [(page, target) for page in PAGES for target in links(page) if is_relative(target)]
    assert not [f"{name(page)}: {target}" for page, target in targets if not leads_somewhere(page, target)]


def leads_somewhere(page: Path, target: str) -> bool:
    path, _, anchor = unquote(target).partition("#")
    file = (page.parent / path).resolve() if path else page
    if not file.exists() or not file.is_relative_to(ROOT):
        return False
    return not anchor or (file.suffix == ".md" and anchor in anchors(file))


def test_links_to_nowhere_are_noticed() -> None:
    readme = ROOT / "README.md"
    assert leads_somewhere(readme, "docs/limits-in-code.md#errors")
    assert leads_somewhere(readme, "#try-it")
    assert not leads_somewhere(readme, "docs/missing.md")
    assert not leads_somewhere(readme, "docs/limits-in-code.md#missing")
    assert not leads_somewhere(readme, "../outside.md")


def test_every_page_can_be_reached_from_the_readme() -> None:
    reached: set[Path] = set()
    waiting = [ROOT / "README.md"]
    while waiting:
        page = waiting.pop()
        if page in reached:
            continue
        reached.add(page)
        if page.is_dir():
            waiting += page.glob("*.md")
        elif page.suffix == ".md":
            targets = [unquote(target).partition("#")[0] for target in links(page) if is_relative(target)]
            waiting += [(page.parent / target).resolve() for target in targets if target]
    assert {name(page) for page in PAGES if page.is_relative_to(ROOT / "docs")} <= {name(page) for page in reached}
