"""Every format by Python workers and by Spark alone: the same bytes, the same rows and letters."""

import json
import random
import secrets
import sys
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from confluent_kafka.schema_registry import Schema
from faults.auditor import audit_table
from pyiceberg.catalog import load_catalog
from pyiceberg.table import Table
from support import avro_corpus, proto_corpus
from support.avro_bytes import encode, record
from support.json_corpus import COLUMNS as JSON_COLUMNS
from support.json_corpus import make_records
from support.registry_lab import RegistryLab, frame, read_table

from frazil.ingest.fast_path import MIN_RECORDS_VARIABLE

pytestmark = [pytest.mark.spark, pytest.mark.stack]
PLAIN = 600
SUMMARY = (
    "frazil.counts",
    "frazil.rows-written",
    "frazil.rows-quarantined",
    "frazil.max-timestamp-ms",
    "frazil.schema-ids",
    "frazil.quality",
)


def load(registry: RegistryLab, name: str) -> Table:
    return load_catalog("lake", **registry.lab.stack.catalog_properties).load_table(name)


def is_by_workers(path: str) -> bool:
    return "parquet-cpp-arrow" in str(pq.read_metadata(path.removeprefix("file://")).created_by)


def list_files(registry: RegistryLab, name: str) -> list[tuple[bool, dict[str, object]]]:
    files = load(registry, name).inspect.files().select(["file_path", "record_count"]).to_pylist()
    return [(is_by_workers(str(f["file_path"])), f) for f in files]


def run_stream(
    registry: RegistryLab, value: dict[str, object], checked: Sequence[str], min_records: int
) -> str:
    """Read the lab's topic into a table of its own; give the table's name."""
    lab, topic = registry.lab, registry.lab.topic
    stream = f"f{secrets.token_hex(4)}"
    expectations = [
        {
            "type": "expect_column_values_to_not_be_null",
            "kwargs": {"column": column, "mostly": 0.1},
        }
        for column in checked
    ]
    (lab.folder / "expectations").mkdir(exist_ok=True)
    suite = {"name": "formats", "expectations": expectations}
    (lab.folder / "expectations" / "formats.json").write_text(json.dumps(suite))
    document = {
        **lab.document,
        "stream": stream,
        "source": {"topic": topic},
        "value": value,
        "table": {"name": f"lab.{stream}"},
        "errors": {"max_bad_ratio": 1.0},
        "batch": {"max_records": 100_000},
        "quality": {"suite": "formats"},
    }
    (lab.folder / f"{stream}.yaml").write_text(json.dumps(document))
    done = lab.frazil("run", stream, **{MIN_RECORDS_VARIABLE: str(min_records)})
    assert done.code == 0, done.out + done.err
    assert "Python workers failed" not in done.out + done.err
    return f"lab.{stream}"


WHOLE = ("raw", "string")


def assert_both_ways_agree(
    registry: RegistryLab, value: dict[str, object], checked: Sequence[str], least: int = PLAIN
) -> None:
    """Read the topic by workers and by Spark alone, and compare all that anybody can see."""
    direct = run_stream(registry, value, checked, 0)
    plain = run_stream(registry, value, checked, 10**9)

    for ours, theirs in zip(read_texts(registry, direct), read_texts(registry, plain), strict=True):
        assert ours == theirs
    assert read_letters(registry, direct) == read_letters(registry, plain)
    assert summary_of(registry, direct) == summary_of(registry, plain)
    files = list_files(registry, direct)
    assert sum(int(str(f["record_count"])) for by_workers, f in files if by_workers) >= least
    assert not any(by_workers for by_workers, _ in list_files(registry, plain))
    assert_same_layout(registry, direct, plain)
    stack = registry.lab.stack
    for name in (direct, plain):
        report = audit_table(stack.catalog_properties, "lake", name, stack.bootstrap, name[4:])
        assert report.findings == ()


