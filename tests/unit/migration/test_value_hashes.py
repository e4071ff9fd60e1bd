"""Values as numbers: the same exactly where the values are, whatever type keeps them."""

from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import cast

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.schema import Schema
from pyiceberg.types import IcebergType

from frazil.migration.value_hashes import Form, add_up, find_form, hash_values, pair_columns

NOON = datetime(2026, 1, 31, 12, 0, 0, 1, tzinfo=UTC)
NFC, NFD = "\u00e9", "e\u0301"
NAN, OTHER_NAN = float("nan"), -float("nan")
STRUCT = pa.struct([("a", pa.int32()), ("b", pa.string())])
WIDER = pa.struct([("b", pa.string()), ("a", pa.int64())])
ENTRIES = pa.map_(pa.string(), pa.int64())


def schema_of(kind: pa.DataType) -> Schema:
    with SqlCatalog("memory", uri="sqlite://") as catalog:
        return catalog._convert_schema_if_needed(pa.schema([("x", kind)]))  # noqa: SLF001


def type_of(kind: pa.DataType) -> IcebergType:
    return schema_of(kind).fields[0].field_type


def form_of(left: pa.DataType, right: pa.DataType) -> Form:
    return cast("Form", find_form(type_of(left), type_of(right)))


def is_same(left: object, ours: pa.DataType, right: object, theirs: pa.DataType) -> bool:
    form = form_of(ours, theirs)
    pairs = zip(
        hash_values(pa.array([left], ours), form),
        hash_values(pa.array([right], theirs), form),
        strict=True,
    )
    return all(a == b for a, b in pairs)


LONG, DOUBLE, TEXT, BYTES = pa.int64(), pa.float64(), pa.string(), pa.binary()
D2, D4 = pa.decimal128(9, 2), pa.decimal128(38, 4)
LOCAL, ZONED = pa.timestamp("us"), pa.timestamp("us", tz="UTC")


@pytest.mark.parametrize(
    ("left", "ours", "right", "theirs", "same"),
    [
        pytest.param(7, pa.int32(), 7, LONG, True, id="int and long"),
        pytest.param(-1, pa.int32(), 2**32 - 1, LONG, False, id="bits are not the value"),
        pytest.param(Decimal("1.50"), D2, Decimal("1.5000"), D4, True, id="decimal scale"),
        pytest.param(Decimal("1.50"), D2, Decimal("1.5001"), D4, False, id="decimal digits"),
        pytest.param(5, LONG, Decimal("5.00"), D2, True, id="whole number and decimal"),
        pytest.param(0.1, DOUBLE, Decimal("0.10"), D2, True, id="decimal as nearest double"),
        pytest.param(0.1, pa.float32(), 0.1, DOUBLE, False, id="a float has lost digits"),
        pytest.param(0.5, pa.float32(), 0.5, DOUBLE, True, id="float and double"),
        pytest.param(-0.0, DOUBLE, 0.0, DOUBLE, True, id="zero has no sign"),
        pytest.param(NAN, DOUBLE, OTHER_NAN, DOUBLE, True, id="NaN is NaN"),
        pytest.param(NAN, DOUBLE, None, DOUBLE, False, id="NaN is not null"),
        pytest.param(NFC, TEXT, NFD, TEXT, False, id="two forms of Unicode"),
        pytest.param(NFC, TEXT, NFC.encode(), BYTES, True, id="text and its bytes"),
        pytest.param("", TEXT, None, TEXT, False, id="empty is not null"),
        pytest.param(0, LONG, None, LONG, False, id="zero is not null"),
        pytest.param(NOON.replace(tzinfo=None), LOCAL, NOON, ZONED, True, id="zone and none"),
        pytest.param(
            date(2026, 1, 31), pa.date32(), date(2026, 2, 1), pa.date32(), False, id="day"
        ),
        pytest.param(time(1, 2), pa.time64("us"), time(1, 3), pa.time64("us"), False, id="time"),
        pytest.param(True, pa.bool_(), False, pa.bool_(), False, id="boolean"),
        pytest.param({"a": 1, "b": "x"}, STRUCT, {"b": "x", "a": 1}, WIDER, True, id="struct"),
        pytest.param(
            {"a": 1, "b": None}, STRUCT, None, WIDER, False, id="null inside, and outside"
        ),
        pytest.param([1, 2], pa.list_(LONG), [2, 1], pa.list_(LONG), False, id="order of a list"),
        pytest.param([], pa.list_(LONG), None, pa.list_(LONG), False, id="empty list, no list"),
        pytest.param([None], pa.list_(LONG), [], pa.list_(LONG), False, id="null in a list"),
        pytest.param(
            [("a", 1), ("b", 2)], ENTRIES, [("b", 2), ("a", 1)], ENTRIES, True, id="order of a map"
        ),
        pytest.param(
            [("a", 1), ("b", 2)],
            ENTRIES,
            [("a", 2), ("b", 1)],
            ENTRIES,
            False,
            id="values of a map",
        ),
    ],
)
def test_types_that_differ_only_in_form_compare_by_value(
    left: object, ours: pa.DataType, right: object, theirs: pa.DataType, *, same: bool
) -> None:
    assert is_same(left, ours, right, theirs) is same
    assert is_same(right, theirs, left, ours) is same


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        pytest.param(TEXT, LONG, id="text and number"),
        pytest.param(LONG, ZONED, id="a number may be any unit of time"),
        pytest.param(pa.date32(), ZONED, id="day and instant"),
        pytest.param(pa.list_(LONG), LONG, id="list and element"),
        pytest.param(pa.struct([("a", TEXT)]), pa.struct([("a", LONG)]), id="inside a struct"),
        pytest.param(pa.struct([("a", TEXT)]), pa.struct([("b", TEXT)]), id="no common field"),
    ],
)
def test_other_types_are_a_difference(ours: pa.DataType, theirs: pa.DataType) -> None:
    (pair,) = pair_columns(schema_of(ours).fields, schema_of(theirs).fields)

    assert (pair.form, pair.is_difference) == (None, True)


def test_a_field_that_only_one_struct_has_is_named() -> None:
    wider = pa.struct([("a", LONG), ("b", TEXT)])

    (pair,) = pair_columns(schema_of(pa.struct([("a", LONG)])).fields, schema_of(wider).fields)

    assert (pair.note, pair.is_difference) == ("x.b only on the right", True)


NESTED = st.lists(
    st.one_of(
        st.none(),
        st.lists(
            st.one_of(
                st.none(), st.fixed_dictionaries({"a": st.none() | st.sampled_from(["", "a", "b"])})
            ),
            max_size=3,
        ),
    ),
    min_size=1,
    max_size=8,
)


@given(NESTED, st.integers(0, 7))
def test_a_value_has_one_number_wherever_it_stands(values: list[object], at: int) -> None:
    kind = pa.list_(pa.struct([("a", TEXT)]))
    at %= len(values)
    form = form_of(kind, kind)
    every = hash_values(pa.array(values, kind), form)

    alone = hash_values(pa.array([values[at]], kind), form)
    sliced = hash_values(pa.array(values, kind).slice(at), form)

    assert every[at] == alone[0] == sliced[0]
    assert add_up(every) == add_up(every[::-1])
    assert [every[i] == every[at] for i in range(len(values))] == [v == values[at] for v in values]
