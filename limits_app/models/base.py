"""Base classes of configuration models: every write is announced and recorded in the audit log."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Self, TypeVar

from django.core.exceptions import ValidationError
from django.db import IntegrityError, NotSupportedError, connections, models, router

from limits_app.models.changes import Touched
from limits_app.models.recording import Unit, unit
from limits_app.models.snapshots import Snapshot

Written = Mapping[Any, tuple[Snapshot, Snapshot]]
"""Rows before and after a change, by primary key; for new rows the state before is empty."""

C_co = TypeVar("C_co", bound="Configuration", covariant=True)


class ConfigurationQuerySet(models.QuerySet[C_co]):
    """Records every write in the audit log, and announces it.

    `bulk_update` goes through `update`, and `get_or_create` through `save`.
    """

    @property
    def db(self) -> str:
        """The database; parts of a row are read where the row was read, because replicas may lag behind."""
        queryset: Any = self
        whole = queryset._hints.get("instance")
        alias = None if queryset._db or queryset._for_write or whole is None else whole._state.db
        return alias or super().db

    def update(self, **kwargs: Any) -> int:
        """Update all rows.

        Raises NotSupportedError for primary keys, because the audit log could not identify the rows afterwards.
        """
        if not {"pk", self.model._meta.pk.name}.isdisjoint(kwargs):
            raise NotSupportedError("primary keys cannot be changed: create another row, and delete this one")
        self._for_write = True  # which decides on the database
        with unit(self.db) as current:
            current.touch(self)
            for name in self.model.part_of:
                self._touch_new_wholes(current, name, kwargs)
            return super().update(**kwargs)

    def bulk_update(self, objs: Iterable[C_co], *args: Any, **options: Any) -> int:
        """Update these rows, all or none."""
        self._for_write = True
        with unit(self.db):
            return super().bulk_update(objs, *args, **options)

    def update_or_create(self, *args: Any, **options: Any) -> tuple[C_co, bool]:
        """Update or insert a row; locks the audit log before the row."""
        self._for_write = True
        with unit(self.db):
            return super().update_or_create(*args, **options)

    def delete(self) -> tuple[int, dict[str, int]]:
        """Delete all rows."""
        self._for_write = True
        with unit(self.db) as current:
            current.touch(self)
            return super().delete()

    def bulk_create(self, objs: Iterable[C_co], *args: Any, **options: Any) -> list[C_co]:
        """Insert all rows."""
        self._for_write = True
        rows = list(objs)
        chosen = [row.pk for row in rows if row.pk is not None]
        for row in rows:
            row._prepare_related_fields_for_save(operation_name="bulk_create")  # type: ignore[attr-defined]  # Django's
        with unit(self.db) as current:
            tells_keys = connections[self.db].features.can_return_rows_from_bulk_insert
            foreseen = len(args) < 2 and options.keys() <= {"batch_size"} and tells_keys
            everything = self.model._base_manager.using(self.db).all()
            for name in self.model.part_of:
                current.touch_wholes(self.model, name, [getattr(row, f"{name}_id") for row in rows])
            if not foreseen:  # the database does not report which rows existed
                current.touch(everything)
            created = super().bulk_create(rows, *args, **options)
            keys = [row.pk for row in rows] if foreseen else everything.values_list("pk", flat=True)
            current.touch_new(self.model, keys, chosen=chosen)
        return created

    def _touch_new_wholes(self, current: Unit, name: str, values: dict[str, Any]) -> None:
        """Record the objects that the rows are to belong to; for an expression, all objects that it may refer to."""
        for value in (values[field] for field in (name, f"{name}_id") if field in values):
            whole: Any = self.model._meta.get_field(name).related_model
            if hasattr(value, "resolve_expression"):
                current.touch(whole._base_manager.using(self.db).all())
            else:
                current.touch_wholes(self.model, name, [getattr(value, "pk", value)])


class ConfigurationManager(models.Manager[C_co]):
    """The manager of the announcing queryset."""

    def get_queryset(self) -> ConfigurationQuerySet[C_co]:
        """Give all rows."""
        return ConfigurationQuerySet(self.model, using=self._db)


def check_validators(field: Any, value: object) -> None:
    """Raise IntegrityError if a validator of a field rejects a value."""
    try:
        field.run_validators(value)
    except ValidationError as error:
        raise IntegrityError(f"{field.name}: {'; '.join(error.messages)}") from error


class Definable(models.Model):
    """A row that administrators set, and that can be read from a definition."""

    named_by: ClassVar[str] = "name"
    """The field with its unique name."""

    class Meta:
        abstract = True

    def clean(self) -> None:
        """Fill in implied values, and raise ValidationError for inconsistent ones."""
        super().clean()
        self.clean_alone()

    def clean_alone(self) -> None:
        """The part of `clean` that reads no other rows, for checking many rows before saving them."""


def name_field(model: type[models.Model]) -> str:
    """The field with the unique name of a row, of this app or a group of users."""
    return model.named_by if issubclass(model, Definable) else "name"


class Configuration(Definable):
    """A row of configuration that decides on requests: its changes are recorded and announced."""

    part_of: ClassVar[Sequence[str]] = ()
    """Foreign keys to the object that it belongs to; changes are recorded as changes of that object."""
    implied: ClassVar[Sequence[str]] = ()
    """Properties that the audit log stores in addition to the fields."""
    always_validated: ClassVar[Sequence[str]] = ()
    """Fields that are validated on every write, also without a form."""
    shown_as: str = ""
    """The text of a copy that pages show, instead of the label; empty for every other row."""

    objects: ClassVar[ConfigurationManager[Self]] = ConfigurationManager()

    class Meta(Definable.Meta):
        abstract = True
        base_manager_name = "objects"  # related managers write through it

    @classmethod
    def check_written(cls, written: Written, using: str) -> None:
        """Raise IntegrityError for rules that are not database constraints; called at the end of a unit of change."""
        for before, now in written.values():
            for name in cls.always_validated:
                if before.get(name) != now.get(name):
                    check_validators(cls._meta.get_field(name), now.get(name))

    @classmethod
    def complete_written(cls, before: Mapping[Any, Snapshot], using: str) -> None:
        """Write other rows that follow from those that were written or deleted in a unit of change, before it ends.

        `before` has their states before the change by primary key; those of new rows are empty.
        """

    @classmethod
    def touched_by(cls, key: Any, before: Snapshot, now: Snapshot) -> Touched:
        """What a change of a row concerns: the limits of some clients, or anything; an empty state is ignored."""
        return Touched.anything()

    def clean_fields(self, exclude: Collection[str] | None = None) -> None:
        """Raise ValidationError for invalid fields.

        Related rows that were read from the database for writing are not queried again on a replica, which may lag
        behind.
        """
        using = router.db_for_write(type(self), instance=self)
        loaded = {field.name for field in self._meta.concrete_fields if _is_known(self, field, using)}
        super().clean_fields({*(exclude or ()), *loaded})

    def get_constraints(self) -> list[tuple[type[models.Model], Sequence[models.BaseConstraint]]]:
        """The constraints that validation asks the database about: those that compare with other rows.

        Validation has its own error for each check of one row, which the database makes again on every write.
        """
        constraints: Any = super().get_constraints()
        return [
            (model, [constraint for constraint in constraints if not isinstance(constraint, models.CheckConstraint)])
            for model, constraints in constraints
        ]

    def delete(self, using: str | None = None, keep_parents: bool = False) -> tuple[int, dict[str, int]]:
        """Delete the row and its nested objects."""
        using = using or router.db_for_write(type(self), instance=self)
        with unit(using) as current:
            current.touch_row(self)
            return super().delete(using, keep_parents)

    def _save_table(self, *args: Any, **options: Any) -> bool:
        """Record the change; fixtures call this method instead of `save`."""
        using = args[4] if len(args) > 4 else options["using"]
        chosen = self.pk
        with unit(using) as current:
            if self.part_of and self.pk is not None:  # it may have belonged to another object
                current.touch(type(self)._base_manager.using(using).filter(pk=self.pk))
            current.touch_row(self)
            is_updated: bool = super()._save_table(*args, **options)  # type: ignore[misc]  # Django's own
            current.touch_new(type(self), [self.pk], chosen=[] if is_updated or chosen is None else [chosen])
        return is_updated


def _is_known(row: models.Model, field: Any, using: str) -> bool:
    """Whether a foreign key refers to a row that was read from a database."""
    other = field.get_cached_value(row, None) if field.is_relation else None
    return other is not None and other.pk is not None and other._state.db == using
