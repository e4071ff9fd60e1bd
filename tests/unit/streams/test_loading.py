"""Every mistake in a stream file is answered with file, line, field and reason (A1)."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest
import yaml
from support.lake import make_stream

from frazil.errors import StreamFileError, UnknownStreamError
from frazil.streams.column_types import METADATA_COLUMNS
from frazil.streams.loading import (
    find_files_of_table,
    list_stream_files,
    load_readable_streams,
    load_stream,
    load_stream_file,
)
from frazil.streams.models import Stream
from frazil.streams.sections import Section, StartAtTime
from frazil.streams.timestamps import to_epoch_ms

FILE_SIZE = '{write.target-file-size-bytes: "1"}'
GOOD = """\
stream: orders
owner: data-platform@example.org
source:
  topic: orders
  start: earliest
  isolation: read_committed
value:
  convert: json
  columns:
    id: long!
    at: timestamp
    price: decimal(9,2)
table:
  name: demo.orders
  mode: append
  partition_by: ["day(at)"]
  sort_by: [id]
  properties: {write.target-file-size-bytes: "1"}
batch:
  schedule: "* * * * *"
  max_records: 1000
  engine: connect
errors:
  tolerance: quarantine
  max_bad_ratio: 0.05
  max_bad_records: 7
schema:
  add_column: auto
quality:
  suite: orders
  on_failure: block
freshness:
  warn_seconds: 180
  fail_seconds: 600
maintenance:
  schedule: "17 * * * *"
  compact_target_mb: 128
  expire_hours: 72
  rollback_hours: 24
  orphan_days: 3
"""

REST = """\
stream: orders
owner: data-platform@example.org
source:
  connection: kafka_default
  topics: [orders, returns]
value:
  convert: by_schema_id
  transform: flatten
  registry: schema_registry_default
  subject: orders
  message: Order
  unknown_id: wait
  columns: {kind: string, at: timestamptz}
key:
  convert: by_latest_schema
  column: order_key
  type: string
  registry: schema_registry_default
  subject: keys
  message: Key
  unknown_id: quarantine
table:
  connection: iceberg_default
  name: demo.orders
route:
  field: kind
  tables: {web: demo.web}
batch: {catch_up_records: 2000000}
schema:
  widen: auto
  relax: review
  other: fail
maintenance:
  expire_rows:
    column: at
    keep_days: 90
