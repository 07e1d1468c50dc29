"""The commands of the host project; `python manage.py test` runs its tests."""

import multiprocessing
import os
import sys

from django.core.management import execute_from_command_line

if __name__ == "__main__":
    multiprocessing.set_start_method("fork")  # the only one of 3.14 with which Django 5.2 copies SQLite databases
    os.environ["DJANGO_SETTINGS_MODULE"] = "shop.settings"
    execute_from_command_line(sys.argv)
