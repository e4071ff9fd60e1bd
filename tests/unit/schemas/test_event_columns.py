"""Columns and key of change events whose stream file lists none: from registered schemas."""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import cast

import pytest
from pyiceberg.table import CommitTableResponse
from requests.exceptions import ReadTimeout
from support.change_events import Fields, avro_envelope, avro_value
from support.http_server import Request, serve_http
from support.lake import Lake, make_stream
from support.scripted_catalog import Land, ScriptedCatalog

from frazil.errors import (
    FrazilError,
    SchemaMisfitError,
    StreamFileError,
    TableDroppedError,
    UnknownSubjectError,
)
from frazil.iceberg.ledger_archive import archive_all_entries
from frazil.iceberg.table_view import TableView
from frazil.kafka.schema_registry import Registered
from frazil.ledger.authors import Author
from frazil.schemas.avro import read_event_row
from frazil.schemas.evolution import (
    accept_schema,
    quarantine_schema,
    settle_schema,
    stop_schema,
)
from frazil.schemas.inferred_columns import with_columns, with_event_key, with_newest_columns
from frazil.schemas.payloads import (
    Payload,
    describe_schema,
    list_payloads,
    list_required_changes,
    list_unfit_fields,
)
from frazil.schemas.review import show_schema_review
from frazil.schemas.source_types import NotConvertibleError, derive_columns
from frazil.streams.change_events import find_row_type
from frazil.streams.column_types import format_type
from frazil.streams.models import Stream
from frazil.workspace import Workspace
from frazil_spark.decode.logical_values import LOGICAL

CONNECT, TIME = "org.apache.kafka.connect.data", "io.debezium.time"
EVENTS: dict[str, object] = {"convert": "by_schema_id", "transform": "flatten_debezium"}
FROM_KEY = "_from_debezium_key_"
JANE = Author("jane@example.org", "wanted")
ROW = {"id": "int", "name": ["null", "string"]}


def named(kind: str, connect: str, **more: object) -> dict[str, object]:
    return {"type": kind, "connect.name": connect, **more}


def decimal(precision: object, scale: object) -> dict[str, object]:
    parameters = {"connect.decimal.precision": str(precision), "scale": str(scale)}
    return named("bytes", f"{CONNECT}.Decimal", **{"connect.parameters": parameters})


VARIABLE = {
    "type": "record",
    "name": "V",
    "fields": [{"name": "scale", "type": "int"}, {"name": "value", "type": "bytes"}],
    "connect.name": "io.debezium.data.VariableScaleDecimal",
}
PLAIN = {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}
POINT = {"type": "record", "name": "P", "fields": [{"name": "on", "type": "int"}]}


def read(text: str) -> dict[str, str]:
    row = read_event_row(Registered(1, "AVRO", text))
    assert row is not None
    columns = derive_columns(row, is_flat=True, single_column="value")
    return {column.name: format_type(column.type) for column in columns}


@pytest.mark.parametrize(
    ("kind", "column"),
    [
        ("int", "int"),
        ("bytes", "binary"),
        (decimal(12, 2), "decimal(12,2)"),
        (decimal(65, 2), "string"),
        (decimal("", 2), "string"),
        (decimal(3, 5), "string"),
        (named("bytes", f"{CONNECT}.Decimal", precision=64, logicalType="decimal"), "string"),
        (PLAIN, "decimal(9,2)"),
        ({**PLAIN, "scale": 10}, "binary"),
        (VARIABLE, "string"),
        (named("int", f"{TIME}.Date"), "date"),
        ({"type": "int", "logicalType": "date"}, "date"),
        (named("long", f"{TIME}.MicroTimestamp"), "timestamp"),
        (named("long", f"{TIME}.NanoTimestamp"), "string"),
        ({"type": "long", "logicalType": "timestamp-millis"}, "timestamp"),
        ({"type": "long", "logicalType": "timestamp-micros"}, "long"),
        (named("string", f"{TIME}.ZonedTimestamp"), "timestamptz"),
        (named("long", f"{TIME}.MicroTime"), "long"),
        ({"type": "int", "logicalType": "time-millis"}, "long"),
        (named("string", "io.debezium.data.Uuid"), "uuid"),
        (named("string", "io.debezium.data.Json"), "string"),
        ({"type": "enum", "name": "E", "symbols": ["a"]}, "string"),
        ({"type": "fixed", "name": "F", "size": 4, "logicalType": "uuid"}, "fixed(4)"),
        ({"type": "array", "items": ["null", decimal(4, 1)]}, "list<decimal(4,1)>"),
        ({"type": "map", "values": ["null", "string"]}, "map<string,string>"),
        (POINT, "struct<on:int>"),
    ],
    ids=str,
)
def test_a_column_has_the_type_that_its_values_are_read_as(kind: object, column: str) -> None:
    text = json.dumps(avro_envelope({"id": "int", "x": ["null", kind], "y": kind}))

    try:
        found = read(text)
    except NotConvertibleError:  # a named type is defined once
        found = read(json.dumps(avro_envelope({"id": "int", "x": ["null", kind], "y": "int"})))

    assert found["x"] == column


