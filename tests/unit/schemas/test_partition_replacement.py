"""Partitions follow a column that a type change replaces, unless Spark could not read them."""

from pathlib import Path

import pytest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import TruncateTransform
from pyiceberg.types import DecimalType, LongType, NestedField
from support.lake import Lake, make_stream

from frazil.schemas.partition_evolution import replace_in_spec

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
