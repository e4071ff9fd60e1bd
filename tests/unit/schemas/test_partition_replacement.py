"""Partitions follow a column that a type change replaces, unless Spark could not read them."""

from pathlib import Path

import pytest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import TruncateTransform
from pyiceberg.types import DecimalType, LongType, NestedField
from support.lake import Lake, make_stream

from frazil.schemas.partition_evolution import list_partitions, replace_in_spec
from frazil.streams.partitioning import PartitionField as WantedField

PRICE = DecimalType(9, 2)
BEFORE = Schema(NestedField(1, "a", LongType()), NestedField(2, "b", PRICE))


@pytest.mark.parametrize(
    ("new", "kept"), [(PRICE, ["b"]), (DecimalType(9, 3), ["a", "b"])], ids=["same", "another"]
)
@pytest.mark.parametrize("order", ["ab", "ba"])
def test_two_decimals_of_one_type_are_no_partitions_together(
    tmp_path: Path, new: DecimalType, kept: list[str], order: str
) -> None:
    numbers = {"a": 1, "b": 2}
    fields = [
        PartitionField(numbers[name], 1000 + at, TruncateTransform(10), f"{name}_trunc")
        for at, name in enumerate(order)
    ]
    lake = Lake(tmp_path, make_stream())
    lake.catalog.create_namespace_if_not_exists("parts")
    table = lake.catalog.create_table("parts.t", BEFORE, partition_spec=PartitionSpec(*fields))
    after = Schema(
        NestedField(1, "a_v0", LongType()), NestedField(3, "a", new), NestedField(2, "b", PRICE)
    )

    spec = replace_in_spec(table, after, {"a", "b"})

    names = {1: "a_v0", 2: "b", 3: "a"}
    assert sorted(names[field.source_id] for field in spec.fields) == kept


def test_a_name_that_an_earlier_spec_has_in_another_case_gets_a_number(tmp_path: Path) -> None:
    lake = Lake(tmp_path, make_stream())
    lake.catalog.create_namespace_if_not_exists("parts")
    old = PartitionSpec(PartitionField(1, 1000, TruncateTransform(10), "A_trunc"))
    table = lake.catalog.create_table(
        "parts.t", Schema(NestedField(1, "A", LongType())), partition_spec=old
    )
    after = Schema(NestedField(1, "z", LongType()), NestedField(2, "a", LongType()))

    found = list_partitions(table, after, [WantedField("truncate", "a", 10)])

    assert [field.name for field in found] == ["A_trunc", "a_trunc_v1"]
