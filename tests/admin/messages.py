"""Gathers the texts of the app and of its templates into the catalogues: python -m tests.admin.messages.

It needs the programs of gettext.
New texts are added without a translation, and the tests say which still lack one; texts that are gone are dropped.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import django
from django.core.management import call_command

ROOT = Path(__file__).resolve().parents[2]
LANGUAGES = ("de", "zh_Hans")


def main() -> None:
    """Gather, and compile."""
    os.environ["DJANGO_SETTINGS_MODULE"] = "project.settings"
    django.setup()
    catalogues = ROOT / "limits_app" / "locale"
    with tempfile.TemporaryDirectory() as directory:
        # The templates stand beside the package, and one catalogue is for both.
        place = Path(directory)
        for source in ("admin", "api", "core", "integrations", "models", "resolver", "services", "usage"):
            (place / source).symlink_to(ROOT / "limits_app" / source)
        (place / "templates").symlink_to(ROOT / "templates")
        (place / "locale").symlink_to(catalogues)
        os.chdir(place)
        options = dict.fromkeys(("no_location", "no_obsolete", "no_wrap", "symlinks"), True)
        call_command("makemessages", locale=[*LANGUAGES], ignore_patterns=["vendor"], **options)
        os.chdir(catalogues.parent)
        call_command("compilemessages", locale=[*LANGUAGES])


if __name__ == "__main__":
    main()