def test_a_named_type_has_its_type_wherever_it_is_named() -> None:
    text = json.dumps(avro_envelope({"a": VARIABLE, "b": ["null", "V"]}))

    assert read(text) == {"a": "string", "b": "string"}


def test_each_type_that_the_decoder_knows_by_name_has_a_column() -> None:
    assert [name for name in LOGICAL if find_row_type(name, {}) is None] == []


@dataclass
class Registry:
    """A registry with the newest schema of each subject; the id of a schema is its number."""

    texts: list[str] = field(default_factory=list)
    latest: dict[str, int] = field(default_factory=dict)
    kind: str = "AVRO"

    def register(self, row: Fields, ids: tuple[str, ...] = ("id",)) -> Registered:
        """Register the schemas of a source table's events, and give that of the values."""
        key = json.dumps(avro_value("Key", {name: row[name] for name in ids}))
        return (
            self.add("orders-key", key),
            self.add("orders-value", json.dumps(avro_envelope(row))),
        )[1]

    def add(self, subject: str, text: str) -> Registered:
        self.texts.append(text)
        self.latest[subject] = len(self.texts)
        return Registered(len(self.texts), "AVRO", text)

    def answer(self, request: Request) -> tuple[int, bytes]:
        parts = request.path.partition("?")[0].strip("/").split("/")
        number = int(parts[2]) if parts[0] == "schemas" else self.latest.get(parts[1], 0)
        if not number:
            return 404, b'{"error_code": 40401, "message": "not found"}'
        found = {"schema": self.texts[number - 1], "schemaType": self.kind, "id": number}
        return 200, json.dumps({"subject": parts[1], "version": 1, **found}).encode()


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[Registry]:
    """Serve a registry."""
    found = Registry()
    with serve_http(found.answer) as address:
        connection = {"conn_type": "http", "host": f"http://{address}"}
        monkeypatch.setenv("AIRFLOW_CONN_SCHEMA_REGISTRY_DEFAULT", json.dumps(connection))
        yield found


@dataclass(frozen=True)
class Captured:
    """A stream of change events without columns, and the catalog of its table."""

    folder: Path
    table: Mapping[str, object]
    value: Mapping[str, object] = field(default_factory=dict)
    key: Mapping[str, object] = field(default_factory=dict)

    @property
    def work(self) -> Workspace:
        value, table = {**EVENTS, **self.value}, {"name": "demo.t", **self.table}
        stream = make_stream(value=value, key=dict(self.key), table=table)
        return Workspace(stream, self.folder, "test")

    def open(self) -> Workspace:
        work = self.work
        vars(work)["store"] = Lake(self.folder, work.stream).store
        return work

    def begin(self) -> Workspace:
        """Create the table with the columns of the newest schemas."""
        work = self.open()
        Lake(self.folder, with_columns(work).stream).begin()
        return self.open()


UPSERT = {"mode": "upsert", "id_columns": FROM_KEY}


