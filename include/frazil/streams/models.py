"""The model of a stream file, with its sections table, batch, errors, quality and maintenance."""

import hashlib
import json
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, field_validator, model_validator

from frazil.errors import ConfigurationError
from frazil.ledger.keys import DEAD_LETTERS_SUFFIX, EVENT_TIME
from frazil.streams.change_events import OP, OP_TYPE
from frazil.streams.column_types import (
    Column,
    FieldError,
    Primitive,
    is_time,
    parse_column,
    validate_distinct_names,
)
from frazil.streams.partitioning import PartitionField, parse_partition_field, validate_layout
from frazil.streams.routes import Route, TableName
from frazil.streams.sections import BY_REGISTRY, Key, Section, Source, Value, list_chosen
from frazil.streams.state_sections import (
    Changes,
    Merge,
    SequenceBy,
    StateOptions,
    StateTable,
    list_names,
    split_state_table,
    validate_name,
    validate_operation_name,
    validate_state_expiry,
    validate_state_layout,
    validate_state_table,
)
from frazil.streams.table_properties import validate_column_properties, validate_properties
from frazil.streams.timestamps import (
    CONTINUOUS,
    BatchSchedule,
    Count,
    Days,
    Hours,
    Megabytes,
    Number,
    Schedule,
    Seconds,
)

STREAM_NAME = r"^[a-z][a-z0-9_]{0,62}$"

_STATE_OPTIONS = ("id_columns", "cdc_field", "deletes", "tombstones", "state")

Policy = Literal["auto", "review", "quarantine", "fail"]


class Table(Section):
    """The Iceberg table that the stream fills."""

    connection: str = Field("iceberg_default", description="Airflow connection of the catalog")
    name: TableName = Field(description="`namespace.table`, lower case")
    mode: Literal["append", "upsert"] = Field(
        "append",
        description="`append` writes one row for each record; `upsert` keeps one row for each key, "
        "see [state tables](state-tables.md)",
    )
    id_columns: Annotated[tuple[str, ...], BeforeValidator(list_names)] = Field(
        (),
        description="with `upsert`: the required columns that are the key; `_from_debezium_key_`: "
        "those of the key of change events ([how](state-tables.md#the-key))",
    )
    cdc_field: str | None = Field(
        None,
        description="with `upsert`: the column that says what happened to the key: `c`, `r`, `u`, "
        "`insert` or `update`, and `d` or `delete`; default: every record is an upsert, and a "
        "column named `_op` is refused",
    )
    deletes: Literal["remove", "mark"] = Field(
        "remove",
        description="with `upsert`: a delete removes the row, or keeps it ([how](state-tables.md)) "
        "with the time of the delete in `_deleted_at`",
    )
    tombstones: Literal["dead_letter", "delete"] = Field(
        "dead_letter",
        description="with `upsert`: what a record with a key and no value is: a dead letter, or a "
        "delete, whose key the section `key` must decode ([how](state-tables.md#tombstones))",
    )
    partition_by: tuple[str, ...] = Field(
        (), description="partition transforms, see [below](#partition-transforms)"
    )
    sort_by: tuple[str, ...] = Field(
        (),
        description="columns of primitive types by which the rows of each file are sorted; for a "
        "new table",
    )
    properties: dict[str, str] = Field(
        default_factory=dict,
        description="Iceberg table properties of a new table, except those "
        "[that make batches fail](#table-properties)",
    )
    other_writers: Literal["allow", "refuse"] = Field(
        "allow",
        description="row changes by other writers: `allow` reports them in the audit, `refuse` "
        "halts the stream",
    )
    state: StateTable | None = None
    """The state table of `mode: upsert`; the section then describes its change table."""

    @model_validator(mode="before")
    @classmethod
    def _split_state(cls, given: object) -> object:
        return split_state_table(given)

    @model_validator(mode="after")
    def _state_options_fit(self) -> "Table":
        validate_name(self.state.name if self.state else self.name)
        if self.state is not None and not self.id_columns:
            raise FieldError(
                ("id_columns",), "required with `mode: upsert`: name the key's columns"
            )
        for name in ("id_columns", "cdc_field", "deletes", "tombstones"):
            if self.state is None and name in list_chosen(self):
                raise FieldError((name,), "only with `mode: upsert`")
        return self

    @property
    def operation_field(self) -> str | None:
        """Return the column in which a record without a value says that it is a delete."""
        return None if self.tombstones == "dead_letter" else self.cdc_field or OP

    @field_validator("properties")
    @classmethod
    def _properties_are_the_users(cls, properties: dict[str, str]) -> dict[str, str]:
        validate_properties(properties)
        return properties