"""
"""What GOOD leaves out."""


def write(folder: Path, text: str, name: str = "orders", suffix: str = ".yaml") -> Path:
    """Write a stream file."""
    path = folder / f"{name}{suffix}"
    path.write_text(text)
    return path


def swapped(old: str, new: str, text: str = GOOD) -> str:
    """Change one line of a file that holds it exactly once."""
    assert text.count(old) == 1, f"{old!r} is there {text.count(old)} times"
    return text.replace(old, new)


def test_the_good_file_is_good(tmp_path: Path) -> None:
    stream = load_stream_file(write(tmp_path, GOOD))

    assert stream.stream == "orders"
    assert stream.errors.max_bad_records == 7


def test_the_file_with_everything_else_is_good_too(tmp_path: Path) -> None:
    stream = load_stream_file(write(tmp_path, REST))

    assert stream.stream == "orders"
    assert stream.maintenance.expire_rows is not None


BROKEN = [
    ("stream: orders", "stream: Orders", 1, "stream", "should match pattern"),
    ("owner: data-platform@example.org", "owner: ''", 2, "owner", "at least 1 character"),
    ("owner: data-platform@example.org", "", 1, "owner", "Field required"),
    ("  topic: orders", "  topic: ''", 4, "source.topic", "at least 1 character"),
    ("  topic: orders", "  tpoic: orders", 4, "source.tpoic", "unknown key (found 'orders')"),
    ("  start: earliest", "  start: soon", 5, "source.start", "'earliest' or 'latest'"),
    ("  start: earliest", "  start: {offsets: {0: -1}}", 5, "source.start.offsets.0", "greater"),
    ("  start: earliest", "  start: {offsets: {-1: 5}}", 5, "source.start.offsets.-1", "to 0"),
    (
        "start: earliest",
        "start: {timestamp: yesterday}",
        5,
        "source.start.timestamp",
        "not an ISO 8601",
    ),
    (
        "start: earliest",
        "start: {timestamp: 2026-01-31}",
        5,
        "source.start.timestamp",
        "no time zone",
    ),
    (
        "start: earliest",
        "start: {timestamp: 1969-12-31T23:59:59Z}",
        5,
        "source.start.timestamp",
        "1970",
    ),
    ("read_committed", "dirty", 6, "source.isolation", "'read_committed' or 'read_unc"),
    (
        "convert: json",
        "convert: xml",
        8,
        "value.convert",
        "'json', 'string', 'raw', 'by_schema_id'",
    ),
    ("id: long!", "id: bigint", 10, "value.columns.id", "unknown type 'bigint'; known: boolean"),
    ("id: long!", "id: 5", 10, "value.columns.id", "valid string (found 5)"),
    ("decimal(9,2)", "decimal(40,2)", 12, "value.columns.price", "precision 1 to 38"),
    ("decimal(9,2)", "decimal(x,2)", 12, "value.columns.price", "a number expected, 'x' found"),
    ("decimal(9,2)", "fixed(0)", 12, "value.columns.price", "must be above 0"),
    ("decimal(9,2)", "'struct<a: int, A: int>'", 12, "value.columns.price", "only in case"),
    ("    at: timestamp", "    _kafka: string", 11, "value.columns._kafka", "added to every"),
    ("    at: timestamp", "    ID: timestamp", 11, "value.columns.ID", "differ only in case"),
    ("    at: timestamp", "    a-t: timestamp", 11, "value.columns.a-t", "letters, digits and _"),
    ("    at: timestamp", "    id: timestamp", 11, "value.columns.id", "first in line 10"),
    ("    at: timestamp", "    on: timestamp", 11, "value.columns.on", "put it in quotes"),
    ("owner: data-platform@example.org", "stream: sales", 2, "stream", "first in line 1"),
    ("[id]", "[{a: 1, a: 2}]", 17, "table.sort_by.0.a", "duplicate key, first in line 17"),
    ("convert: json", "convert: raw", 7, "value", "has one column: `columns: {value: binary}`"),
    ("name: demo.orders", "name: Orders", 14, "table.name", "not `namespace.table`"),
    ("name: demo.orders", "name: a.b__dead_letters", 14, "table.name", "belong to dead letters"),
    ("name: demo.orders", "name: frazil.ledger", 14, "table.name", "a table of Frazil itself"),
    ("name: demo.orders", "name: frazil.timeline", 14, "table.name", "a table of Frazil itself"),
    ("mode: append", "mode: upsert", 15, "table.mode", "should be 'append'"),
    ("mode: append", "other_writers: deny", 15, "table.other_writers", "'allow' or 'refuse'"),
    *(
        (FILE_SIZE, f'{{{key}: "{value}"}}', 18, f"table.properties.{key}", reason)
        for key, value, reason in (
            ("frazil.hint", "x", "frazil.* are reserved"),
            ("format-version", "1", "must be 2"),
            ("format-version", "3", "must be 2"),
            ("history.expire.max-ref-age-ms", "1", "expire staging branches"),
            ("write.format.default", "orc", "must be parquet: the fast path"),
            ("write.format.default", "AVRO", "must be parquet: the fast path"),
            ("gc.enabled", "false", "maintenance could expire no snapshot"),
            ("write.distribution-mode", "hashed", "must be none, hash or range"),
            ("write.parquet.compression-codec", "zip", "must be zstd, gzip"),
            ("write.target-file-size-bytes", "128 MB", "must be a whole number"),
            ("write.parquet.row-group-size-bytes", "", "must be a whole number"),
            ("commit.retry.num-retries", "-1", "must be a whole number"),
        )
    ),
    *(
        ("    at: timestamp", f"    {name}: timestamp", 11, f"value.columns.{name}", reason)
        for name, reason in (
            *((name, "belongs to Iceberg, which adds ") for name in sorted(METADATA_COLUMNS)),
            ("_FILE", "which adds _file to every table"),
            ("_Kafka", "_kafka is added to every table"),
            ("_frazil_good", "are for staging"),
            ("order-id", 'write `order_id: {type: …, from: "order-id"}`'),
            ("größe", 'write `gr_e: {type: …, from: "größe"}`'),
            ("a.b", "for field b inside a write `a: struct<b: …>`"),
            ("9th", "start with no digit"),
        )
    ),
    (
        "    at: timestamp",
        '    "@timestamp": timestamp',
        11,
        "value.columns.@timestamp",
        'write `timestamp: {type: …, from: "@timestamp"}`',
    ),
    (
        "decimal(9,2)",
        "'struct<a-b: int>'",
        12,
        "value.columns.price",
        '`struct<order_id: long from "order-id">`',
    ),
    ("decimal(9,2)", "'struct<!: int>'", 12, "value.columns.price", "a field name expected"),
    (
        'schedule: "* * * * *"',
        "schedule: often",
        20,
        "batch.schedule",
        "1 of 5 fields; ex",
    ),
    ("max_records: 1000", "max_records: 0", 21, "batch.max_records", "greater than or equal to 1"),
    ("engine: connect", "engine: local", 22, "batch.engine", "should be 'connect' or 'submit'"),
    ("tolerance: quarantine", "tolerance: some", 24, "errors.tolerance", "'none', 'invalid"),
    ("max_bad_ratio: 0.05", "max_bad_ratio: 5", 25, "errors.max_bad_ratio", "(found 5)"),
    ("max_bad_records: 7", "max_bad_records: -7", 26, "errors.max_bad_records", "(found -7)"),
    ("add_column: auto", "add_column: ask", 28, "schema.add_column", "'auto', 'review'"),
    ("suite: orders", "suite: ../orders", 30, "quality.suite", "should match pattern"),
    ("on_failure: block", "on_failure: stop", 31, "quality.on_failure", "'block' or 'warn'"),
    ("warn_seconds: 180", "warn_seconds: 601", 32, "freshness", "must not exceed fail_seconds"),
    ("fail_seconds: 600", "fail_seconds: 0", 34, "freshness.fail_seconds", "greater than or equal"),
    ('"* * * * *"', '"61 * * * *"', 20, "batch.schedule", "out of range; example: `*/5 * * * *`"),
    ('"* * * * *"', '"a b c d e"', 20, "batch.schedule", "not acceptable; example"),
    ('"* * * * *"', '"0 0 31 2 *"', 20, "batch.schedule", "failed to find next date; example"),
    ('"* * * * *"', '"* * * * * *"', 20, "batch.schedule", "6 of 5 fields"),
    ('"* * * * *"', '"@sometimes"', 20, "batch.schedule", "(found '@sometimes')"),
    (
        '"17 * * * *"',
        '"17 * *"',
        36,
        "maintenance.schedule",
        "not a cron expression: 3 of 5 fields",
    ),
    ("compact_target_mb: 128", "compact_target_mb: no", 37, "maintenance.compact_target_mb", ""),
    ("expire_hours: 72", "expire_hours: 0", 38, "maintenance.expire_hours", "(found 0)"),
    ("rollback_hours: 24", "rollback_hours: -1", 39, "maintenance.rollback_hours", "(found -1)"),
    ("orphan_days: 3", "orphan_days: 0", 40, "maintenance.orphan_days", "(found 0)"),
    ("orphan_days: 3", "orphan_day: 3", 40, "maintenance.orphan_day", "unknown key"),
    ("quality:", "qualtiy:", 29, "qualtiy", "unknown key"),
    ("    price: decimal(9,2)", "  transform: dig", 12, "value.transform", "'none' or 'flatten'"),
    ('["day(at)"]', "day(at)", 16, "table.partition_by", "valid tuple"),
    (
        '["day(at)"]',
        '["day(id)"]',
        16,
        "table.partition_by.0",
        "id is long; day supports date, times",
    ),
    ('["day(at)"]', '["day(at)", "day( at )"]', 16, "table.partition_by.1", "both be named at_day"),
    ('["day(at)"]', '["dya(at)"]', 16, "table.partition_by.0", "'dya'; known: identity"),
    ("sort_by: [id]", "sort_by: [nme]", 17, "table.sort_by.0", "column 'nme' is not among"),
    ("sort_by: [id]", "sort_by: [day(at)]", 17, "table.sort_by.0", "without a transform"),
    *(
        (
            "id: long!",
            f"id: {text}",
            17,
            "table.sort_by.0",
            "which has no order; remove it, or sort",
        )
        for text in ("list<int>", "'map<string, int>'", "'struct<a: int>'")
    ),
    ('["day(at)"]', '["void(at)"]', 16, "table.partition_by.0", "unknown transform 'void'"),
    ('["day(at)"]', '["bucket(id, 0)"]', 16, "table.partition_by.0", "above 0 and at most"),
    ("warn_seconds: 180", "warn_seconds: 0", 33, "freshness.warn_seconds", "(found 0)"),
]
BROKEN_REST = [
    ("connection: kafka_default", "connection: 9092", 4, "source.connection", "(found 9092)"),
    ("topics: [orders, returns]", "topics: orders", 5, "source.topics", "valid tuple"),
    ("topics: [orders, returns]", "topics: [orders, '']", 5, "source.topics.1", "1 character"),
    ("topics: [orders, returns]", "topics: [orders, orders]", 5, "source.topics", "listed twice"),
    ("topics: [orders, returns]", "isolation: read_committed", 3, "source.topic", "name one `top"),
    (
        "registry: schema_registry_default\n  subject: orders",
        "registry: 1",
        9,
        "value.registry",
        "",
    ),
    ("  subject: orders\n", "", 6, "value.subject", "required because the stream has several"),
    ("subject: orders", "subject: ''", 10, "value.subject", "at least 1 character"),
    ("message: Order\n", "message: ''\n", 11, "value.message", "at least 1 character"),
    ("unknown_id: wait", "unknown_id: skip", 12, "value.unknown_id", "'wait' or 'quarantine'"),
    ("convert: by_latest_schema", "convert: avro", 15, "key.convert", "'json', 'string', 'raw'"),
    ("convert: by_latest_schema", "convert: raw", 17, "key.type", "requires `type: binary`"),
    ("column: order_key", "column: KIND", 16, "key.column", "differ only in case"),
    ("column: order_key", "column: _kafka", 16, "key.column", "added to every table"),
    ("column: order_key", "column: _POS", 16, "key.column", "belongs to Iceberg"),
    ("column: order_key", "column: order-key", 16, "key.column", "letters, digits and _"),
    ("type: string\n", "type: text\n", 17, "key.type", "unknown type 'text'"),
    ("registry: schema_registry_default\n  subject: keys", "registry: []", 18, "key.registry", ""),
    ("subject: keys", "subject: 7", 19, "key.subject", "(found 7)"),
    ("message: Key", "message: [Key]", 20, "key.message", "valid string"),
    ("unknown_id: quarantine", "unknown_id: fail", 21, "key.unknown_id", "'wait' or 'quarantine'"),
    ("connection: iceberg_default", "connection: {}", 23, "table.connection", "valid string"),
    ("field: kind", "field: at", 26, "route.field", "'at' is not a string column of"),
    ("field: kind", "field: ''", 26, "route.field", "at least 1 character"),
    ("{web: demo.web}", "{}", 27, "route.tables", "at least 1 item"),
    ("{web: demo.web}", "{web: web}", 27, "route.tables.web", "not `namespace.table`"),
    ("{web: demo.web}", "{web: a.b, Web: a.c}", 27, "route.tables.web", "same stream name, …__web"),
    ("{web: demo.web}", "{web: a.b, shop: a.b}", 27, "route.tables.web", "a.b is listed twice"),
    ("  field: kind", "  takes: web\n  field: kind", 26, "route.takes", "unknown key"),
    ("_records: 2000000", "_records: 2", 28, "batch.catch_up_records", "not be below max_records"),
    ("_records: 2000000", "_records: 0", 28, "batch.catch_up_records", "(found 0)"),
    ("widen: auto", "widen: ask", 30, "schema.widen", "'auto', 'review', 'quarantine'"),
    ("relax: review", "relax: true", 31, "schema.relax", "'auto', 'review', 'quarantine'"),
    ("other: fail", "other: drop", 32, "schema.other", "'auto', 'review', 'quarantine'"),
    (
        "    column: at",
        "    column: kind",
        35,
        "maintenance.expire_rows.column",
        "not a time column",
    ),
    ("    column: at\n", "", 34, "maintenance.expire_rows.column", "Field required"),
    ("keep_days: 90", "keep_days: 0", 36, "maintenance.expire_rows.keep_days", "(found 0)"),
    ("keep_days: 90", "keep_days: 800000", 36, "maintenance.expire_rows.keep_days", "to 36500"),
]
MISTAKES = [(GOOD, row) for row in BROKEN] + [(REST, row) for row in BROKEN_REST]


def list_sections(annotation: object) -> Iterator[type[Section]]:
    """Yield the models that an option's type names, however it is wrapped."""
    if isinstance(annotation, type) and issubclass(annotation, Section):
        yield annotation
    for part in get_args(annotation):
        yield from list_sections(part)


