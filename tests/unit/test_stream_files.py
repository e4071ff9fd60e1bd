"""Every mistake in a stream file is answered with file, line, field and reason (A1)."""

import re
from pathlib import Path

import pytest

from frazil.errors import StreamFileError, UnknownStreamError
from frazil.stream_files import (
    load_readable_streams,
    load_stream,
    load_stream_file,
    load_streams,
)

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


def write(folder: Path, text: str, name: str = "orders") -> Path:
    """Write a stream file."""
    path = folder / f"{name}.yaml"
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


BROKEN = [
    ("stream: orders", "stream: Orders", 1, "stream", "should match pattern"),
    ("owner: data-platform@example.org", "owner: ''", 2, "owner", "at least 1 character"),
    ("owner: data-platform@example.org", "", 1, "owner", "Field required"),
    ("  topic: orders", "  topic: ''", 4, "source.topic", "at least 1 character"),
    ("  topic: orders", "  tpoic: orders", 4, "source.tpoic", "unknown key (found 'orders')"),
    ("  start: earliest", "  start: soon", 5, "source.start", "'earliest' or 'latest'"),
    ("  start: earliest", "  start: {offsets: {0: -1}}", 5, "source.start", "greater than"),
    ("read_committed", "dirty", 6, "source.isolation", "'read_committed' or 'read_unc"),
    ("convert: json", "convert: xml", 8, "value.convert", "'json', 'string' or 'raw'"),
    ("id: long!", "id: bigint", 9, "value.columns", "unknown type 'bigint'; known: boolean"),
    ("decimal(9,2)", "decimal(40,2)", 9, "value.columns", "precision 1 to 38"),
    ("    at: timestamp", "    _kafka: string", 9, "value.columns", "_kafka is added to every"),
    ("    at: timestamp", "    ID: timestamp", 9, "value.columns", "differ only in case"),
    ("convert: json", "convert: raw", 7, "value", "has one column: `columns: {value: binary}`"),
    ("name: demo.orders", "name: Orders", 14, "table.name", "not `namespace.table`"),
    ("name: demo.orders", "name: a.b__dead_letters", 14, "table.name", "belong to dead letters"),
    ("mode: append", "mode: upsert", 15, "table.mode", "should be 'append'"),
    ("{write.target", "{frazil.hint", 18, "table.properties", "frazil.* is written by Frazil"),
    ("{write.target-file-size-bytes", "{format-version", 18, "table.properties", "must be 2"),
    ('schedule: "* * * * *"', "schedule: often", 20, "batch.schedule", "'often' is no cron"),
    ("max_records: 1000", "max_records: 0", 21, "batch.max_records", "greater than or equal to 1"),
    ("engine: connect", "engine: local", 22, "batch.engine", "should be 'connect'"),
    ("tolerance: quarantine", "tolerance: some", 24, "errors.tolerance", "'none', 'invalid"),
    ("max_bad_ratio: 0.05", "max_bad_ratio: 5", 25, "errors.max_bad_ratio", "(found 5)"),
    ("max_bad_records: 7", "max_bad_records: -7", 26, "errors.max_bad_records", "(found -7)"),
    ("add_column: auto", "add_column: ask", 28, "schema.add_column", "'auto', 'review'"),
    ("suite: orders", "suite: ../orders", 30, "quality.suite", "should match pattern"),
    ("on_failure: block", "on_failure: stop", 31, "quality.on_failure", "'block' or 'warn'"),
    ("warn_seconds: 180", "warn_seconds: 601", 32, "freshness", "must not exceed fail_seconds"),
    ("fail_seconds: 600", "fail_seconds: 0", 34, "freshness.fail_seconds", "greater than or equal"),
    ('"17 * * * *"', '"17 * *"', 36, "maintenance.schedule", "is no cron line; example"),
    ("compact_target_mb: 128", "compact_target_mb: no", 37, "maintenance.compact_target_mb", ""),
    ("expire_hours: 72", "expire_hours: 0", 38, "maintenance.expire_hours", "(found 0)"),
    ("rollback_hours: 24", "rollback_hours: -1", 39, "maintenance.rollback_hours", "(found -1)"),
    ("orphan_days: 3", "orphan_days: 0", 40, "maintenance.orphan_days", "(found 0)"),
    ("orphan_days: 3", "orphan_day: 3", 40, "maintenance.orphan_day", "unknown key"),
    ("quality:", "qualtiy:", 29, "qualtiy", "unknown key"),
]