def columns_of(stream: Stream) -> dict[str, str]:
    return stream.value.columns


@pytest.mark.parametrize(
    ("table", "columns"),
    [
        ({}, {"id": "int", "shop": "int", "name": "string"}),
        (UPSERT, {"id": "int!", "shop": "int!", "name": "string"}),
        ({"mode": "upsert", "id_columns": ["id"]}, {"id": "int!", "shop": "int", "name": "string"}),
    ],
    ids=["append", "the key of the events", "a key of its own"],
)
def test_a_new_table_has_the_columns_of_after_and_requires_its_key(
    tmp_path: Path, registry: Registry, table: Mapping[str, object], columns: Mapping[str, str]
) -> None:
    registry.register({"id": "int", "shop": "int", "name": ["null", "string"]}, ("id", "shop"))
    captured = Captured(tmp_path, table)

    new = with_columns(captured.open())
    begun = captured.begin()

    for found in (new, with_columns(begun), with_newest_columns(begun)):
        assert columns_of(found.stream) == columns
        assert found.file_stream == begun.stream
    assert with_columns(new) is new
    if table:
        assert with_event_key(begun).stream == new.stream


def test_a_stream_is_loaded_without_a_registry(tmp_path: Path) -> None:
    work = Captured(tmp_path, {**UPSERT, "partition_by": ["bucket(id, 4)"]}).work

    assert work.stream.needs_columns


def settle(captured: Captured) -> dict[str, str]:
    """Let the table follow the newest schemas, and give its columns."""
    settle_schema(with_newest_columns(captured.open()))
    return columns_of(with_columns(captured.open()).stream)


def test_the_table_follows_the_source_and_keeps_its_key(tmp_path: Path, registry: Registry) -> None:
    registry.register({**ROW, "gone": "int", "n": "int"})
    captured = Captured(tmp_path, UPSERT, {"rest": "others"})
    captured.begin()

    registry.register({"id": "long", "name": ["null", "string"], "n": "string", "new": "double"})
    registry.add("orders-key", json.dumps(avro_value("Key", {"id": "long", "n": "string"})))

    expected = {"id": "long!", "name": "string", "gone": "int", "n": "int", "new": "double"}
    assert settle(captured) == expected
    assert settle(captured) == expected


def test_a_schema_requires_only_its_new_column(tmp_path: Path, registry: Registry) -> None:
    registry.register(ROW)
    begun = Captured(tmp_path, UPSERT).begin()
    schema = registry.register({**ROW, "new": "double"})

    changes = list_required_changes(value_payload(with_columns(begun)), schema)

    assert [change.text for change in changes] == ["add_column new: double"]


def value_payload(work: Workspace) -> Payload:
    return next(p for p in list_payloads(work.stream) if p.part == "value")


@pytest.mark.parametrize(("before", "fits"), [("int", False), ("string", True)])
def test_a_changed_type_stops_its_records_unless_the_column_is_text(
    tmp_path: Path, registry: Registry, before: str, *, fits: bool
) -> None:
    registry.register({**ROW, "x": before})
    payload = value_payload(with_columns(Captured(tmp_path, UPSERT).begin()))
    changed = registry.register({**ROW, "x": named("long", f"{TIME}.MicroTimestamp")})

    assert describe_schema(payload, changed).refusal is None  # columns that the file lists
    follows = replace(payload, follows_schemas=True)
    if fits:
        assert describe_schema(follows, changed).refusal is None
        return
    with pytest.raises(SchemaMisfitError, match="x is timestamp, and its column int") as refusal:
        describe_schema(follows, changed)
    assert "`columns` can be listed" in refusal.value.next_step
    assert "`schema: {other: quarantine}`" in refusal.value.next_step


ADDED = ["_op", "_Source", "_unavailable", "others", "_deleted_at"]


