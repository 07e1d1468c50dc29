"""docs/settings.md says what the code says."""

from __future__ import annotations

import ast
import re
from itertools import pairwise

import pytest

from limits_app.conf import KEYS, SettingKey
from tests.docs.pages import DOCS, ROOT, rows

PAGE = DOCS / "settings.md"
KEY_ROWS = {cells[0].strip("`"): cells[1:] for cells in rows(PAGE, "Keys")}
CHECK_ROWS = {cells[0].strip("`"): cells[1] for cells in rows(PAGE, "Checks")}
IN_SHORT = ("alias of", "dict of", "function", "list of", "name of")
"""How the page begins what an error says in more words."""
TABLE = ast.parse((ROOT / "limits_app" / "conf" / "table.py").read_text())
DOCSTRINGS = {
    constant.target.id: " ".join(ast.literal_eval(text.value).split())
    for constant, text in pairwise(TABLE.body)
    if isinstance(constant, ast.AnnAssign) and isinstance(constant.target, ast.Name) and isinstance(text, ast.Expr)
}
ID = re.compile(r"limits_app\.[EIW]\d{3}")


def test_the_page_lists_the_keys_in_their_order() -> None:
    assert list(KEY_ROWS) == list(KEYS)


@pytest.mark.parametrize("key", KEYS.values(), ids=list(KEYS))
def test_the_page_agrees_with_the_docstring_and_error_of_each_key(key: SettingKey[object]) -> None:
    default, expected, check_id, doc = KEY_ROWS[key.name]
    assert key.parse(ast.literal_eval(default.strip("`"))) == key.default
    assert check_id.strip("`") == key.check_id
    assert doc.replace("`", "") == DOCSTRINGS[key.name]
    assert f"`{key.name}`" in CHECK_ROWS[key.check_id]
    expects = expected.replace("`", "").removesuffix(", or None")
    with pytest.raises(ValueError, match="must be") as caught:
        key.parse(object())
    assert expects in str(caught.value) or expects.startswith(IN_SHORT)


def test_the_page_lists_every_check_that_the_code_has() -> None:
    sources = "".join(path.read_text() for path in (ROOT / "limits_app").rglob("*.py"))
    assert list(CHECK_ROWS) == sorted(set(ID.findall(sources)))