def list_options(model: type[Section], place: str = "") -> Iterator[str]:
    """Yield the path of every option of a stream file that holds a value itself."""
    for name, field in model.model_fields.items():
        path = place + (field.alias or name)
        sections = list(list_sections(field.annotation))
        for section in sections:
            yield from list_options(section, f"{path}.")
        if not sections or path == "source.start":
            yield path


@pytest.mark.parametrize("option", list(list_options(Stream)))
def test_every_option_has_a_broken_example(option: str) -> None:
    fields = [field for _, (*_, field, _) in MISTAKES]

    assert any(f"{field}.".startswith(f"{option}.") for field in fields)


@pytest.mark.parametrize(
    ("text", "mistake"),
    MISTAKES,
    ids=[f"{new.strip() or 'nothing'} for {old.strip()}" for _, (old, new, *_) in MISTAKES],
)
def test_a_broken_field_is_named_with_its_line(
    tmp_path: Path, text: str, mistake: tuple[str, str, int, str, str]
) -> None:
    old, new, line, field, reason = mistake
    path = write(tmp_path, swapped(old, new, text))

    with pytest.raises(StreamFileError) as caught:
        load_stream_file(path)

    assert f"{path}:{line}: {field}: " in caught.value.facts
    assert reason in caught.value.facts
    assert "frazil streams" in caught.value.next_step