@pytest.mark.parametrize("name", ADDED)
def test_a_field_with_the_name_of_an_added_column_is_refused_and_later_left_out(
    tmp_path: Path, registry: Registry, name: str
) -> None:
    captured = Captured(tmp_path, UPSERT, {"rest": "others"})
    clashing = {**ROW, name: "int"}
    registry.register(clashing)
    with pytest.raises(SchemaMisfitError, match=f"{name} is the name of a column that Frazil adds"):
        with_columns(captured.open())
    registry.register(ROW)
    captured.begin()

    schema = registry.register({**clashing, "more": "int"})

    assert settle(captured) == {"id": "int!", "name": "string", "more": "int"}
    assert list_unfit_fields(value_payload(with_columns(captured.open())), schema) == (f"`{name}`",)


@pytest.mark.parametrize("table", [{}, UPSERT], ids=["append", "upsert"])
@pytest.mark.parametrize("name", ["id_bucket", "ID_Bucket"])
def test_a_field_with_the_name_of_a_partition_is_refused_and_later_left_out(
    tmp_path: Path, registry: Registry, table: Mapping[str, object], name: str
) -> None:
    captured = Captured(tmp_path, {**table, "partition_by": ["name", "bucket(id, 4)"]})
    clashing = {**ROW, name: "int"}
    registry.register(clashing)
    with pytest.raises(StreamFileError, match="would be named id_bucket, which is the name of a"):
        with_columns(captured.open())
    registry.register(ROW)
    captured.begin()

    schema = registry.register({**clashing, "more": "int"})

    required = "int!" if table else "int"
    assert settle(captured) == {"id": required, "name": "string", "more": "int"}
    assert list_unfit_fields(value_payload(with_columns(captured.open())), schema) == (f"`{name}`",)


@pytest.mark.parametrize("name", ["code", "Code", "id_bucket"])
def test_a_field_of_a_plain_value_with_a_taken_name_is_left_out(
    tmp_path: Path, registry: Registry, name: str
) -> None:
    value = {"convert": "by_schema_id", "transform": "flatten"}
    key = {"convert": "string", "column": "code"}
    captured = Captured(tmp_path, {"partition_by": ["bucket(id, 4)"]}, value, key)
    registry.add("orders-value", json.dumps(avro_value("Row", ROW)))
    captured.begin()

    schema = registry.add("orders-value", json.dumps(avro_value("Row", {**ROW, name: "int"})))

    assert settle(captured) == {"id": "int", "name": "string"}
    assert list_unfit_fields(value_payload(with_columns(captured.open())), schema) == (f"`{name}`",)


@pytest.mark.parametrize(
    "act",
    [
        show_schema_review,
        lambda work: accept_schema(work, JANE),
        lambda work: stop_schema(work, JANE),
        lambda work: quarantine_schema(work, JANE),
    ],
    ids=["show", "accept", "stop", "quarantine"],
)
def test_a_dropped_table_is_told_before_what_the_registry_says(
    tmp_path: Path, registry: Registry, act: Callable[[Workspace], object]
) -> None:
    captured = Captured(tmp_path, UPSERT)
    registry.register(ROW)
    work = captured.begin()
    archive_all_entries(work.store, TableView(work.store, work.stream.table.name).history)
    work.store.catalog.drop_table(work.stream.table.name)
    registry.latest.clear()

    with pytest.raises(TableDroppedError):
        act(captured.open())


def test_a_schema_that_is_registered_while_an_answer_is_lost_is_not_accepted_with_it(
    tmp_path: Path, registry: Registry
) -> None:
    captured = Captured(tmp_path, {})
    registry.register(ROW)
    work = captured.begin()
    registry.register({**ROW, "more": "int"})

    def lose(land: Land) -> CommitTableResponse:
        land()
        registry.register({**ROW, "more": "int", "unseen": "int"})
        raise ReadTimeout

    cast("ScriptedCatalog", work.store.catalog).script = [lose]

    decision = accept_schema(work, JANE)

    assert "more" in decision.text
    assert "unseen" not in columns_of(with_columns(captured.open()).stream)


