"""Equality deletes of other engines, which PyIceberg cannot apply, are named with their remedy.

The summaries of other engines need not have totals.
"""

import pytest
from support.foreign_deletes import delete_by_position, delete_by_value
from support.foreign_tables import ForeignTable, records
from support.lake import Lake
from support.log_lake import LogInMemory, Pipeline

from frazil.errors import IncompatibleTableError
from frazil.iceberg.data_files import read_row_coordinates
from frazil.ingest.dead_letters import ensure_dead_letters_table
from frazil.migration.foreign_rows import find_columns, read_offsets


@pytest.fixture
def pipeline(lake: Lake) -> Pipeline:
    """Publish a batch of five records."""
    ensure_dead_letters_table(lake.store, lake.stream.table.name)
    pipeline = Pipeline(lake, LogInMemory())
    pipeline.log.produce(0, *range(5))
    pipeline.ingest()
    return pipeline


def test_an_audit_names_the_command_that_applies_equality_deletes(pipeline: Pipeline) -> None:
    lake = pipeline.lake
    before = lake.table.current_snapshot()
    delete_by_value(lake, "id", [2])

    with pytest.raises(
        IncompatibleTableError, match=r"demo\.orders has equality deletes"
    ) as caught:
        pipeline.audit()

    command = "`frazil maintain STREAM --only compact --rewrite-all --no-dry-run`"
    assert caught.value.next_step.startswith(command)
    assert before is not None
    assert len(read_row_coordinates(lake.table, before.snapshot_id)["orders", 0]) == 5


def test_rows_deleted_by_position_are_left_out_where_the_summary_has_no_totals(
    pipeline: Pipeline,
) -> None:
    lake = pipeline.lake
    (task,) = lake.table.scan().plan_files()
    delete_by_position(lake, task.file.file_path, [1])

    assert read_row_coordinates(lake.table)["orders", 0].tolist() == [0, 2, 3, 4]


def test_an_adoption_names_the_statement_that_applies_equality_deletes(lake: Lake) -> None:
    foreign = ForeignTable(lake.catalog, lake.stream.table.name.replace("orders", "legacy"))
    foreign.create().write(*records(5))
    columns = find_columns(foreign.table.schema(), None, foreign.name)
    delete_by_value(foreign, "id", [2])

    with pytest.raises(IncompatibleTableError, match="has equality deletes") as caught:
        read_offsets(foreign.table, columns, "orders")

    assert "CALL system.rewrite_data_files(table => 'demo.legacy'" in caught.value.next_step