def test_a_key_in_a_shared_part_may_be_said_again_beside_it(tmp_path: Path) -> None:
    text = swapped("quality:", "quality:\n  <<: {suite: other}")

    assert load_stream_file(write(tmp_path, text)).quality.suite == "orders"
    with pytest.raises(StreamFileError, match=r"orders.yaml:31: quality.suite: "):
        load_stream_file(write(tmp_path, swapped("suite: orders", "suite: ../orders", text)))


@pytest.mark.parametrize(
    "start",
    ["soon", "{timestamp: yesterday}", "{offsets: {0: -1}}", "{offsets: {-1: 5}}", "{when: now}"],
)
def test_a_mistake_in_the_start_is_told_for_the_form_that_was_meant(
    tmp_path: Path, start: str
) -> None:
    path = write(tmp_path, swapped("start: earliest", f"start: {start}"))

    with pytest.raises(StreamFileError) as caught:
        load_stream_file(path)

    told = caught.value.facts.splitlines()
    assert len(told) == (2 if "when" in start else 1), told


@pytest.mark.parametrize("quote", ["", '"'], ids=["as YAML's own instant", "as text"])
def test_an_instant_is_written_with_or_without_quotes(tmp_path: Path, quote: str) -> None:
    text = f"start: {{timestamp: {quote}2026-01-31T00:00:00Z{quote}}}"

    start = load_stream_file(write(tmp_path, swapped("start: earliest", text))).source.start

    assert isinstance(start, StartAtTime)
    assert to_epoch_ms(start.timestamp) == 1_769_817_600_000


