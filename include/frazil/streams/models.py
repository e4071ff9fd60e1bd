"""Stream files: one YAML file makes a stream. Models, loading, and errors that name the line."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, field_validator, model_validator

from frazil.errors import ConfigurationError
from frazil.ledger.keys import DEAD_LETTERS_SUFFIX, EVENT_TIME
from frazil.streams.column_types import (
    Column,
    FieldError,
    is_time,
    parse_column,
    validate_distinct_names,
)
from frazil.streams.partitioning import PartitionField, parse_partition_field
from frazil.streams.routes import Route, TableName
from frazil.streams.schedules import CONTINUOUS, parse_batch_schedule, parse_schedule
from frazil.streams.sections import BY_REGISTRY, Key, Section, Source, Value
from frazil.streams.timestamps import DAY_MS

STREAM_NAME = r"^[a-z][a-z0-9_]{0,62}$"


Policy = Literal["auto", "review", "quarantine", "fail"]


Schedule = Annotated[str, AfterValidator(parse_schedule)]


class Table(Section):
    """The Iceberg table that the stream fills."""

    connection: str = Field("iceberg_default", description="Airflow connection of the catalog")
    name: TableName = Field(description="`namespace.table`, lower case")
    mode: Literal["append"] = Field("append", description="every record becomes a row")
    partition_by: tuple[str, ...] = Field(
        (), description="identity, year, month, day, hour, bucket, truncate of columns"
    )
    sort_by: tuple[str, ...] = Field(
        (), description="columns of a new table's order, which each file has"
    )
    properties: dict[str, str] = Field(
        default_factory=dict, description="Iceberg table properties of a new table"
    )
    other_writers: Literal["allow", "refuse"] = Field(
        "allow", description="rows that others add or take: told by the audit, or the stream halts"
    )

    @field_validator("properties")
    @classmethod
    def _properties_are_the_users(cls, properties: dict[str, str]) -> dict[str, str]:
        for key in properties:
            if key.startswith("frazil."):
                message = f"property {key!r}: frazil.* is written by Frazil alone"
                raise ValueError(message)
        if "history.expire.max-ref-age-ms" in properties:
            raise ValueError("history.expire.max-ref-age-ms would expire staging branches")
        if properties.get("format-version", "2") != "2":
            message = "format-version must be 2: PyIceberg writes no other yet"
            raise ValueError(message)
        return properties


class Batch(Section):
    """How much, how often, and where it runs."""

    schedule: Annotated[str, AfterValidator(parse_batch_schedule)] = Field(
        "* * * * *",
        description="cron line of the ingest DAG, which adds a second of its own; or `continuous`",
    )
    max_records: int = Field(1_000_000, ge=1, description="cap of one batch, in offsets")
    catch_up_records: int | None = Field(
        None, ge=1, description="cap while more than max_records wait; left out, the same"
    )
    engine: Literal["connect", "submit"] = Field("connect", description="a server, or a cluster")

    @model_validator(mode="after")
    def _catching_up_is_no_slower(self) -> "Batch":
        if self.catch_up_records is not None and self.catch_up_records < self.max_records:
            raise FieldError(("catch_up_records",), "must not be below max_records")
        return self

    @property
    def is_continuous(self) -> bool:
        """Say whether each batch follows the one before as soon as there are records."""
        return self.schedule == CONTINUOUS

    def choose_cap(self, waiting: int) -> int:
        """Choose the cap of the next batch by the offsets that wait."""
        if self.catch_up_records is not None and waiting > self.max_records:
            return self.catch_up_records
        return self.max_records


class Errors(Section):
    """What happens to records that do not decode or miss a required column."""

    tolerance: Literal["none", "invalid_data", "all", "quarantine"] = Field(
        "quarantine",
        description="`quarantine` keeps them as dead letters; `none` lets one block the batch; "
        "`invalid_data` skips empty and undecodable ones and blocks on the rest; `all` skips",
    )
    max_bad_ratio: float = Field(
        0.05, ge=0, le=1, description="bad ÷ read above which the batch stops unseen"
    )
    max_bad_records: int | None = Field(
        None, ge=0, description="bad records above which the batch stops unseen"
    )


class Quality(Section):
    """The expectations that a batch must meet before anyone sees it."""

    suite: str | None = Field(
        None, pattern=r"^[A-Za-z0-9_.-]+$", description="file in expectations/, without .json"
    )
    on_failure: Literal["block", "warn"] = Field("block", description="what a failed check does")


class Freshness(Section):
    """How far behind a stream may be."""

    warn_seconds: int = Field(180, ge=1, description="the watch warns above this age")
    fail_seconds: int = Field(600, ge=1, description="the watch fails above this age")

    @model_validator(mode="after")
    def _warn_comes_first(self) -> "Freshness":
        if self.warn_seconds > self.fail_seconds:
            message = "warn_seconds must not exceed fail_seconds"
            raise ValueError(message)
        return self


class ExpireRows(Section):
    """Which rows are too old to be kept."""

    column: str = Field(
        description="a column of type date, timestamp or timestamptz, or `_kafka.timestamp`"
    )
    keep_days: int = Field(ge=1, le=36_500, description="whole UTC days; a row without time stays")


class Maintenance(Section):
    """Compaction, expiry and orphan removal."""

    schedule: Schedule | None = Field(None, description="cron line; else hourly, in its own minute")
    compact_target_mb: int = Field(128, ge=1, description="file size that compaction aims at")
    expire_hours: int = Field(72, ge=1, description="snapshots older than this may go")
    rollback_hours: int = Field(24, ge=0, description="snapshots of this window never go")
    orphan_days: int = Field(3, ge=1, description="unreferenced files older than this may go")
    expire_rows: ExpireRows | None = Field(
        None, description="rows older than this go; left out, every row is kept"
    )


class SchemaPolicy(Section):
    """Who decides a schema change."""

    add_column: Policy = Field("auto", description="a new optional column")
    widen: Policy = Field("auto", description="int→long, float→double, decimal precision")
    relax: Policy = Field("auto", description="required becomes optional")
    other: Policy = Field(
        "review", description="rename, drop, narrow, type change, other partitions"
    )


class Stream(Section):
    """A topic that becomes a table."""

    stream: str = Field(pattern=STREAM_NAME, description="name; also of its DAGs")
    owner: str = Field(min_length=1, description="who answers for it")
    source: Source
    value: Value
    key: Key = Key()
    table: Table
    route: Route | None = Field(None, description="one topic to several tables")
    batch: Batch = Batch()
    errors: Errors = Errors()
    schema_policy: SchemaPolicy = Field(SchemaPolicy(), alias="schema")
    quality: Quality = Quality()
    freshness: Freshness = Freshness()
    maintenance: Maintenance = Maintenance()

    @model_validator(mode="after")
    def _references_fit(self) -> "Stream":
        columns = self.parsed_columns
        try:
            validate_distinct_names(columns)
        except FieldError as error:
            raise FieldError(("key", "column"), str(error)) from error
        for part in ("value", "key"):
            self._refuse_ambiguous_subject(part)
        self._refuse_unfit_route()
        if self.needs_columns:
            return self
        before: list[PartitionField] = []
        for index, text in enumerate(self.table.partition_by):
            try:
                before.append(parse_partition_field(text, columns, before))
            except ValueError as error:
                raise FieldError(("table", "partition_by", index), str(error)) from error
        names = {column.name for column in columns}
        self._refuse_timeless(columns)
        for index, name in enumerate(self.table.sort_by):
            if name not in names:
                known = ", ".join(sorted(names))
                reason = f"column {name!r} is not among {known}"
                raise FieldError(("table", "sort_by", index), reason)
        return self

    def _refuse_ambiguous_subject(self, part: Literal["value", "key"]) -> None:
        payload = self.value if part == "value" else self.key
        if payload.convert in BY_REGISTRY and not payload.subject and len(self.source.names) > 1:
            raise FieldError((part, "subject"), "several topics share one subject: name it")

    def _refuse_unfit_route(self) -> None:
        if self.route is None:
            return
        if self.source.start == "latest":
            reason = "streams of a route begin one after the other; what comes between were lost"
            raise FieldError(("source", "start"), f"not with `route`: {reason}")
        if self.needs_columns:
            return
        if self.value.typed_columns.get(self.route.field, "").rstrip("!") != "string":
            known = ", ".join(n for n, t in self.value.typed_columns.items() if t[:6] == "string")
            reason = f"{self.route.field!r} is no text column of the value; those are: {known}"
            raise FieldError(("route", "field"), reason)

    def _refuse_timeless(self, columns: tuple[Column, ...]) -> None:
        """Refuse to expire rows by a column that is not there or that is no time."""
        rule = self.maintenance.expire_rows
        fitting = [EVENT_TIME, *(column.name for column in columns if is_time(column.type))]
        if rule is not None and rule.column not in fitting:
            reason = f"{rule.column!r} is no column with a time; there are {', '.join(fitting)}"
            raise FieldError(("maintenance", "expire_rows", "column"), reason)

    @property
    def partition_fields(self) -> tuple[PartitionField, ...]:
        """Give the partition transforms as values."""
        return tuple(
            parse_partition_field(text, self.parsed_columns) for text in self.table.partition_by
        )

    @property
    def needs_columns(self) -> bool:
        """Say whether the file leaves columns to a registered schema."""
        return self.value.needs_columns or self.key.needs_type

    @property
    def typed_columns(self) -> dict[str, str]:
        """Give name → type of the table's columns: the value's, then the key's."""
        return {**self.value.typed_columns, **self.key.typed_columns}

    @cached_property
    def parsed_columns(self) -> tuple[Column, ...]:
        """Give the table's columns as types, the value's first."""
        pairs = [*self.value.typed_columns.items(), *self.key.typed_columns.items()]
        return tuple(parse_column(name, text) for name, text in pairs)

    def only_topic(self, option: str | None = None) -> str:
        """Give the one topic; `option` names it where there are several.

        Raises:
            ConfigurationError: there are several.
        """
        names = self.source.names
        if len(names) == 1:
            return names[0]
        raise ConfigurationError(
            f"stream {self.stream} reads {', '.join(names)}; this is about one topic",
            f"name it, as `{option} {names[0]}`"
            if option
            else "give each topic a stream of its own",
        )

    @property
    def dead_letters_table(self) -> str:
        """Name the table of the records that did not fit."""
        return self.table.name + DEAD_LETTERS_SUFFIX

    @cached_property
    def content_hash(self) -> str:
        """Hash what decides about rows; schedules and limits of freshness are left out."""
        deciding = {"stream", "source", "value", "key", "table", "errors", "quality", "route"}
        parts: Mapping[str, object] = self.model_dump(
            mode="json", include=deciding, exclude={"table": {"other_writers"}}
        )
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


def suite_path(streams_dir: Path, suite: str) -> Path:
    """Locate an expectation suite beside the stream files."""
    return streams_dir / "expectations" / f"{suite}.json"


@dataclass(frozen=True)
class RetentionWindow:
    """How long snapshots stay: for readers (`expire_ms`) and for a rollback (`rollback_ms`)."""

    expire_ms: int
    rollback_ms: int

    def cutoff_ms(self, now_ms: int) -> int:
        """Give the instant whose table must still be readable."""
        return now_ms - max(self.expire_ms, self.rollback_ms)

    def abandoned_cutoff_ms(self, now_ms: int) -> int:
        """Give the instant before which a snapshot on no branch is nobody's work in progress."""
        return now_ms - max(DAY_MS, self.rollback_ms)