@pytest.mark.parametrize(
    ("row", "table", "reason"),
    [
        (ROW, {"partition_by": ["day(at)"]}, "schema, table.partition_by.0: column 'at' is"),
        (ROW, {"sort_by": ["at"]}, "table.sort_by.0: column 'at' is"),
        (ROW, {"id_columns": ["nr"]}, "table.id_columns.0: column 'nr' is not among"),
        ({"id": "double"}, {}, "id is double; these types fit"),
        ({"memory": "int"}, {}, "memory is a column of the delete memory"),
        ({"id": "int", "ID": "int"}, {}, "only in case"),
        ({"id": "int", "x": "null"}, {}, "x is always null"),
        ({"id": "int", "x": ["int", "string"]}, {}, "x has a union of several types"),
    ],
    ids=str,
)
def test_what_does_not_fit_the_columns_is_refused_at_the_first_plan(
    tmp_path: Path, registry: Registry, row: Fields, table: Mapping[str, object], reason: str
) -> None:
    registry.register(row, (next(iter(row)),))

    with pytest.raises((StreamFileError, SchemaMisfitError), match=reason):
        with_columns(Captured(tmp_path, {**UPSERT, **table}).open())


@pytest.mark.parametrize("kind", ["AVRO", "JSON", "PROTOBUF"])
def test_a_schema_of_other_records_makes_no_table_and_changes_none(
    tmp_path: Path, registry: Registry, kind: str
) -> None:
    captured = Captured(tmp_path, UPSERT)
    registry.register(ROW)
    captured.begin()
    registry.kind = kind
    other = registry.add("orders-value", json.dumps(avro_value("Heartbeat", {"ts_ms": "long"})))

    with pytest.raises(FrazilError, match=r"it has no record `after`|are read from Avro"):
        with_columns(Captured(tmp_path, {**UPSERT, "name": "demo.other"}).open())

    assert columns_of(with_newest_columns(captured.open()).stream) == {
        "id": "int!",
        "name": "string",
    }
    if kind == "AVRO":
        payload = value_payload(with_columns(captured.open()))
        assert describe_schema(replace(payload, follows_schemas=True), other).refusal is None


def test_a_table_without_a_primary_key_is_refused_with_what_helps(
    tmp_path: Path, registry: Registry
) -> None:
    registry.register(ROW)
    del registry.latest["orders-key"]

    with pytest.raises(UnknownSubjectError, match="no subject orders-key, so") as refusal:
        with_columns(Captured(tmp_path, UPSERT).open())

    step = refusal.value.next_step
    assert "if their keys are JSON, name the columns in table.id_columns;" in step
    assert "if no record has a key, give the source table a primary" in step
    assert "`!`" not in step


WITH_TABLE = json.dumps(avro_value("Key", {"id": "int", "__dbz__table": "string"}))
LISTED = {"columns": {"id": "int", "name": "string"}}


@pytest.mark.parametrize(
    ("value", "key", "facts", "step"),
    [
        ({}, WITH_TABLE, "has __dbz__table, which `after` of their", "key.enforce.uniqueness"),
        (LISTED, WITH_TABLE, "__dbz__table, for which value.columns", "if the rows lack the field"),
        (
            {},
            '"int"',
            "schema 3 of subject orders-key is not an Avro record",
            "keys as Avro records",
        ),
        (LISTED, '"int"', "is not an Avro record, so the key columns", "keys as Avro records"),
    ],
    ids=["another field", "another field, listed", "no record", "no record, listed"],
)
def test_a_key_that_does_not_fit_is_refused_with_what_helps(
    tmp_path: Path, registry: Registry, value: Mapping[str, object], key: str, facts: str, step: str
) -> None:
    registry.register(ROW)
    registry.add("orders-key", key)

    with pytest.raises((SchemaMisfitError, StreamFileError), match=facts) as refusal:
        with_columns(Captured(tmp_path, UPSERT, value).open())

    assert step in refusal.value.next_step
    assert "name the columns in table.id_columns" in refusal.value.next_step
    assert ("mark them with `!`" in refusal.value.next_step) is bool(value)
    assert "schemas.enable" not in refusal.value.next_step
    assert ("value.columns" in refusal.value.facts) is (value == LISTED and key == WITH_TABLE)
