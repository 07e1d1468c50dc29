"""Which objects a limits file manages, so that applying it deletes what it made and nothing else."""

from __future__ import annotations

from django.db import models

__all__ = ["Manifest"]


class Manifest(models.Model):
    """What was in a limits file when it was applied last: primary keys, by the name of the model."""

    name = models.CharField(max_length=64, primary_key=True)
    objects_of = models.JSONField(default=dict)
    applied_at = models.DateTimeField(auto_now=True)

    class Meta:
        default_permissions = ()

    def __str__(self) -> str:
        return self.name
