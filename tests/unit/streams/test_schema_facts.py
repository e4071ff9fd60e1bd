"""The classifier beside what others allow: Iceberg's specification, PyIceberg, Avro."""

import io
import itertools

import fastavro
import pytest
from fastavro.read import SchemaResolutionError
from fastavro.types import Schema
from pyiceberg.exceptions import ResolveError
from pyiceberg.schema import promote

from frazil.iceberg.table_schema import to_iceberg_type
from frazil.streams.column_types import parse_column
from frazil.streams.schema_changes import compare_columns

TYPES = (
    *("boolean", "int", "long", "float", "double", "date", "timestamp", "timestamptz"),
    *("string", "uuid", "binary", "fixed(4)", "fixed(16)"),
    *("decimal(9,2)", "decimal(12,2)", "decimal(12,3)", "decimal(38,2)"),
)
PAIRS = [*itertools.permutations(TYPES, 2)]
PROMOTIONS = {
    *(("int", "long"), ("float", "double"), ("decimal(9,2)", "decimal(12,2)")),
    *(("decimal(9,2)", "decimal(38,2)"), ("decimal(12,2)", "decimal(38,2)")),
}
"""Iceberg's specification, "Schema Evolution", format version 2."""
KINDER = {
    *(("string", "binary"), ("binary", "string"), ("fixed(16)", "uuid")),
    *(("decimal(12,3)", "decimal(38,2)"), ("decimal(9,2)", "decimal(12,3)")),
    *(("decimal(12,2)", "decimal(12,3)"), ("decimal(12,3)", "decimal(12,2)")),
}
"""What PyIceberg promotes beyond the specification: another value, or digits that are lost."""


def name_change(old: str, new: str) -> list[str]:
    before, after = parse_column("a", old), parse_column("a", new)
    return [change.kind for change in compare_columns([before], [after], frozenset("a"))]


def test_only_what_the_specification_promotes_is_wider() -> None:
    assert {pair for pair in PAIRS if name_change(*pair) == ["widen"]} == PROMOTIONS


def is_promoted(old: str, new: str) -> bool:
    types = [parse_column("a", text).type for text in (old, new)]
    file, read = (to_iceberg_type(each, itertools.count(1)) for each in types)
    try:
        promote(file, read)
    except ResolveError:
        return False
    return True


def test_what_is_wider_pyiceberg_reads_and_little_else() -> None:
    assert {pair for pair in PAIRS if is_promoted(*pair)} == PROMOTIONS | KINDER


def avro(**fields: object) -> Schema:
    """Write a record's Avro schema: a type, or a type and a default."""
    described = [
        {"name": name, "type": given[0], "default": given[1]}
        if isinstance(given, tuple)
        else {"name": name, "type": given}
        for name, given in fields.items()
    ]
    return fastavro.parse_schema({"type": "record", "name": "r", "fields": described})


OPTIONAL = (["null", "string"], None)
AVRO = {
    "add_column": (avro(a="int"), avro(a="int", b=OPTIONAL), True),
    "add_required": (avro(a="int"), avro(a="int", b="string"), False),
    "drop": (avro(a="int", b=OPTIONAL), avro(a="int"), True),
    "rename": (avro(a="int", b="string"), avro(a="int", c="string"), False),
    "widen": (avro(a="int"), avro(a="long"), True),
    "narrow": (avro(a="long"), avro(a="int"), False),
    "relax": (avro(a="int"), avro(a=["null", "int"]), True),
    "change_type": (avro(a="int"), avro(a="string"), False),
}
"""Each change as two schemas, and whether the new one reads what the old one wrote (BACKWARD)."""
COLUMNS: dict[str, tuple[dict[str, str], dict[str, str]]] = {
    "add_column": ({"a": "int!"}, {"a": "int!", "b": "string"}),
    "add_required": ({"a": "int!"}, {"a": "int!", "b": "string!"}),
    "drop": ({"a": "int!", "b": "string"}, {"a": "int!"}),
    "rename": ({"a": "int!", "b": "string!"}, {"a": "int!", "c": "string!"}),
    "widen": ({"a": "int!"}, {"a": "long!"}),
    "narrow": ({"a": "long!"}, {"a": "int!"}),
    "relax": ({"a": "int!"}, {"a": "int"}),
    "change_type": ({"a": "int!"}, {"a": "string!"}),
}


@pytest.mark.parametrize("kind", AVRO)
def test_a_change_that_avro_resolves_loses_nothing_and_others_are_a_person_s(kind: str) -> None:
    old, new, is_backward = AVRO[kind]
    buffer = io.BytesIO()
    fastavro.schemaless_writer(buffer, old, {"a": 1, "b": "x"})
    buffer.seek(0)
    try:
        fastavro.schemaless_reader(buffer, old, new)
        is_read = True
    except SchemaResolutionError:
        is_read = False

    have, want = ([parse_column(*pair) for pair in side.items()] for side in COLUMNS[kind])
    found = [change.kind for change in compare_columns(have, want, frozenset("abc"))]
    assert is_read is is_backward
    assert found == [kind]