def read_texts(registry: RegistryLab, name: str) -> list[str]:
    """Read rows as text: -0.0 equals 0.0, and no NaN equals another.

    Instants are read as numbers, since Python has none beyond the year 9999, and text as bytes,
    since Spark's reader of Avro lets through what is no UTF-8.
    """
    table = load(registry, name).scan().to_arrow()
    counted = pa.schema([pa.field(f.name, as_plain(f.type)) for f in table.schema])
    rows = table.cast(counted).to_pylist()
    rows.sort(key=lambda row: (row["_kafka"]["partition"], row["_kafka"]["offset"]))
    return [repr(row) for row in rows]


def read_letters(registry: RegistryLab, name: str) -> list[tuple[object, ...]]:
    letters = read_table(registry.lab, f"{name}__dead_letters")
    return [(str(r["_kafka"]), r["reason"], r["detail"], r["value"]) for r in letters]


def as_plain(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_temporal(kind):
        return pa.int32() if pa.types.is_date(kind) else pa.int64()
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return pa.large_binary()
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(f.name, as_plain(f.type)) for f in kind.fields])
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.list_(pa.field(kind.value_field.name, as_plain(kind.value_type)))
    return kind


def summary_of(registry: RegistryLab, name: str) -> list[str | None]:
    snapshot = load(registry, name).current_snapshot()
    assert snapshot is not None
    assert snapshot.summary is not None
    return [snapshot.summary[key] for key in SUMMARY]


def assert_same_layout(registry: RegistryLab, direct: str, plain: str) -> None:
    """Compare the schemas of the files as Parquet has them."""
    layouts = []
    for name, is_wanted in ((direct, True), (plain, False)):
        path = next(str(f["file_path"]) for by, f in list_files(registry, name) if by == is_wanted)
        schema = pq.read_metadata(path.removeprefix("file://")).schema
        layouts.append(
            [(c.path, c.physical_type, str(c.logical_type), c.max_definition_level) for c in schema]
        )
    assert layouts[0] == layouts[1]


def seeded() -> random.Random:
    seed = secrets.randbelow(10**6)
    sys.stdout.write(f"seed {seed}\n")
    return random.Random(seed)


def shuffle(rnd: random.Random, *groups: Sequence[bytes | None]) -> list[bytes | None]:
    mixed = [value for group in groups for value in group]
    rnd.shuffle(mixed)
    return mixed


HEADERLESS = (None, b"", b"\x00", b"\x00\x00\x00", b"{}", b"\x01\x00\x00\x00\x07x")


@pytest.mark.parametrize("convert", WHOLE)
def test_whole_values(registry: RegistryLab, convert: str) -> None:
    rnd = seeded()
    texts: list[bytes | None] = [
        rnd.choice((b"", b"x" * 300, "né\0".encode())) for _ in range(PLAIN)
    ]
    odd = (None, b"\xff", b"\xed\xa0\x80", b"\xc0\x80", b"ok")
    registry.send(shuffle(rnd, texts, odd * 3))

    assert_both_ways_agree(registry, {"convert": convert}, ["value"])


def test_avro_by_two_schemas(registry: RegistryLab) -> None:
    rnd = seeded()
    newer = registry.register(json.dumps(avro_corpus.SCHEMA))
    other = record(("id", "long"), ("text", "string"), ("small", "int"), name="Event2")
    older = registry.client.register_schema(
        f"old-{registry.lab.topic}-value", Schema(json.dumps(other), "AVRO")
    )
    good = [frame(newer, avro_corpus.make_payload(rnd, n)) for n in range(PLAIN)]
    short = [
        frame(older, encode(other, {"id": n, "text": f"t{n}", "small": 1})) for n in range(100)
    ]
    odd = [frame(newer, p) for p in avro_corpus.make_odd(rnd, 7)]
    damaged = [
        frame(newer, avro_corpus.damage(rnd, avro_corpus.make_payload(rnd, n))) for n in range(200)
    ]
    registry.send(shuffle(rnd, good, short, odd, damaged, HEADERLESS))

    value = {"convert": "by_schema_id", "columns": avro_corpus.COLUMNS, "unknown_id": "quarantine"}
    assert_both_ways_agree(registry, value, ["id", "price", "instant", "day"])


