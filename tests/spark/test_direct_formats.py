"""Every format by Python workers and by Spark alone: the same bytes, the same rows and letters."""

import json
import random
import secrets
import sys
from collections.abc import Sequence

import avro_corpus
import proto_corpus
import pyarrow.parquet as pq
import pytest
from avro_bytes import encode, record
from json_corpus import COLUMNS as JSON_COLUMNS
from json_corpus import make_records
from pyiceberg.catalog import load_catalog
from pyiceberg.table import Table
from registry_lab import RegistryLab, frame, read_table

from faults.auditor import audit_table
from frazil.direct_plan import MIN_RECORDS_VARIABLE

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
    files = load(registry, name).inspect.files().to_pylist()
    return [(is_by_workers(str(f["file_path"])), f) for f in files]


def run_stream(registry: RegistryLab, value: dict[str, object], min_records: int) -> str:
    """Read the lab's topic into a table of its own; give the table's name."""
    lab, topic = registry.lab, registry.lab.topic
    stream = f"f{secrets.token_hex(4)}"
    kwargs: dict[str, object] = (
        {"column": "id"} if value["convert"] not in WHOLE else {"column": "value"}
    )
    expectations = [
        {"type": "expect_column_values_to_not_be_null", "kwargs": {**kwargs, "mostly": 0.1}}
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
    assert "gave up" not in done.out + done.err
    return f"lab.{stream}"


WHOLE = ("raw", "string")


def assert_both_ways_agree(registry: RegistryLab, value: dict[str, object], least: int) -> None:
    """Read the topic by workers and by Spark alone, and compare all that anybody can see."""
    direct = run_stream(registry, value, 0)
    plain = run_stream(registry, value, 10**9)

    rows = [read_table(registry.lab, name) for name in (direct, plain)]
    # By their text: -0.0 equals 0.0, and NaN does not equal NaN.
    for ours, theirs in zip(*rows, strict=True):
        assert repr(ours) == repr(theirs)
    letters = [
        [
            (r["_kafka"]["offset"], r["reason"], r["detail"], r["value"])
            for r in read_table(  # type: ignore[index]
                registry.lab, f"{name}__dead_letters"
            )
        ]
        for name in (direct, plain)
    ]
    assert letters[0] == letters[1]
    assert summary_of(registry, direct) == summary_of(registry, plain)
    files = list_files(registry, direct)
    assert sum(int(str(f["record_count"])) for by_workers, f in files if by_workers) >= least
    assert not any(by_workers for by_workers, _ in list_files(registry, plain))
    assert_same_layout(registry, direct, plain)
    stack = registry.lab.stack
    for name in (direct, plain):
        report = audit_table(stack.catalog_properties, "lake", name, stack.bootstrap, name[4:])
        assert report.findings == ()


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

    assert_both_ways_agree(registry, {"convert": convert}, PLAIN)


def test_avro_by_two_schemas(registry: RegistryLab) -> None:
    rnd = seeded()
    newer = registry.register(json.dumps(avro_corpus.SCHEMA))
    other = record(("id", "long"), ("text", "string"), ("small", "int"), name="Event2")
    older = registry.client.register_schema(f"old-{registry.lab.topic}-value", as_schema(other))
    known = [newer, older]
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
    assert_both_ways_agree(registry, value, PLAIN)
    assert len(known) == 2


def as_schema(schema: object) -> object:
    from confluent_kafka.schema_registry import Schema

    return Schema(json.dumps(schema), "AVRO")


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
    assert_both_ways_agree(registry, value, PLAIN)


def test_bare_avro_by_the_latest_schema(registry: RegistryLab) -> None:
    rnd = seeded()
    registry.register(json.dumps(avro_corpus.SCHEMA))
    good = [avro_corpus.make_payload(rnd, n) for n in range(PLAIN)]
    registry.send(shuffle(rnd, good, avro_corpus.make_odd(rnd, 7), (None, b"", b"\x00")))

    value = {"convert": "by_latest_schema", "columns": avro_corpus.COLUMNS}
    assert_both_ways_agree(registry, value, PLAIN)


def test_json_schema(registry: RegistryLab) -> None:
    rnd = seeded()
    text = json.dumps({"type": "object", "properties": {"id": {"type": "integer"}}})
    known = registry.register(text, "JSON")
    records = [
        None if v is None else frame(known, v) for v in make_records(rnd.randrange(99), PLAIN)
    ]
    registry.send(shuffle(rnd, records, HEADERLESS))

    value = {"convert": "by_schema_id", "columns": JSON_COLUMNS, "unknown_id": "quarantine"}
    assert_both_ways_agree(registry, value, 100)