def test_two_mistakes_are_told_at_once(tmp_path: Path) -> None:
    text = swapped("id: long!", "id: bigint", swapped("orphan_days: 3", "orphan_days: 0"))

    with pytest.raises(StreamFileError) as caught:
        load_stream_file(write(tmp_path, text))

    assert len(caught.value.facts.splitlines()) == 2


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"stream: [", "not valid YAML"),
        (b"- a\n- b\n", "a stream file must be a mapping of keys"),
        (b"", "a stream file must be a mapping of keys"),
        (b"\xff\xfe\x00", "cannot be read"),
    ],
    ids=["broken YAML", "a list", "an empty file", "no UTF-8"],
)
def test_what_is_no_mapping_is_refused(tmp_path: Path, content: bytes, reason: str) -> None:
    path = tmp_path / "orders.yaml"
    path.write_bytes(content)

    with pytest.raises(StreamFileError, match=f"{re.escape(str(path))}: {reason}"):
        load_stream_file(path)


def test_a_stream_is_named_like_its_file(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD, "sales")

    with pytest.raises(StreamFileError, match="'orders' must be the name of the file"):
        load_stream_file(path)


@pytest.mark.parametrize("newcomer", ["a_copy", "sales"], ids=["sorted before", "sorted after"])
def test_of_two_streams_on_one_table_both_stay_and_both_files_are_named(
    tmp_path: Path, newcomer: str
) -> None:  # B9
    paths = {write(tmp_path, GOOD)}
    paths.add(write(tmp_path, swapped("stream: orders", f"stream: {newcomer}"), newcomer))

    streams, (error,) = load_readable_streams(tmp_path)

    assert {stream.stream for stream in streams} == {"orders", newcomer}
    assert "both fill demo.orders" in error.facts
    assert [path for path in paths if str(path) not in error.facts] == []
    assert set(find_files_of_table(tmp_path, "demo.orders").values()) == paths


