"""What all configuration has in common: no way of writing it goes unannounced."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar, Self, TypeVar

from django.db import models

from limits_app.models.changes import announce

__all__ = ["Configuration", "ConfigurationQuerySet"]

M_co = TypeVar("M_co", bound=models.Model, covariant=True)


class ConfigurationQuerySet(models.QuerySet[M_co]):
    """Announces the writes for which Django sends no signal for each row.

    `bulk_update` goes through `update`, and `delete` sends its signals, so neither is repeated here.
    """

    def update(self, **kwargs: Any) -> int:
        """Change all rows, and announce it if there were any."""
        changed = super().update(**kwargs)
        if changed:
            announce(self.db)
        return changed

    def bulk_create(self, objs: Iterable[M_co], *args: Any, **options: Any) -> list[M_co]:
        """Insert all rows, and announce it if there were any."""
        created = super().bulk_create(objs, *args, **options)
        if created:
            announce(self.db)
        return created


class ConfigurationManager(models.Manager[M_co]):
    """Hands every verb on to the announcing queryset."""

    def get_queryset(self) -> ConfigurationQuerySet[M_co]:
        """Give all rows."""
        return ConfigurationQuerySet(self.model, using=self._db)


class Configuration(models.Model):
    """A row that administrators set and every process obeys."""

    objects: ClassVar[ConfigurationManager[Self]] = ConfigurationManager()

    class Meta:
        abstract = True
        base_manager_name = "objects"  # related managers write through it