class Batch(Section):
    """Size, schedule and engine of the batches."""

    schedule: BatchSchedule = Field(
        "* * * * *",
        description="cron expression of the ingest DAG, which starts at a different second for "
        "each stream; or `continuous`",
    )
    max_records: Count = Field(
        1_000_000, ge=1, description="most offsets in one batch; partitions share or take turns"
    )
    catch_up_records: Count | None = Field(
        None,
        ge=1,
        description="most offsets in one batch while more than `max_records` are unread; default: "
        "`max_records`",
    )
    max_bytes_per_second: Count | None = Field(
        None,
        ge=10_000,
        description="most bytes of keys and values that a job reads from Kafka in a second, for "
        "batches, replays, backfills and audits of values alike; a batch must still end within two "
        "hours; default: no limit",
    )
    engine: Literal["connect", "submit"] = Field(
        "connect",
        description="`connect` runs jobs on a Spark Connect server, `submit` by spark-submit",
    )
    tasks: Literal["each_step", "one"] = Field(
        "each_step",
        description="Airflow's tasks of a batch: one for each step, or [`one` for all four]"
        "(scale.md#one-task-for-a-batch), which needs less CPU",
    )

    @model_validator(mode="after")
    def _catching_up_is_no_slower(self) -> "Batch":
        if self.catch_up_records is not None and self.catch_up_records < self.max_records:
            raise FieldError(("catch_up_records",), "must not be below max_records")
        return self

    @property
    def is_continuous(self) -> bool:
        """Return whether each batch starts as soon as there are new records."""
        return self.schedule == CONTINUOUS

    def choose_cap(self, unread: int) -> int:
        """Return the largest size of the next batch, in offsets, given the unread offsets."""
        if self.catch_up_records is not None and unread > self.max_records:
            return self.catch_up_records
        return self.max_records


class Errors(Section):
    """What happens to records that cannot be decoded or lack a required column."""

    tolerance: Literal["none", "invalid_data", "all", "quarantine"] = Field(
        "quarantine",
        description="`quarantine` stores them as dead letters; `none` blocks the batch at the "
        "first; `invalid_data` skips empty and undecodable records and blocks the batch at any "
        "other bad record; `all` skips them",
    )
    max_bad_ratio: Number = Field(
        0.05,
        ge=0,
        le=1,
        description="share of bad records (0 to 1) above which the batch is blocked; a single bad "
        "record blocks it only with 0",
    )
    max_bad_records: Count | None = Field(
        None, ge=0, description="number of bad records above which the batch is blocked"
    )


class Quality(Section):
    """The expectations that a batch must meet before it is published."""

    suite: str | None = Field(
        None,
        pattern=r"^[A-Za-z0-9_.-]+$",
        description="expectation suite: file in `expectations/`, without `.json`",
    )
    on_failure: Literal["block", "warn"] = Field(
        "block", description="a failed expectation blocks the batch, or is only reported"
    )


class Freshness(Section):
    """How far a stream may lag behind its topic."""

    warn_seconds: Seconds = Field(
        180, ge=1, description="age in seconds at which the oldest unread record gives `warn`"
    )
    fail_seconds: Seconds = Field(
        600, ge=1, description="age in seconds at which the oldest unread record gives `fail`"
    )

    @model_validator(mode="after")
    def _warn_comes_first(self) -> "Freshness":
        if self.warn_seconds > self.fail_seconds:
            message = "warn_seconds must not exceed fail_seconds"
            raise ValueError(message)
        return self


class ExpireRows(Section):
    """Which rows expire."""

    column: str = Field(
        description="time of a row: a column of type date, timestamp or timestamptz, or "
        "`_kafka.timestamp`"
    )
    keep_days: Days = Field(
        ge=1, description="whole UTC days that rows are kept; rows without a time stay"
    )


class Maintenance(Section):
    """Compaction, snapshot expiry, row expiry and removal of orphan files."""

    schedule: Schedule | None = Field(
        None, description="cron expression; default: hourly, at a different minute for each stream"
    )
    compact_target_mb: Megabytes = Field(128, ge=1, description="target file size of compaction")
    expire_hours: Hours = Field(72, ge=1, description="age at which snapshots may be expired")
    rollback_hours: Hours = Field(24, ge=0, description="younger snapshots are never expired")
    orphan_days: Days = Field(3, ge=1, description="age at which orphan files may be removed")
    expire_rows: ExpireRows | None = Field(None, description="deletes old rows; default: all stay")