def test_protobuf(registry: RegistryLab) -> None:
    rnd = seeded()
    known = registry.register(proto_corpus.TEXT, "PROTOBUF")
    make = proto_corpus.make_payload
    good = [frame(known, make(rnd, n), rnd.choice((b"\x00", b"\x02\x00"))) for n in range(PLAIN)]
    odd = [frame(known, p, b"\x00") for p in proto_corpus.make_odd(rnd, 7)]
    other = [frame(known, b"\x08\x05", b"\x04\x00\x02")] * 3
    damaged = [frame(known, avro_corpus.damage(rnd, make(rnd, n)), b"\x00") for n in range(200)]
    registry.send(shuffle(rnd, good, odd, other, damaged, HEADERLESS))

    value = {"convert": "by_schema_id", "columns": proto_corpus.COLUMNS, "unknown_id": "quarantine"}
    assert_both_ways_agree(registry, value, ["id", "at", "lines"])


def test_bare_avro_by_the_latest_schema(registry: RegistryLab) -> None:
    rnd = seeded()
    registry.register(json.dumps(avro_corpus.SCHEMA))
    good = [avro_corpus.make_payload(rnd, n) for n in range(PLAIN)]
    registry.send(shuffle(rnd, good, avro_corpus.make_odd(rnd, 7), (None, b"", b"\x00")))

    value = {"convert": "by_latest_schema", "columns": avro_corpus.COLUMNS}
    assert_both_ways_agree(registry, value, ["id", "deep"])


def test_json_schema(registry: RegistryLab) -> None:
    rnd = seeded()
    text = json.dumps({"type": "object", "properties": {"id": {"type": "integer"}}})
    known = registry.register(text, "JSON")
    records = [
        None if v is None else frame(known, v) for v in make_records(rnd.randrange(99), PLAIN)
    ]
    registry.send(shuffle(rnd, records, HEADERLESS))

    value = {"convert": "by_schema_id", "columns": JSON_COLUMNS, "unknown_id": "quarantine"}
    assert_both_ways_agree(registry, value, ["id", "price"], 100)


def test_json_fields_with_names_that_no_column_has(registry: RegistryLab) -> None:
    odd = [{"order-id": n, "@timestamp": f"2026-01-0{1 + n % 9}T00:00:00Z"} for n in range(60)]
    more = [{"a.b": "x", "a": {"b": "y"}, "ID": 1, "id": n, "`'": "q"} for n in range(60)]
    good = [{**first, **second} for first, second in zip(odd, more, strict=True)]
    bad = [{**good[0], "order-id": "seven"}, {**good[0], "order-id": None}]
    registry.send([json.dumps(value).encode() for value in [*good, *bad]])
    columns = {
        "order_id": {"type": "long!", "from": "order-id"},
        "at": {"type": "timestamptz", "from": "@timestamp"},
        "dotted": {"type": "string", "from": "a.b"},
        "upper": {"type": "int", "from": "ID"},
        "id": "int",
        "quoted": {"type": "string", "from": "`'"},
        "a": {"type": "string", "from": "absent"},
    }

    assert_both_ways_agree(registry, {"convert": "json", "columns": columns}, ["order_id"], 50)

    nested = {"order_id": columns["order_id"], "other": "struct<c: string! from b, B: int> from a"}
    name = run_stream(registry, {"columns": nested}, [], 0)
    rows = read_table(registry.lab, name)
    assert sorted(row["order_id"] for row in rows) == list(range(60))
    assert {repr(row["other"]) for row in rows} == {"{'c': 'y', 'B': None}"}
    assert [reason for _, reason, *_ in read_letters(registry, name)] == [
        "type_mismatch",
        "required_missing",
    ]
