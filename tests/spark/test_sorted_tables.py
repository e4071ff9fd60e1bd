"""A table with a sort order takes each record once: Spark samples nothing before it writes."""

from typing import Any, cast

import pytest
from conftest import Lab, good_values

pytestmark = [pytest.mark.spark, pytest.mark.stack]


@pytest.mark.parametrize("partition_by", [[], ["bucket(id, 2)"]], ids=["whole", "partitioned"])
def test_a_sorted_table_takes_every_record_once(lab: Lab, partition_by: list[str]) -> None:
    lab.write_stream(table={"name": lab.table, "partition_by": partition_by, "sort_by": ["name"]})
    lab.create_topic()
    lab.produce(good_values(60))

    first, idle = lab.drain()

    published = cast("dict[str, Any]", first.json)
    assert (published["outcome"], published["rows_written"]) == ("PUBLISHED", 60)
    assert "next_offsets" in idle.out
    assert lab.frazil("audit", lab.stream).code == 0