@pytest.mark.parametrize(
    ("old", "new", "line", "field", "reason"),
    BROKEN,
    ids=[f"{new.strip() or 'nothing'} for {old.strip()}" for old, new, *_ in BROKEN],
)
def test_a_broken_field_is_named_with_its_line(
    tmp_path: Path, old: str, new: str, line: int, field: str, reason: str
) -> None:
    path = write(tmp_path, swapped(old, new))

    with pytest.raises(StreamFileError) as caught:
        load_stream_file(path)

    assert f"{path}:{line}: {field}: " in caught.value.facts
    assert reason in caught.value.facts
    assert "frazil streams" in caught.value.next_step


@pytest.mark.parametrize(
    ("old", "new", "place", "reason"),
    [
        (
            '["day(at)"]',
            '["day(id)"]',
            "16: table.partition_by.0: ",
            "id is long; day fits date, timestamp",
        ),
        (
            '["day(at)"]',
            '["dya(at)"]',
            "16: table.partition_by.0: ",
            "unknown transform 'dya'; known: identity",
        ),
        ("sort_by: [id]", "sort_by: [nme]", "17: table.sort_by.0: ", "column 'nme' is not among"),
    ],
    ids=["a transform that does not fit", "an unknown transform", "an unknown sort column"],
)
def test_a_broken_layout_is_named_with_the_line_of_its_table(
    tmp_path: Path, old: str, new: str, place: str, reason: str
) -> None:
    path = write(tmp_path, swapped(old, new))

    with pytest.raises(StreamFileError) as caught:
        load_stream_file(path)

    assert reason in caught.value.facts
    assert f"{path}:{place}" in caught.value.facts


def test_two_mistakes_are_told_at_once(tmp_path: Path) -> None:
    text = swapped("id: long!", "id: bigint", swapped("orphan_days: 3", "orphan_days: 0"))

    with pytest.raises(StreamFileError) as caught:
        load_stream_file(write(tmp_path, text))

    assert len(caught.value.facts.splitlines()) == 2


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"stream: [", "no valid YAML"),
        (b"- a\n- b\n", "a stream file is a mapping of keys"),
        (b"", "a stream file is a mapping of keys"),
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

    with pytest.raises(StreamFileError, match="'orders' must be named like its file"):
        load_stream_file(path)


def test_two_streams_cannot_fill_one_table(tmp_path: Path) -> None:  # B9
    write(tmp_path, GOOD)
    write(tmp_path, swapped("stream: orders", "stream: sales"), "sales")

    with pytest.raises(StreamFileError, match=r"'orders' and 'sales' both fill demo.orders"):
        load_streams(tmp_path)


def test_a_broken_file_stops_no_other_stream(tmp_path: Path) -> None:  # A10
    write(tmp_path, GOOD)
    write(tmp_path, "stream: [", "broken")
    write(tmp_path, swapped("stream: orders", "stream: sales"), "sales")

    streams, errors = load_readable_streams(tmp_path)

    assert [stream.stream for stream in streams] == ["orders"]
    assert ["broken.yaml" in e.facts for e in errors] == [True, False]


def test_an_unknown_stream_lists_those_that_exist(tmp_path: Path) -> None:
    write(tmp_path, GOOD)

    with pytest.raises(UnknownStreamError, match=r"no stream 'order' in .*; known: orders"):
        load_stream(tmp_path, "order")


def test_a_missing_folder_is_told_by_name(tmp_path: Path) -> None:
    with pytest.raises(StreamFileError, match="no such folder of stream files"):
        load_streams(tmp_path / "nowhere")
