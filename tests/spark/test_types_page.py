"""Every example of docs/types.md, decoded by Spark and by the Python workers of the fast path."""

import json
import re
from collections.abc import Mapping, Sequence
from datetime import date
from decimal import Decimal
from pathlib import Path

import pytest
from google.protobuf.timestamp_pb2 import Timestamp
from pyspark.sql import SparkSession
from support.avro_bytes import encode, record
from support.decoding import decode_by_spark, decode_by_workers, use_schema

from frazil.streams.column_types import PRIMITIVES
from frazil_spark.decode.frame import DEFAULT_OPTIONS, DecodeOptions

pytestmark = [pytest.mark.spark, pytest.mark.stack]

PAGE = (Path(__file__).parents[2] / "docs" / "types.md").read_text()
HEAD = re.compile(r"\| `(.+)` \| in the table \|")
ROW = re.compile(r"\| `(.*)` \| (?:`(.*)`|dead letter) \|")
DEAD_LETTER = "dead letter"
MILLIS = "timestamp-millis"
DECIMAL = {"logicalType": "decimal", "precision": 38, "scale": 2}
PROTO = """syntax = "proto3";
import "google/protobuf/timestamp.proto";
message Event { google.protobuf.Timestamp value = 1; }
"""


def read_examples(text: str) -> dict[str, dict[str, str]]:
    """Read what becomes of each JSON value, by the type of its column."""
    examples: dict[str, dict[str, str]] = {}
    current: dict[str, str] = {}
    for line in text.splitlines():
        if head := HEAD.fullmatch(line):
            current = examples.setdefault(head[1], {})
        elif row := ROW.fullmatch(line):
            current[row[1]] = DEAD_LETTER if row[2] is None else row[2]
    return examples


EXAMPLES, OF_AVRO, OF_PROTOBUF = (
    read_examples(PAGE.partition(f"\n## {form}\n")[2].partition("\n## ")[0])
    for form in ("JSON", "Avro", "Protobuf")
)


