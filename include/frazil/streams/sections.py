"""The sections source, value and key of a stream file: what is read, and how it is decoded."""

import json
import re
from collections.abc import Mapping
from functools import cached_property
from typing import Annotated, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    field_validator,
    model_validator,
)

from frazil.streams.change_events import (
    EVENT_COLUMNS,
    OP,
    RESERVED_FIELDS,
    REST_FIELD,
    REST_TYPE,
    ChangeEvents,
    Decimals,
    Truncate,
    validate_field_names,
)
from frazil.streams.column_types import (
    Column,
    FieldError,
    parse_column,
    validate_column_name,
    validate_distinct_fields,
)
from frazil.streams.timestamps import Offsets, parse_instant
from frazil.streams.topic_lists import require_topic_name

Convert = Literal["json", "string", "raw", "by_schema_id", "by_latest_schema"]

BY_REGISTRY = frozenset({"by_schema_id", "by_latest_schema"})

VALUE_COLUMN = "value"

TOPIC = "topic"
"""The placeholder of the whole topic in names of tables."""

_WHOLE = {"string": "string", "raw": "binary"}
"""The conversions that keep a payload in one column → the type of that column."""

_REGISTRY = "schema_registry_default"

RegistryConnection = Annotated[str, Field(description="Airflow connection of the schema registry")]
MessageName = Annotated[
    str | None,
    Field(min_length=1, description="Protobuf message; default: the first of the schema"),
]
UnknownId = Annotated[
    Literal["wait", "quarantine"],
    Field(
        description="for a schema id that the registry does not know: the batch waits, or the "
        "records become dead letters"
    ),
]


class Section(BaseModel):
    """Base of the sections of a stream file; unknown keys are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")


def _write_column(given: object) -> object:
    """Return a column's `type` and `from` as one text, as the column types are parsed."""
    if not isinstance(given, Mapping):
        return given
    if not ({"type"} <= set(given) <= {"type", "from"}):
        message = 'write a type, or `{type: long!, from: "order-id"}`'
        raise ValueError(message)
    if not all(isinstance(text, str) and text for text in given.values()):
        message = "type and from must be texts"
        raise ValueError(message)
    source = given.get("from")
    return (
        f"{given['type']} from {json.dumps(source, ensure_ascii=False)}"
        if source
        else given["type"]
    )


def _validate_columns(columns: dict[str, str]) -> dict[str, str]:
    """Return the texts of columns that can be parsed and differ."""
    validate_distinct_fields(tuple(_parse_column(*entry) for entry in columns.items()))
    validate_field_names(columns, {REST_FIELD})
    return columns


def _parse_column(name: str, text: str) -> Column:
    try:
        return parse_column(name, text)
    except ValueError as error:
        raise FieldError((name,), str(error)) from error


ColumnText = Annotated[str, BeforeValidator(_write_column)]
Columns = Annotated[dict[str, ColumnText], AfterValidator(_validate_columns)]


