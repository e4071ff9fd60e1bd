"""Partition transforms fit their columns, or the stream file is refused (E16)."""

import re

import pytest
from pyiceberg.transforms import parse_transform

from frazil.iceberg.table_schema import build_partition_spec, build_table_schema
from frazil.streams.column_types import FieldError, parse_column
from frazil.streams.partitioning import ALLOWED_TYPES, parse_partition_field, validate_layout

TYPES = {
    **{name: name for name in ("boolean", "int", "long", "float", "double", "date")},
    **{name: name for name in ("timestamp", "timestamptz", "string", "uuid", "binary")},
    "decimal": "decimal(9,2)",
    "fixed": "fixed(4)",
}
COLUMNS = tuple(parse_column(f"c_{name}", text) for name, text in TYPES.items())
OURS = {("identity", "float"), ("identity", "double"), ("identity", "fixed")}
"""Iceberg allows them. A partition for each floating number is useless, and what Java writes for a
partition of `fixed` values no other library reads."""
WIDTHS = {"bucket": ", 16", "truncate": ", 16"}
ROWS = (
    parse_column("id", "long!"),
    parse_column("at", "timestamp"),
    parse_column("shop", "struct<city: string, at: struct<day: date>>"),
    parse_column("tags", "list<string>"),
)


@pytest.mark.parametrize("transform", ALLOWED_TYPES)
@pytest.mark.parametrize("name", TYPES)
def test_a_transform_fits_a_type_exactly_where_iceberg_says_so(transform: str, name: str) -> None:
    text = f"{transform}(c_{name}{WIDTHS.get(transform, '')})"
    source = build_table_schema(COLUMNS).find_field(f"c_{name}").field_type
    written = f"{transform}[16]" if transform in WIDTHS else transform
    fits = parse_transform(written).can_transform(source) and (transform, name) not in OURS

    if not fits:
        with pytest.raises(ValueError, match=f"c_{name} is {name}; {transform} supports"):
            parse_partition_field(text, COLUMNS)
    else:
        assert parse_partition_field(text, COLUMNS).iceberg_transform == written


@pytest.mark.parametrize(
    ("texts", "is_refused"),
    [
        (("a", "b"), True),
        (("a", "truncate(b, 10)"), True),
        (("a", "bucket(b, 4)"), False),
        (("a", "c"), False),
        (("u", "v"), True),
        (("u", "bucket(v, 4)"), False),
    ],
)
def test_two_partitions_of_one_named_type_are_refused(
    texts: tuple[str, str],
    *,
    is_refused: bool,
) -> None:
    types = {
        "a": "decimal(9,2)",
        "b": "decimal(9,2)",
        "c": "decimal(9,3)",
        "u": "uuid",
        "v": "uuid",
    }
    columns = tuple(parse_column(name, text) for name, text in types.items())
    first = parse_partition_field(texts[0], columns)

    if is_refused:
        with pytest.raises(ValueError, match=r"'[au]' have the same type (decimal|uuid)"):
            parse_partition_field(texts[1], columns, [first])
    else:
        assert parse_partition_field(texts[1], columns, [first])


@pytest.mark.parametrize(
    ("struct", "is_refused"),
    [
        ("struct<in: struct<a: int>!>", True),
        ("struct<in: struct<a: int>>!", True),
        ("struct<in: struct<a: int>!>!", False),
    ],
)
def test_identity_of_a_field_in_a_struct_that_may_be_null_is_refused(
    struct: str, *, is_refused: bool
) -> None:
    columns = (parse_column("s", struct),)

    assert parse_partition_field("bucket(s.in.a, 2)", columns)
    if is_refused:
        with pytest.raises(ValueError, match="would read a null struct as one of nulls"):
            parse_partition_field("s.in.a", columns)
    else:
        assert parse_partition_field("s.in.a", columns)


def test_a_partition_field_becomes_one_of_the_tables_spec() -> None:
    schema = build_table_schema(ROWS)
    fields = tuple(parse_partition_field(text, ROWS) for text in ("day(at)", "bucket(id, 16)"))

    spec = build_partition_spec(schema, fields)

    assert [str(f) for f in spec.fields] == [
        "1000: at_day: day(2)",
        "1001: id_bucket: bucket[16](1)",
    ]


@pytest.mark.parametrize(
    ("text", "transform", "name"),
    [
        ("id", "identity", "id"),
        (" day( at ) ", "day", "at_day"),
        ("HOUR(at)", "hour", "at_hour"),
        ("bucket(id, 16)", "bucket[16]", "id_bucket"),
        ("truncate(shop.city, 3)", "truncate[3]", "shop_city_trunc"),
        ("month(shop.at.day)", "month", "shop_at_day_month"),
    ],
)
def test_a_transform_is_written_as_iceberg_and_named_as_spark(
    text: str, transform: str, name: str
) -> None:
    field = parse_partition_field(text, ROWS)

    assert (field.iceberg_transform, field.name) == (transform, name)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("day(", "is not a partition transform; examples: day(ts)"),
        ("void(id)", "unknown transform 'void'; known: identity"),
        ("bucket(id)", "bucket and truncate have a width"),
        ("day(at, 3)", "other transforms have none"),
        ("bucket(id, 0)", "the width must be above 0"),
        ("truncate(id, 0)", "the width must be above 0"),
        ("bucket(id, 2147483648)", "at most 2147483647"),
        ("day(at)", "would be named at_day, which is the name of a column"),
        ("day(id)", "id is long; day supports date, timestamp, timestamptz"),
        ("day(when)", "column 'when' is not among id, at, shop, tags"),
        ("identity(tags)", "'tags' is not a primitive column"),
        ("identity(id.x)", "'id.x' is not a primitive column"),
        ("identity(shop)", "'shop' is not a primitive column"),
    ],
)
def test_a_transform_that_cannot_be_says_why(text: str, reason: str) -> None:
    columns = (*ROWS, parse_column("at_day", "date")) if "at_day" in reason else ROWS

    with pytest.raises(ValueError, match=re.escape(reason)):
        parse_partition_field(text, columns)


MIXED = (
    *(parse_column("St", "struct<a: long, B: string>!"), parse_column("st_a", "long")),
    *(parse_column("at", "timestamp"), parse_column("AT_DAY", "date"), parse_column("x", "string")),
    *(parse_column("X_trunc", "string"), parse_column("ST_b", "string")),
)


@pytest.mark.parametrize(
    ("texts", "reason"),
    [
        (["bucket(St.a, 4)", "bucket(st_a, 8)"], "would both be named st_a_bucket"),
        (["truncate(St.a, 4)", "truncate(st_a, 8)"], "would both be named st_a_trunc"),
        (["day(at)"], "would be named at_day, which is the name of a column in another case"),
        (["truncate(x, 3)"], "would be named x_trunc, which is the name of a column"),
        (["St.B"], "would be named St_B, which is the name of a column in another case, ST_b"),
        (["St.a"], "would be named St_a, which is the name of a column in another case, st_a"),
    ],
)
def test_names_that_differ_only_in_case_are_one_name(texts: list[str], reason: str) -> None:
    with pytest.raises(FieldError, match=re.escape(reason)) as caught:
        validate_layout(texts, (), MIXED)

    assert caught.value.path == ("table", "partition_by", len(texts) - 1)


def test_a_column_is_its_own_partition_in_its_case() -> None:
    with pytest.raises(FieldError) as caught:
        validate_layout(["AT_DAY", "bucket(st_a, 4)", "hour(at)", "AT_DAY"], (), MIXED)

    assert caught.value.path == ("table", "partition_by", 3)  # none of the others
