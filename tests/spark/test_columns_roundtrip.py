"""Every type from JSON through `frazil run` into the table: what was sent, or a dead letter (E14).

Values are read back through PyIceberg, partition values from the manifests.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from uuid import UUID

import pyarrow.parquet as pq
import pytest
from confluent_kafka import Producer
from conftest import Lab
from faults.judges import assert_audited
from pyiceberg.catalog import load_catalog
from pyiceberg.table import Table

pytestmark = [pytest.mark.spark, pytest.mark.stack]

Header = tuple[str, bytes | None]

A_UUID = "f79c3e09-677c-4bbd-a479-3f349cb785e7"
LEAP_DAY = datetime(2024, 2, 29, 23, 59, 59, 123456, tzinfo=UTC)
LONG_AGO = datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=UTC)
WHOLE = "9999999999999999999999999999.0123456789"

COLUMNS = {
    "id": "long!",
    "flag": "boolean",
    "small": "int",
    "single": "float",
    "real": "double",
    "price": "decimal(9,2)",
    "exact": "decimal(38,10)",
    "day": "date",
    "local": "timestamp",
    "instant": "timestamptz",
    "hour": "timestamptz",
    "text": "string",
    "note": "string",
    "uid": "uuid",
    "four": "fixed(4)",
    "blob": "binary",
    "deep": "struct<a: int!, in: struct<at: timestamptz, d: decimal(5,1)>>",
    "reals": "list<double>",
    "singles": "map<string, list<float>>",
    "lines": "list<struct<sku: string!, on: date>>",
    "counts": "map<string, long>",
    "times": "map<string, timestamptz>",
}
PARTITIONS = [
    *["flag", "year(day)", "month(local)", "day(instant)", "hour(hour)"],
    *["bucket(id, 16)", "truncate(text, 3)"],
]
"""Each transform once; the spec forbids two of time on one column."""

# JSON text and what must come back, per record.
SENT: list[dict[str, tuple[str, object]]] = [
    {
        "id": ("34", 34),
        "flag": ("true", True),
        "small": ("2147483647", 2147483647),
        "single": ("0.5", 0.5),
        "real": ("0.1", 0.1),
        "price": ("1234567.89", Decimal("1234567.89")),
        "exact": (WHOLE, Decimal(WHOLE)),
        "day": ('"2024-02-29"', date(2024, 2, 29)),
        "local": ('"2024-02-29T23:59:59.123456000"', LEAP_DAY.replace(tzinfo=None)),
        "instant": ('"2024-02-29T23:59:59.123456Z"', LEAP_DAY),
        "hour": ('"2024-03-01T02:30:00+02:00"', datetime(2024, 3, 1, 0, 30, tzinfo=UTC)),
        "text": ('"iceberg \\u00e4 \\ud83d\\ude00"', "iceberg ä 😀"),
        "uid": (f'"{A_UUID}"', A_UUID),
        "four": ('"AAEC/w=="', b"\x00\x01\x02\xff"),
        "blob": ('"/wA="', b"\xff\x00"),
        "deep": (
            '{"a": 1, "in": {"at": "2024-02-29T23:59:59.123456Z", "d": -0.5}}',
            {"a": 1, "in": {"at": LEAP_DAY, "d": Decimal("-0.5")}},
        ),
        "reals": ("[1, null, -2.5e-3]", [1.0, None, -0.0025]),
        "singles": ('{"x": [0.5, null], "y": null}', [("x", [0.5, None]), ("y", None)]),
        "lines": ('[{"sku": "a", "on": "2024-02-29"}]', [{"sku": "a", "on": date(2024, 2, 29)}]),
        "counts": ('{"x": 1, "y": null}', [("x", 1), ("y", None)]),
        "times": ('{"x": "1969-12-31T23:59:59.999999Z"}', [("x", LONG_AGO)]),
    },
    {
        "id": ("-9223372036854775808", -9223372036854775808),
        "flag": ("false", False),
        "small": ("-2147483648", -2147483648),
        "single": ("-3.4028234663852886e38", -3.4028234663852886e38),
        "real": ("1.7976931348623157e308", 1.7976931348623157e308),
        "price": ('"-0.01"', Decimal("-0.01")),
        "exact": ("-1.5", Decimal("-1.5000000000")),
        "day": ('"0001-01-01"', date(1, 1, 1)),
        "local": ('"1969-12-31 23:59"', datetime(1969, 12, 31, 23, 59)),  # noqa: DTZ001 - local
        "instant": ('"1969-12-31T23:59:59.999999000Z"', LONG_AGO),
        "hour": ('"1969-12-31T23:59:59.999999Z"', LONG_AGO),
        "text": ('""', ""),
        "uid": (f'"{A_UUID.upper()}"', A_UUID),
        "four": ('"AAAAAA=="', b"\0\0\0\0"),
        "blob": ('""', b""),
        "deep": ('{"a": 0, "in": {}}', {"a": 0, "in": {"at": None, "d": None}}),
        "reals": ("[]", []),
        "singles": ('{"": []}', [("", [])]),
        "lines": ("[null]", [None]),
        "counts": ("{}", []),
        "times": ('{"x": null}', [("x", None)]),
    },
    {"id": ("1", 1), **{name: ("null", None) for name in COLUMNS if name != "id"}},
    {"id": ("2", 2)},
    {"id": ("3", 3), "note": ('"1.10"', "1.10")},
    {"id": ("4", 4), "note": ("12345678901234567890", "12345678901234567890")},
    {"id": ("5", 5), "note": ("true", "true")},
    {"id": ("6", 6), "note": ('{"b": [1, "2.50"], "a": {}}', '{"b":[1,"2.50"],"a":{}}')},
    {"id": ("7", 7), "note": ("1.10", "1.1")},  # as docs/formats.md says
]
WRITTEN = {
    34: [True, 54, 54 * 12 + 1, 19782, 19783 * 24, 3, "ice"],
    -9223372036854775808: [False, 1 - 1970, -1, -1, -1, 5, ""],
}
"""Partition values by id, as the specification writes them; 34 in bucket 3 is its own example."""

MISFITS: Mapping[str, Sequence[str]] = {
    "flag": ['"true"', "1"],
    "small": ["2147483648", "1.5", '"1"', "true"],
    "id": ["9223372036854775808", "1.0"],
    "single": ["1e39", '"NaN"'],
    "real": ["1e400", "-1e400", '"1.5"'],
    "price": ["12345678.9", "1.234", "0.001", "9999999.995", '"1.005"', '"x"', "1e-30"],
    "exact": ["0.30000000000000004", "99999999999999999999999999999.0", '"1.00000000001"', "1e2"],
    "day": ['"2023-02-29"', '"2024"', '"2024-2-9"', '"2024-01-01T23:00:00"', "20240101"],
    "local": [
        *['"2024-01-02T03:04:05Z"', '"2024-02-30T00:00:00"', '"12:30:00"', "1700000000"],
        *['"2024-01-02T03:04:05.1234567"', '"2024-01-02T03:04:05.000000001"', '"2024"'],
        *['"2024-01-02"', '"2024-1-2T03:04:05"', '" 2024-01-02T03:04:05"'],
    ],
    "instant": [
        *['"2024-01-02T03:04:05"', '"12:30:00Z"', "1700000000", "1700000000000"],
        *['"2024-02-30T00:00:00Z"', '"2024-01-02T03:04:05+99:00"'],
        *['"2024-01-02T03:04:05.1234567Z"', '"2024-01-02T03:04:05.000000001+02:00"'],
    ],
    "uid": [f'"{A_UUID[:-1]}"', f'"{A_UUID.replace("-", "")}"', "1"],
    "four": ['"AAEC"', '"AAECAwQ="', '"!!!!"'],
    "blob": ['"AAE"', '"_-8="', "1"],
    "deep": ['{"a": 1, "in": {"d": 0.55}}', '{"a": 1, "in": {"at": "2024"}}', "[]", '"x"'],
    "reals": ['["1"]', "1", "[1e400]", "[null, -1e400]"],
    "singles": ['{"x": [1e39]}', '{"x": null, "y": [1, -1e400]}'],
    "lines": ['[{"sku": "a", "on": "2024"}]', '[{"sku": "a", "on": "2024-02-30"}]'],
    "counts": ['{"x": 1.5}', "[]", '{"x": 1, "x": 2}', '{"x": 1, "\\u0078": 1}'],
    "times": ['{"x": "2024-01-02"}'],
}
BAD_RECORDS: list[tuple[bytes | None, str]] = [
    (None, "null_value"),
    (b"", "empty_value"),
    (b" ", "malformed_json"),
    (b"{", "malformed_json"),
    (b'{"id": 1} x', "malformed_json"),
    (b'{"id": 1}{"id": 2}', "malformed_json"),
    (b'{"id": 1}}', "malformed_json"),
    (b'{"id": 1},{"id": 2}', "malformed_json"),
    (b'{"id": 1}] {', "malformed_json"),
    (b"{'id': 1}", "malformed_json"),
    (b'{"id": 1, "real": NaN}', "malformed_json"),
    (b"null", "not_an_object"),
    (b'[{"id": 1}]', "not_an_object"),
    (b'"x"', "not_an_object"),
    (b'\xff{"id": 1}', "invalid_utf8"),
    (b'{"id": 1, "text": "\\ud83d"}', "invalid_utf8"),
    (b"{}", "required_missing"),
    (b'{"id": null}', "required_missing"),
    (b'{"id": 1, "deep": {}}', "required_missing"),
    (b'{"id": 1, "lines": [{"sku": "a"}, {"on": "2024-01-01"}]}', "required_missing"),
    (b'{"id": 1, "exact": "x", "deep": {}}', "type_mismatch"),
]


def load(lab: Lab, name: str) -> Table:
    return load_catalog("lake", **lab.stack.catalog_properties).load_table(name)


def run_once(lab: Lab) -> None:
    done = lab.frazil("run", lab.stream)
    assert done.code == 0, done.out + done.err
    assert_audited(lab)


def write_record(values: Mapping[str, tuple[str, object]]) -> bytes:
    fields = ", ".join(f'"{name}": {text}' for name, (text, _) in values.items())
    return f"{{{fields}}}".encode()


def send(lab: Lab, value: bytes | None, key: bytes | None, headers: list[Header], ms: int) -> None:
    producer = Producer({"bootstrap.servers": lab.stack.bootstrap})
    producer.produce(lab.topic, value=value, key=key, headers=headers, timestamp=ms, partition=0)
    assert producer.flush(30) == 0


def read_rows(table: Table) -> dict[int, dict[str, object]]:
    """Read id → row; PyIceberg 0.12 gives an empty list of structs where a null one is stored."""
    rows = {row["id"]: row for row in table.scan().to_arrow().to_pylist()}
    for task in table.scan().plan_files():
        path = task.file.file_path.removeprefix("file://")
        for stored in pq.read_table(path, columns=["id", "lines"]).to_pylist():
            if stored["lines"] is None and rows[stored["id"]]["lines"] == []:
                rows[stored["id"]]["lines"] = None
    return rows


def read_letters(lab: Lab) -> dict[int, tuple[bytes | None, str]]:
    """Read offset → value and reason."""
    letters = load(lab, f"{lab.table}__dead_letters").scan().to_arrow().to_pylist()
    return {letter["_kafka"]["offset"]: (letter["value"], letter["reason"]) for letter in letters}


def read_partitions(table: Table) -> dict[int, list[object]]:
    """Read id → partition values from the manifests; every file here holds one row."""
    snapshot = table.current_snapshot()
    assert snapshot is not None
    id_field = table.schema().find_field("id").field_id
    files = [
        entry.data_file
        for manifest in snapshot.manifests(table.io)
        for entry in manifest.fetch_manifest_entry(table.io)
    ]
    return {
        int.from_bytes(file.lower_bounds[id_field], "little", signed=True): list(
            file.partition._data  # noqa: SLF001 - a record has no other way to its values
        )
        for file in files
    }


def plain(value: object) -> object:
    """Write identifiers as text, whatever the reader makes of them."""
    if isinstance(value, UUID):
        return str(value)
    return str(UUID(bytes=value)) if isinstance(value, bytes) and len(value) == 16 else value


@pytest.mark.core
def test_every_type_comes_back_as_it_was_sent_and_lies_in_its_partition(lab: Lab) -> None:
    lab.write_stream(
        value={"convert": "json", "columns": COLUMNS},
        table={"name": lab.table, "partition_by": PARTITIONS},
    )
    lab.create_topic(partitions=1)
    lab.produce([write_record(values) for values in SENT], partitions=1)

    run_once(lab)

    table = load(lab, lab.table)
    rows = read_rows(table)
    for values in SENT:
        expected = {name: values.get(name, ("", None))[1] for name in COLUMNS}
        row = rows.pop(expected["id"])
        assert {name: plain(row[name]) for name in COLUMNS} == expected
    assert rows == {}
    partitions = read_partitions(table)
    for number, written in WRITTEN.items():
        assert partitions[number] == written
    assert_equal_to_kafka(lab, len(SENT))


def assert_equal_to_kafka(lab: Lab, count: int) -> None:
    """Preview a replay of all records: each value equals its row's, also in maps."""
    preview = lab.frazil("replay", lab.stream, "--offsets", f"{lab.topic}:0:0-{count}", "--json")
    assert preview.code == 0, preview.out + preview.err
    differences = preview.json["differences"]
    assert (differences["same"], differences["rows_now"]) == (count, count)