class Value(Section):
    """How a record's value is decoded to columns."""

    convert: Convert = Field(
        "json",
        description="`json` decodes a JSON object; `string` and `raw` store the value undecoded; "
        "`by_schema_id` decodes Avro, Protobuf or JSON Schema by the schema id at the start of "
        "each value; `by_latest_schema` decodes values without an id by the latest version of the "
        "subject",
    )
    columns: Columns = Field(
        default_factory=dict,
        description="name → type, or name → `{type: …, from: FIELD}` for a field with another "
        "name; `!` means required. `string` and `raw` have one column, `value`. With a registry, "
        "default: the columns of the registered schema, for change events those of `after`",
    )
    transform: Literal["none", "flatten", "flatten_debezium"] | None = Field(
        None,
        description="`flatten` writes each field to a column, `none` writes the whole value to the "
        "column `value`, `flatten_debezium` writes each change of a source table as a row, for "
        "`json` or, in Avro, `by_schema_id` ([how](cdc.md)); default: `none` for `string` and "
        "`raw`, else `flatten`",
    )
    truncate: Truncate = Field(
        "refuse",
        description="with `flatten_debezium`, an event that the source table was truncated: "
        "`refuse` blocks the batch, `apply` writes a row with `_op` t",
    )
    decimals: Decimals = Field(
        "precise",
        description="`decimal.handling.mode` of the connector, for messages without a schema: "
        "a text in a decimal column is a dead letter with `precise`, a decimal with `string`",
    )
    rest: str | None = Field(
        None,
        description="for JSON: the name of a string column that keeps, as a JSON object, the "
        "fields without a column of their own ([how](formats.md#the-rest))",
    )
    registry: RegistryConnection = _REGISTRY
    subject: str | None = Field(
        None,
        min_length=1,
        description="subject in the registry, with its context if it has one (`:.shop:orders-value`"
        "); default: `<topic>-value`",
    )
    message: MessageName = None
    unknown_id: UnknownId = "wait"

    @field_validator("rest")
    @classmethod
    def _rest_can_be_a_column(cls, rest: str | None) -> str | None:
        if rest is not None:
            validate_column_name(rest)
        return rest

    @model_validator(mode="after")
    def _columns_fit_convert(self) -> "Value":
        if self.convert == "json" and not self.columns:
            message = "convert: json needs columns, for example `columns: {id: long!}`"
            if self.transform == "flatten_debezium":
                message += ": only events in Avro (by_schema_id) have a registered schema"
            raise ValueError(message)
        word = _WHOLE.get(self.convert)
        if word and self.columns and set(self.columns) != {VALUE_COLUMN}:
            message = f"convert: {self.convert} has one column: `columns: {{value: {word}}}`"
            raise ValueError(message)
        if word and self.columns and self.columns[VALUE_COLUMN].rstrip("!") != word:
            message = f"convert: {self.convert} requires `value: {word}`"
            raise ValueError(message)
        return self

    @model_validator(mode="after")
    def _transform_fits_convert(self) -> "Value":
        if self.transform == "flatten" and self.convert in _WHOLE:
            message = f"convert: {self.convert} has no fields to flatten; remove transform"
            raise FieldError(("transform",), message)
        if self.transform == "none" and self.columns and set(self.columns) != {VALUE_COLUMN}:
            message = "transform: none has one column, for example `value: struct<id: long>`"
            raise FieldError(("columns",), message)
        if not self.is_flat and any(column.source for column in self.parsed_columns):
            message = "the column holds the whole value and reads no field: remove `from`"
            raise FieldError(("columns", VALUE_COLUMN), message)
        if self.transform == "none" and self.convert == "json":
            word = self.columns[VALUE_COLUMN]
            if not word.lstrip().startswith("struct"):
                message = f"convert: json requires `value: struct<…>`, not {word}"
                raise FieldError(("columns", VALUE_COLUMN), message)
        return self

    @model_validator(mode="after")
    def _events_fit_convert(self) -> "Value":
        if self.transform != "flatten_debezium":
            for name in ("truncate", "decimals"):
                if name in list_chosen(self):
                    raise FieldError((name,), "only with `transform: flatten_debezium`")
            return self
        if self.convert not in {"json", "by_schema_id"}:
            message = f"flatten_debezium needs convert: json or by_schema_id, not {self.convert}"
            raise FieldError(("transform",), message)
        if self.convert != "json" and "decimals" in list_chosen(self):
            reason = "only with `convert: json`: a registered schema has the digits of decimals"
            raise FieldError(("decimals",), reason)
        for name in self.columns:
            if name.lower() in EVENT_COLUMNS:
                message = f"{name} is added by flatten_debezium; give the field another name"
                raise FieldError(("columns", name), message)
        required = [column.name for column in self.parsed_columns if column.required]
        if self.truncate == "apply" and required != [OP]:
            message = f"a truncate has no key: remove `!` from {', '.join(required[:-1])}"
            raise FieldError(("truncate",), message)
        return self

    @model_validator(mode="after")
    def _rest_is_a_further_column(self) -> "Value":
        if self.change_events is not None or self.rest is not None:
            validate_field_names(self.columns, RESERVED_FIELDS, "columns")
        if self.rest is None:
            return self
        is_read_by_workers = self.convert == "json" or self.change_events is not None
        if not is_read_by_workers or not self.is_flat:
            raise FieldError(("rest",), "only with `convert: json` and a column for each field")
        taken = {*self.columns, *(EVENT_COLUMNS if self.change_events is not None else ())}
        if self.rest.lower() in map(str.lower, taken):
            raise FieldError(("rest",), f"{self.rest} is a column of its own; choose another name")
        return self

    @model_validator(mode="after")
    def _registry_fits_convert(self) -> "Value":
        _validate_used_options(self, self.convert)
        return self

    @property
    def unused_newer_options(self) -> set[str]:
        """Return the options that release 0.1 lacks and the file leaves out: no hash has them."""
        return {"truncate", "decimals", "rest"} - list_chosen(self)

    @property
    def change_events(self) -> ChangeEvents | None:
        """Return how change events become rows; None if values are no change events."""
        if self.transform != "flatten_debezium":
            return None
        return ChangeEvents(truncate=self.truncate, decimals=self.decimals)

    @property
    def is_flat(self) -> bool:
        """Return whether each field of a value is a column."""
        return self.transform != "none" and self.convert not in _WHOLE

    @property
    def needs_columns(self) -> bool:
        """Return whether the columns have to come from the registered schema or the table."""
        return self.convert in BY_REGISTRY and not self.columns

    @property
    def typed_columns(self) -> dict[str, str]:
        """Return name → type, with the only column of `string` and `raw` and those of events."""
        if self.convert in _WHOLE:
            return self.columns or {VALUE_COLUMN: _WHOLE[self.convert]}
        rest = {} if self.rest is None else {self.rest: REST_TYPE}
        return self.columns | rest | ({} if self.change_events is None else EVENT_COLUMNS)

    @cached_property
    def parsed_columns(self) -> tuple[Column, ...]:
        """Return the parsed columns."""
        return tuple(parse_column(name, text) for name, text in self.typed_columns.items())


