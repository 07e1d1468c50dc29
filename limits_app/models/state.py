"""The tables of the database store: state, not configuration, and not meant to be edited.

The store reads and writes them with SQL; the models define their columns and their migrations.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from django.db import models

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper

    BinaryField = models.BinaryField[bytes, bytes]
else:
    BinaryField = models.BinaryField  # not generic at run time


class DigestField(BinaryField):
    """Short binary data that MySQL can index."""

    def db_type(self, connection: BaseDatabaseWrapper) -> str | None:
        """The type of the column; MySQL cannot index its default binary type."""
        return f"varbinary({self.max_length})" if connection.vendor == "mysql" else super().db_type(connection)


class StoreTable(models.Model):
    """A table that no person edits."""

    class Meta:
        abstract = True
        default_permissions = ()

    def __str__(self) -> str:
        return f"{self._meta.db_table} {self.pk!r}"


class ScopeState(StoreTable):
    """The record of one scope: the states of its limits with the leases of permits, and their logs.

    `kept` is the use of limits that the scope had before.
    `counting` is set while the states may include counted usage, to the place by which such rows are found in order;
    `label` names the scope that it is for, in `namespace`, which is a number as that of StoreVersion.
    """

    scope = DigestField(max_length=16, primary_key=True)
    states = models.BinaryField()
    logs = models.BinaryField(null=True)
    kept = models.BinaryField(null=True)
    counting = models.BigIntegerField(null=True)
    label = models.BinaryField(null=True)
    namespace = models.BigIntegerField(null=True)

    class Meta(StoreTable.Meta):
        db_table = "limits_app_state"
        indexes = (models.Index(fields=["namespace", "counting"], name="limits_app_state_counting"),)


class LayoutDefinition(StoreTable):
    """The limits that records were written under, so that they can be read after the limits have changed."""

    name = DigestField(max_length=8, primary_key=True)
    definitions = models.BinaryField()

    class Meta(StoreTable.Meta):
        db_table = "limits_app_layout"


class StoreVersion(StoreTable):
    """The version of the configuration of one namespace, and the log of its last changes; no row before the first."""

    id = models.BigIntegerField(primary_key=True)
    version = models.BigIntegerField()
    log = models.BinaryField(null=True)

    class Meta(StoreTable.Meta):
        db_table = "limits_app_version"


class ScopeCount(StoreTable):
    """Usage counted in one scope in one hour that is finished; there may be several rows for the same hour."""

    hour = models.IntegerField(db_index=True)
    label = models.BinaryField()
    amounts = models.BinaryField()
    namespace = models.BigIntegerField()

    class Meta(StoreTable.Meta):
        db_table = "limits_app_count"
        indexes = (models.Index(fields=["namespace", "id"], name="limits_app_count_namespace"),)


class WaitingBatch(StoreTable):
    """Counts that were collected together, until they are stored elsewhere: for each collector of a namespace one row,
    or none.
    """

    name = models.CharField(max_length=32, primary_key=True)
    namespace = models.BigIntegerField()
    collector = models.SmallIntegerField()
    counts = models.BinaryField()

    class Meta(StoreTable.Meta):
        db_table = "limits_app_batch"
        constraints = (models.UniqueConstraint(fields=["namespace", "collector"], name="limits_app_batch_once"),)