class SchemaPolicy(Section):
    """What to do when the stream file or registered schema differs from the table."""

    add_column: Policy = Field("auto", description="a new optional column")
    widen: Policy = Field("auto", description="int → long, float → double, more decimal precision")
    relax: Policy = Field("auto", description="a required column becomes optional")
    other: Policy = Field(
        "review",
        description="rename, drop, narrower or other type, new required column, other partitions",
    )


class Stream(Section):
    """One or several topics that are written to a table."""

    stream: str = Field(pattern=STREAM_NAME, description="name of the stream, used in DAG ids")
    owner: str = Field(min_length=1, description="person or team responsible for the stream")
    source: Source
    value: Value
    key: Key = Key()
    table: Table
    route: Route | None = Field(None, description="writes one topic to several tables")
    order: Literal["kafka"] | SequenceBy = Field(
        "kafka",
        description="which change of a key is the newest, with `mode: upsert`: the one with the "
        "largest offset in its partition (`kafka`), or the one with the largest sequence",
    )
    merge: Merge = Merge()
    changes: Changes = Changes()
    batch: Batch = Batch()
    errors: Errors = Errors()
    schema_policy: SchemaPolicy = Field(SchemaPolicy(), alias="schema")
    quality: Quality = Quality()
    freshness: Freshness = Freshness()
    maintenance: Maintenance = Maintenance()

    @model_validator(mode="after")
    def _references_fit(self) -> "Stream":
        columns = self.parsed_columns
        self._validate_names(columns)
        for part in ("value", "key"):
            self._validate_subject(part)
        self._validate_event_keys()
        self._validate_route()
        self._validate_state_table()
        if self.needs_columns:
            return self
        layout = self.table.state or self.table
        validate_layout(layout.partition_by, layout.sort_by, columns)
        validate_column_properties(self.table.properties, columns)
        self._validate_row_expiry(columns)
        return self

    def _validate_names(self, columns: tuple[Column, ...]) -> None:
        if self.table.state is not None:
            validate_operation_name(self._state_options)
        try:
            validate_distinct_names(columns)
        except FieldError as error:
            raise FieldError(("key", "column"), str(error)) from error

    def _validate_subject(self, part: Literal["value", "key"]) -> None:
        payload = self.value if part == "value" else self.key
        if payload.convert in BY_REGISTRY and not payload.subject and len(self.source.names) > 1:
            raise FieldError((part, "subject"), "required because the stream has several topics")

    def _validate_event_keys(self) -> None:
        if self.value.change_events and self.value.convert in BY_REGISTRY and self.key.convert:
            reason = "not with change events of a registry: their keys are read as the values are"
            raise FieldError(("key", "convert"), reason)

    def _validate_route(self) -> None:
        if self.route is None:
            return
        for value, table in self.route.tables.items() if self.route.takes is None else ():
            if table == self.table.name:
                reason = f"{table} is the table of the file itself, for records without a route"
                raise FieldError(("route", "tables", value), reason)
        if self.source.topic_pattern is not None:
            raise FieldError(("route",), "not with `topic_pattern`: each topic has one table")
        if self.source.monitoring_group is not None:
            reason = "its streams read the topic independently, and a group has one position"
            raise FieldError(("source", "monitoring_group"), f"not with `route`: {reason}")
        if self.value.change_events is not None:
            reason = "not with `transform: flatten_debezium`: a delete has only its key's columns"
            raise FieldError(("route",), reason)
        if self.source.start == "latest":
            reason = "its streams start at different times, so records in between would be lost"
            raise FieldError(("source", "start"), f"not with `route`: {reason}")
        if self.needs_columns:
            return
        texts = [c.name for c in self.value.parsed_columns if c.type == Primitive("string")]
        if self.route.field not in texts:
            reason = f"{self.route.field!r} is not a string column of the value; those are: "
            raise FieldError(("route", "field"), reason + ", ".join(texts))

    def _validate_state_table(self) -> None:
        """Check the options of a state table, and refuse those that do not support one yet."""
        table = self.table
        if table.state is None:
            chosen = list_chosen(self)
            for name in (each for each in ("order", "merge", "changes") if each in chosen):
                raise FieldError((name,), "only with `mode: upsert`")
            return
        refused = {
            ("route",): self.route is not None,
            ("errors", "tolerance"): self.errors.tolerance in {"all", "invalid_data"},
        }
        for place in (each for each, is_set in refused.items() if is_set):
            raise FieldError(place, "not with `mode: upsert`: a key would keep an older row")
        if self.order == "kafka" and len(self.source.names) > 1:
            reason = "offsets of several topics have no order: use `{sequence_by: [column]}`"
            raise FieldError(("order",), reason)
        if self.needs_columns and self.value.change_events is None:
            raise FieldError(("value", "columns"), "required with `mode: upsert`: list the columns")
        options = self._state_options
        validate_state_table(options, list_chosen(table))
        validate_state_layout(table.state, options)
        if (rule := self.maintenance.expire_rows) is not None:
            validate_state_expiry(rule.column, options)

    @property
    def _state_options(self) -> StateOptions:
        table = self.table
        return StateOptions(
            value=self.value,
            key=self.key,
            columns=self.parsed_columns,
            id_columns=table.id_columns,
            sequence=self.sequence,
            cdc_field=table.cdc_field,
            deletes=table.deletes,
            tombstones=table.tombstones,
        )

    def _validate_row_expiry(self, columns: tuple[Column, ...]) -> None:
        """Check that the column of row expiry exists and is a time."""
        rule = self.maintenance.expire_rows
        fitting = [EVENT_TIME, *(column.name for column in columns if is_time(column.type))]
        if rule is not None and rule.column not in fitting:
            reason = f"{rule.column!r} is not a time column; those are: {', '.join(fitting)}"
            raise FieldError(("maintenance", "expire_rows", "column"), reason)

    @property
    def partition_fields(self) -> tuple[PartitionField, ...]:
        """Return the parsed partition transforms."""
        return tuple(
            parse_partition_field(text, self.parsed_columns) for text in self.table.partition_by
        )

    @property
    def sequence(self) -> tuple[str, ...]:
        """Return the columns that order the changes of a state table; none for Kafka's offsets."""
        return () if self.order == "kafka" else self.order.sequence_by

    @property
    def needs_columns(self) -> bool:
        """Return whether columns are missing in the file and come from a registered schema."""
        return self.value.needs_columns or self.key.needs_type

    @property
    def typed_columns(self) -> dict[str, str]:
        """Return name → type of the table's columns: the value's, the key's, then `_op`."""
        return {**self.value.typed_columns, **self.key.typed_columns, **self._own_columns}

    @property
    def _own_columns(self) -> dict[str, str]:
        """Return the column that marks deletes, unless a column of the value has its name."""
        is_added = self.table.operation_field == OP and OP not in self.value.typed_columns
        return {OP: OP_TYPE} if is_added else {}

    @cached_property
    def parsed_columns(self) -> tuple[Column, ...]:
        """Return the table's parsed columns: the value's, the key's, then `_op`."""
        parts = (self.value.typed_columns, self.key.typed_columns, self._own_columns)
        return tuple(parse_column(name, text) for part in parts for name, text in part.items())

    def only_topic(self, option: str | None = None) -> str:
        """Return the stream's only topic; `option` is the one by which a user can choose a topic.

        Raises:
            ConfigurationError: the stream has several topics.
        """
        names = self.source.names
        if len(names) == 1:
            return names[0]
        raise ConfigurationError(
            f"stream {self.stream} reads {', '.join(names)}; this works for one topic only",
            f"choose a topic, for example `{option} {names[0]}`"
            if option
            else "define a stream for each topic",
        )

    def require_no_state_table(self, action: str, instead: str) -> None:
        """Raise if the stream has a state table, for an action whose changes have no order there.

        Raises:
            ConfigurationError: nothing was written; the next step is what to do `instead`.
        """
        if self.table.state is not None:
            raise ConfigurationError(
                f"stream {self.stream} keeps state table {self.table.state.name}, which cannot "
                f"follow {action}; nothing was written",
                instead,
            )

    @property
    def dead_letters_table(self) -> str:
        """Return the name of the table of dead letters."""
        return self.table.name + DEAD_LETTERS_SUFFIX

    @cached_property
    def content_hash(self) -> str:
        """Return a hash of the options that determine rows, without schedules and freshness."""
        deciding = {"stream", "source", "value", "key", "table", "errors", "quality", "route"}
        of_state = () if self.table.state else _STATE_OPTIONS
        excluded = {
            "table": {"other_writers", *of_state},
            "source": {"monitoring_group", "topic_pattern", "exclude_topics"},
            "value": self.value.unused_newer_options,
            "key": self.key.unused_newer_options,
        }
        parts: Mapping[str, object] = self.model_dump(
            mode="json", include=deciding, exclude=excluded
        )
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


def suite_path(streams_dir: Path, suite: str) -> Path:
    """Return the file of an expectation suite, in a folder beside the stream files."""
    return streams_dir / "expectations" / f"{suite}.json"