class Key(Section):
    """How a record's key is decoded to a column; `_kafka.key` always has its bytes."""

    convert: Convert | None = Field(
        None, description="like `value.convert`; default: the key has no column"
    )
    column: str = Field("key", description="name of the key's column")
    type: str | None = Field(
        None,
        min_length=1,
        description="type of the column, for example `struct<id: long!>`; default: `string` for "
        "`string`, `binary` for `raw`, with a registry the type of the registered schema",
    )
    columns: Columns = Field(
        {},
        description="instead of `column` and `type`: a column for each field of the key, name → "
        "type as in `value.columns`",
    )
    registry: RegistryConnection = _REGISTRY
    subject: str | None = Field(
        None,
        min_length=1,
        description="subject in the registry, with its context if it has one (`:.shop:orders-key`"
        "); default: `<topic>-key`",
    )
    message: MessageName = None
    unknown_id: UnknownId = "wait"

    @model_validator(mode="after")
    def _type_fits_convert(self) -> "Key":
        if self.convert is None:
            if list_chosen(self):
                message = "key needs convert, for example `key: {convert: string}`"
                raise ValueError(message)
            return self
        if self.columns:
            _validate_used_options(self, self.convert)
            if self.convert in _WHOLE or {"column", "type"} & list_chosen(self):
                message = "only with `json` or a registry, and without `column` and `type`"
                raise FieldError(("columns",), message)
            return self
        if self.convert == "json" and not (self.type or "").lstrip().startswith("struct"):
            message = "convert: json needs a struct, for example `type: struct<id: long!>`"
            raise FieldError(("type",), message)
        word = _WHOLE.get(self.convert)
        if word and (self.type or word).rstrip("!") != word:
            message = f"convert: {self.convert} requires `type: {word}`"
            raise FieldError(("type",), message)
        _validate_used_options(self, self.convert)
        try:
            validate_column_name(self.column)
        except ValueError as error:
            raise FieldError(("column",), str(error)) from error
        try:
            column = parse_column(self.column, self.type or "string")
        except ValueError as error:
            raise FieldError(("type",), str(error)) from error
        if column.source:
            message = "the column holds the whole key and reads no field: remove `from`"
            raise FieldError(("type",), message)
        return self

    @property
    def needs_type(self) -> bool:
        """Return whether the type has to come from the registered schema or the table."""
        return self.convert in BY_REGISTRY and self.type is None and not self.columns

    @property
    def unused_newer_options(self) -> set[str]:
        """Return the options that release 0.1 lacks and the file leaves out: no hash has them."""
        return {"columns"} - list_chosen(self)

    @property
    def typed_columns(self) -> dict[str, str]:
        """Return name → type of the key's columns; empty if it has none."""
        if self.convert is None or self.needs_type:
            return {}
        return self.columns or {self.column: self.type or _WHOLE[self.convert]}


def _validate_used_options(section: Value | Key, convert: str) -> None:
    """Check that options of a registry are only set if it is used."""
    if convert in BY_REGISTRY:
        return
    chosen = list_chosen(section)
    for name in ("registry", "subject", "message", "unknown_id"):
        if name in chosen:
            message = f"convert: {convert} uses no schema registry; remove {name}"
            raise FieldError((name,), message)


def list_chosen(section: Section) -> set[str]:
    """List the options that differ from their default, so that a dumped stream can be loaded."""
    fields, is_set = type(section).model_fields, section.model_fields_set
    return {name for name in is_set if getattr(section, name) != fields[name].get_default()}