@pytest.mark.core
def test_a_value_that_does_not_fit_its_column_is_a_dead_letter_and_never_another_value(
    lab: Lab,
) -> None:
    lab.write_stream(value={"convert": "json", "columns": COLUMNS}, errors={"max_bad_ratio": 1.0})
    misfits = [(name, text) for name, texts in MISFITS.items() for text in texts]
    values = [write_record({"id": ("1", 1), name: (text, None)}) for name, text in misfits]
    lab.create_topic(partitions=1)
    lab.produce([*values, *[value for value, _ in BAD_RECORDS]], partitions=1)

    run_once(lab)

    expected = [*[(value, "type_mismatch") for value in values], *BAD_RECORDS]
    assert read_letters(lab) == dict(enumerate(expected))
    assert load(lab, lab.table).scan().to_arrow().num_rows == 0


def test_raw_values_keys_and_headers_come_back_byte_for_byte(lab: Lab) -> None:
    headers: list[Header] = [("h", b"\x00\xff"), ("h", None), ("", b"")]
    lab.write_stream(value={"convert": "raw"}, table={"name": lab.table})
    lab.create_topic(partitions=1, **{"retention.ms": "-1"})
    send(lab, b"\x00\xff", b"\xfe", headers, 1_700_000_000_123)
    send(lab, None, None, [], 1)
    send(lab, b"", b"", [("x", None)], 2)

    run_once(lab)

    rows = load(lab, lab.table).scan().to_arrow().to_pylist()
    rows.sort(key=lambda row: row["_kafka"]["offset"])
    assert [row["value"] for row in rows] == [b"\x00\xff", None, b""]
    assert [row["_kafka"]["key"] for row in rows] == [b"\xfe", None, b""]
    sent = [{"key": key, "value": value} for key, value in headers]
    assert [row["_kafka"]["headers"] or [] for row in rows] == [
        sent,
        [],
        [{"key": "x", "value": None}],
    ]
    assert rows[0]["_kafka"] == {
        "topic": lab.topic,
        "partition": 0,
        "offset": 0,
        "timestamp_type": 0,
        "schema_id": None,
        "timestamp": datetime(2023, 11, 14, 22, 13, 20, 123000, tzinfo=UTC),
        "key": b"\xfe",
        "headers": sent,
    }


def test_text_values_keep_null_and_empty_apart_and_refuse_what_is_no_text(lab: Lab) -> None:
    lab.write_stream(value={"convert": "string"}, table={"name": lab.table})
    lab.create_topic(partitions=1, **{"message.timestamp.type": "LogAppendTime"})
    lab.produce(["ä😀".encode(), None, b"", b'{"id": 1} x', b"\xff"], partitions=1)

    run_once(lab)

    rows = load(lab, lab.table).scan().to_arrow().to_pylist()
    rows.sort(key=lambda row: row["_kafka"]["offset"])
    assert [row["value"] for row in rows] == ["ä😀", None, "", '{"id": 1} x']
    assert {row["_kafka"]["timestamp_type"] for row in rows} == {1}
    letters = load(lab, f"{lab.table}__dead_letters").scan().to_arrow().to_pylist()
    assert [(letter["value"], letter["reason"]) for letter in letters] == [
        (b"\xff", "invalid_utf8")
    ]