@pytest.mark.parametrize("suffix", [".yml", ".YAML", ".Yml"])
def test_a_file_is_read_whatever_its_suffix(tmp_path: Path, suffix: str) -> None:
    path = write(tmp_path, GOOD, suffix=suffix)

    (stream,), errors = load_readable_streams(tmp_path)

    assert errors == ()
    assert stream == load_stream(tmp_path, "orders")
    assert list_stream_files(tmp_path) == [path]


@pytest.mark.parametrize("other", [GOOD, "stream: ["], ids=["both are valid", "one is broken"])
def test_two_files_of_one_stream_are_refused_with_both_names(tmp_path: Path, other: str) -> None:
    paths = [write(tmp_path, GOOD), write(tmp_path, other, suffix=".yml")]
    write(tmp_path, GOOD.replace("orders", "sales"), "sales")

    streams, (error,) = load_readable_streams(tmp_path)
    with pytest.raises(StreamFileError) as caught:
        load_stream(tmp_path, "orders")

    assert [stream.stream for stream in streams] == ["sales"]
    for facts in (error.facts, caught.value.facts):
        assert [path for path in paths if str(path) not in facts] == []


def test_a_broken_file_stops_no_other_stream(tmp_path: Path) -> None:  # A10
    write(tmp_path, GOOD)
    write(tmp_path, "stream: [", "broken")
    write(tmp_path, GOOD.replace("orders", "sales"), "sales")

    streams, (error,) = load_readable_streams(tmp_path)

    assert [stream.stream for stream in streams] == ["orders", "sales"]
    assert "broken.yaml" in error.facts


def test_an_unknown_stream_lists_those_that_exist(tmp_path: Path) -> None:
    write(tmp_path, GOOD)

    with pytest.raises(UnknownStreamError, match=r"no stream 'order' in .*; known: orders"):
        load_stream(tmp_path, "order")


def test_a_missing_folder_is_told_by_name(tmp_path: Path) -> None:
    with pytest.raises(StreamFileError, match="no such folder of stream files"):
        load_readable_streams(tmp_path / "nowhere")


@pytest.mark.parametrize("convert", ["json", "string", "raw"])
def test_a_stream_that_was_written_out_whole_loads_again(tmp_path: Path, convert: str) -> None:
    value = {"convert": convert} | ({"columns": {"id": "long!"}} if convert == "json" else {})
    stream = make_stream(value=value)
    content = stream.model_dump(mode="json", by_alias=True)
    (tmp_path / "orders.yaml").write_text(yaml.safe_dump(content))

    assert load_stream(tmp_path, "orders") == stream