TopicName = Annotated[str, Field(min_length=1, max_length=249), AfterValidator(require_topic_name)]


class StartAtTime(Section):
    """Start at the first record at or after an instant."""

    timestamp: Annotated[str, BeforeValidator(parse_instant)] = Field(
        description="ISO 8601 instant with zone, for example `2026-01-31T00:00:00Z`"
    )


class StartAtOffsets(Section):
    """Start at exact offsets."""

    offsets: Offsets = Field(
        description="partition → first offset to read; other partitions start at the earliest"
    )


def _kind_of_start(start: object) -> str:
    """Choose the variant by its key, so that an error is reported for this variant only."""
    if isinstance(start, Mapping):
        return "StartAtTime" if "timestamp" in start else "StartAtOffsets"
    return type(start).__name__ if isinstance(start, Section) else "literal[]"


Start = (
    Annotated[Literal["earliest", "latest"], Tag("literal[]")]
    | Annotated[StartAtTime, Tag("StartAtTime")]
    | Annotated[StartAtOffsets, Tag("StartAtOffsets")]
)


class Source(Section):
    """The topics that are read, and where to start."""

    connection: str = Field("kafka_default", description="Airflow connection of the Kafka cluster")
    topic: TopicName | None = Field(
        None, description="topic to read; set this, `topics` or `topic_pattern`"
    )
    topics: tuple[TopicName, ...] = Field(
        (),
        description="several topics for one table; a topic that is added later is read from its "
        "first offset",
    )
    topic_pattern: str | None = Field(
        None,
        min_length=1,
        description="regular expression; each topic whose whole name matches has a stream and a "
        "table of its own, see [below](#many-tables-from-one-file)",
    )
    exclude_topics: tuple[TopicName, ...] = Field(
        (), description="with `topic_pattern`: topics that have no stream although they match"
    )
    start: Annotated[Start, Discriminator(_kind_of_start)] = Field(
        "earliest", description="where the first batch starts; later ones continue from the ledger"
    )
    isolation: Literal["read_committed", "read_uncommitted"] = Field(
        "read_committed", description="Kafka isolation level"
    )
    monitoring_group: str | None = Field(
        None,
        min_length=1,
        max_length=249,
        description="consumer group in which the next offsets are committed after each batch, for "
        "lag monitors only: they are never read back; one of its own for each stream",
    )

    @field_validator("topic_pattern")
    @classmethod
    def _pattern_compiles(cls, pattern: str | None) -> str | None:
        if pattern is None:
            return None
        try:
            groups = re.compile(pattern).groupindex
        except (OverflowError, RecursionError) as error:
            message = f"not a regular expression that can be used: {error}"
            raise ValueError(message) from error
        except re.error as error:
            hint = "; a named group is `(?P<name>…)`" if "extension ?<" in str(error) else ""
            message = f"not a regular expression: {error}{hint}"
            raise ValueError(message) from error
        if TOPIC in groups:
            message = f"give group {TOPIC!r} another name: {{{TOPIC}}} is the whole topic"
            raise ValueError(message)
        return pattern

    @model_validator(mode="after")
    def _pattern_fits(self) -> "Source":
        if self.topic_pattern is None:
            if self.exclude_topics:
                raise FieldError(("exclude_topics",), "only with `topic_pattern`")
            return self
        refused = {
            ("monitoring_group",): (self.monitoring_group, "a group belongs to one stream"),
            ("start", "offsets"): (
                isinstance(self.start, StartAtOffsets),
                "each topic has offsets of its own",
            ),
            ("start",): (
                self.start == "latest",
                "records of a new topic before its first batch would be lost",
            ),
        }
        for place, (is_set, reason) in refused.items():
            if is_set:
                raise FieldError(place, f"not with `topic_pattern`: {reason}")
        return self

    @model_validator(mode="after")
    def _topics_are_named_once(self) -> "Source":
        if [self.topic is None, not self.topics, self.topic_pattern is None].count(False) != 1:
            reason = "name one `topic`, several under `topics`, or a `topic_pattern`"
            raise FieldError(("topic",), reason)
        if len(set(self.topics)) < len(self.topics):
            raise FieldError(("topics",), "a topic is listed twice")
        if len(self.topics) > 1 and isinstance(self.start, StartAtOffsets):
            raise FieldError(("start", "offsets"), "not supported with several topics")
        return self

    @property
    def names(self) -> tuple[str, ...]:
        """Return all topics, sorted; none of a pattern, whose topics have streams of their own."""
        return (self.topic,) if self.topic is not None else tuple(sorted(self.topics))