def write(value: object) -> str:
    """Write a value as the page does."""
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(write, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{name}: {write(each)}' for name, each in value.items())}}}"
    if isinstance(value, date):
        return value.isoformat().replace("+00:00", "Z")
    if value is None or isinstance(value, bool) or value in {"", b""}:
        return {None: "null", True: "true", False: "false"}.get(value, '""')
    return value.hex() if isinstance(value, bytes) else str(value)


@pytest.mark.core
@pytest.mark.parametrize("kind", EXAMPLES)
def test_a_value_is_decoded_as_the_page_says(spark: SparkSession, kind: str) -> None:
    columns, examples = {"id": "long!", "value": kind}, EXAMPLES[kind]
    values = [f'{{"id": 1, "value": {text}}}'.encode() for text in examples]

    assert_as_told(spark, columns, values, examples)


def test_only_a_decimal_is_misread_with_a_long_exponent(spark: SparkSession) -> None:
    columns = {
        "id": "long",
        "reals": "list<double>",
        "prices": "list<decimal(9,2)>",
        "real": "struct<v: double>",
        "price": "struct<v: decimal(9,2)>",
    }
    good = {"id": 1, "reals": [5e-324, 1.7976931348623157e308], "real": {"v": 1e-300}}
    bad = ['{"prices": [1e-300]}', '{"prices": [1e300]}', '{"price": {"v": 0e-100}}']

    found = decode_by_spark(spark, columns, [json.dumps(good).encode(), *map(str.encode, bad)])

    assert found == [{**dict.fromkeys(columns), **good}, *["type_mismatch"] * 3]


@pytest.mark.core
@pytest.mark.parametrize("kinds", OF_AVRO)
def test_an_avro_value_is_decoded_as_the_page_says(spark: SparkSession, kinds: str) -> None:
    given, logical, column = kinds.replace("`", "").replace(" → ", ", ").split(", ")
    examples, columns = OF_AVRO[kinds], {"id": "long!", "value": column}
    text = json.dumps(record(("id", "long"), ("value", {"type": given, "logicalType": logical})))
    written = record(("id", "long"), ("value", given))
    values = [encode(written, {"id": 1, "value": json.loads(each)}) for each in examples]

    assert_as_told(spark, columns, values, examples, use_schema(columns, "AVRO", text))


def test_a_field_without_a_column_may_have_any_value(spark: SparkSession) -> None:
    price = {"type": "fixed", "name": "Price", "size": 4, **DECIMAL, "precision": 9}
    wide = {"type": "bytes", **DECIMAL}
    schema = record(
        ("id", "long"),
        ("at", {"type": "long", "logicalType": MILLIS}),
        ("wide", wide),
        ("wides", ["null", {"type": "array", "items": wide}]),
        ("prices", {"type": "array", "items": price}),
        ("in", {**record(("price", ["null", "shop.v1.Price"]), ("other", wide)), "name": "In"}),
        ("price", "shop.v1.Price"),
    )
    many, most = (10**40).to_bytes(17, "big"), b"\x7f\xff\xff\xff"
    row = {"id": 1, "at": 2**63 - 1, "wide": many, "wides": [b"", many], "prices": [most]}
    row |= {"in": {"price": b"\0\0\0\7", "other": many}, "price": b"\0\0\0\5"}
    payload = encode(ignore_logical_types(schema), row)
    columns = {"id": "long!", "in": "struct<price: decimal(9,2)>", "price": "decimal(9,2)"}
    options = use_schema(columns, "AVRO", json.dumps(schema))

    found = decode_by_spark(spark, columns, [payload], "by_latest_schema", options)

    told = {"id": 1, "in": {"price": Decimal("0.07")}, "price": Decimal("0.05")}
    assert found == [told]
    assert decode_by_workers(columns, [payload], options) == {0: told}


def ignore_logical_types(schema: object) -> dict[str, object]:
    """Return a schema by which fastavro writes numbers and bytes as they are."""
    text = re.sub(r', "(logicalType|precision|scale)": ("[a-z-]+"|[0-9]+)', "", json.dumps(schema))
    found: dict[str, object] = json.loads(text)
    return found


@pytest.mark.parametrize("kind", ["binary", "fixed(2)", "list<struct<a: binary>>"])
def test_a_raw_control_character_in_base64_is_malformed(spark: SparkSession, kind: str) -> None:
    columns = {"id": "long", "y": kind}
    texts = ['"/wA="', '"/wA=\\n"', '"\n/wA="', '"/wA=\t"', '"\x01/wA="', '"/w\nA="']
    values = [text if "<" not in kind else f'[{{"a": {text}}}]' for text in texts]

    found = decode_by_spark(spark, columns, [f'{{"y":\r\n\t{v}}}'.encode() for v in values])

    told = b"\xff\0" if "<" not in kind else [{"a": b"\xff\0"}]
    assert found == [*[{"id": None, "y": told}] * 2, *["malformed_json"] * 4]


@pytest.mark.parametrize("kinds", OF_PROTOBUF)
def test_a_protobuf_value_is_decoded_as_the_page_says(spark: SparkSession, kinds: str) -> None:
    columns, examples = {"value": kinds.rpartition("`")[2]}, OF_PROTOBUF[kinds]
    # A field of this number and a message have the same bytes in front of a payload.
    payloads = [Timestamp(**json.loads(each)).SerializeToString() for each in examples]
    values = [b"\x0a" + bytes([len(each)]) + each for each in payloads]

    assert_as_told(spark, columns, values, examples, use_schema(columns, "PROTOBUF", PROTO))


def assert_as_told(
    spark: SparkSession,
    columns: Mapping[str, str],
    values: Sequence[bytes],
    examples: Mapping[str, str],
    options: DecodeOptions = DEFAULT_OPTIONS,
) -> None:
    """Compare what both decoders give with the page; workers may leave a value to Spark."""
    convert = "json" if options.wire is None else "by_latest_schema"
    found = decode_by_spark(spark, columns, values, convert, options)

    told = [write(each["value"]) if isinstance(each, dict) else each for each in found]
    reasons = ["type_mismatch" if each == DEAD_LETTER else each for each in examples.values()]
    assert dict(zip(examples, told, strict=True)) == dict(zip(examples, reasons, strict=True))
    for value, outcome in zip(values, found, strict=True):
        assert list(decode_by_workers(columns, [value], options).values()) in ([], [outcome])


def test_the_page_has_an_example_of_every_type() -> None:
    assert {kind.partition("(")[0].partition("<")[0] for kind in EXAMPLES} == {
        *PRIMITIVES,
        *("decimal", "fixed", "list", "map", "struct"),
    }
