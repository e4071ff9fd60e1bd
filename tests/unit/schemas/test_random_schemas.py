"""Random schemas of each format give their columns, and workers decode what libraries write."""

from hypothesis import given, settings
from support.decoding import decode_by_workers, use_schema
from support.schema_strategies import Case, avro_cases, is_same, json_cases, proto_cases

from frazil.kafka.schema_registry import Registered
from frazil.schemas.json_schema import read_json_schema
from frazil.schemas.source_types import Dictionary, Record, Scalar, Sequence, Source
from frazil.streams.column_types import (
    ColumnType,
    ListType,
    MapType,
    Primitive,
    StructType,
    parse_column,
)


def fits(source: Source | None, column: ColumnType) -> bool:
    """Return whether a schema's type is that of a column."""
    match source, column:
        case Scalar(own), Primitive():
            return own == column
        case Sequence(inner), ListType(element):
            return fits(inner, element)
        case Dictionary(_, inner), MapType(_, value):
            return fits(inner, value)
        case Record(fields), StructType(wanted):
            named = dict(fields)
            return {*named} == {f.field for f in wanted} and all(
                fits(named[f.field], f.type) for f in wanted
            )
    return False


def assert_decoded(case: Case, kind: str) -> None:
    options = use_schema(case.columns, kind, case.text)
    rows = decode_by_workers(case.columns, case.payloads, options)
    for index, row in rows.items():
        assert is_same(row, case.rows[index]), (case.text, case.payloads[index])


@given(avro_cases())
def test_random_avro(case: Case) -> None:
    assert_decoded(case, "AVRO")


@given(proto_cases())
@settings(max_examples=40)
def test_random_protobuf(case: Case) -> None:
    assert_decoded(case, "PROTOBUF")


@given(json_cases())
def test_random_json_schemas(case: Case) -> None:
    root = read_json_schema(Registered(1, "JSON", case.text))
    assert isinstance(root, Record)
    for name, text in case.columns.items():
        column = parse_column(name, text)
        assert fits(root.find(column.field)[0], column.type), (case.text, column)
    for index, row in decode_by_workers(case.columns, case.payloads).items():
        assert is_same(row, case.rows[index]), (case.text, case.payloads[index])
