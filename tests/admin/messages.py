"""Gathers the texts of the app and of its templates into the catalogues: python -m tests.admin.messages.

It needs the programs of gettext.
New texts are added without a translation, and the tests say which still lack one; texts that are gone are dropped.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import ClassVar

import django
from django.core.management import call_command
from django.core.management.commands import makemessages

ROOT = Path(__file__).resolve().parents[2]
LANGUAGES = ("de", "zh_Hans")
_OF_THE_RUN = ('"Report-Msgid-Bugs-To:', '"POT-Creation-Date:')


class _Gathering(makemessages.Command):
    """Does not guess what a new text means from one that looks like it."""

    msgmerge_options: ClassVar = [*makemessages.Command.msgmerge_options, "--no-fuzzy-matching"]


def main() -> None:
    """Gather, and compile."""
    os.environ["DJANGO_SETTINGS_MODULE"] = "project.settings"
    django.setup()
    catalogues = ROOT / "limits_app" / "locale"
    with tempfile.TemporaryDirectory() as directory:
        # The templates stand beside the package, and one catalogue is for both.
        place = Path(directory)
        for source in ("admin", "api", "audit", "core", "integrations", "models", "resolver", "services", "usage"):
            (place / source).symlink_to(ROOT / "limits_app" / source)
        (place / "templates").symlink_to(ROOT / "templates")
        (place / "locale").symlink_to(catalogues)
        os.chdir(place)
        options = dict.fromkeys(("no_location", "no_obsolete", "no_wrap", "symlinks"), True)
        call_command(_Gathering(), locale=[*LANGUAGES], ignore_patterns=["vendor"], **options)
        for catalogue in catalogues.glob("*/LC_MESSAGES/*.po"):
            lines = catalogue.read_text().splitlines(keepends=True)
            catalogue.write_text("".join(line for line in lines if not line.startswith(_OF_THE_RUN)))
        os.chdir(catalogues.parent)
        call_command("compilemessages", locale=[*LANGUAGES])


if __name__ == "__main__":
    main()
