"""Files of an older partition spec whose column another engine dropped can still be rewritten."""

from collections.abc import Iterator
from datetime import date
from decimal import Decimal

import pytest
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table
from support.lake import Lake, Molds, append, make_stream

from frazil.errors import IncompatibleTableError
from frazil.iceberg.manifests import require_known_sources, with_dropped_sources
from frazil.maintenance.erasure import erase, plan_erasure
from frazil.maintenance.messages import ErasureRequest
from frazil.workspace import Workspace

KINDS = {"string": "x", "int": 7, "date": date(2026, 3, 1), "decimal(9,2)": Decimal("1.50")}


@pytest.fixture(params=KINDS)
def lake(molds: Molds, request: pytest.FixtureRequest) -> Iterator[Lake]:
    """Return a table with two files in one partition of a column that was dropped since."""
    kind: str = request.param
    columns = {"id": "long!", "kind": kind}
    begun = make_stream(
        table={"name": "demo.orders", "partition_by": ["kind"]}, value={"columns": columns}
    )
    with molds.begin(begun) as lake:
        for start in (0, 3):
            rows = [{"id": start + n, "kind": KINDS[kind]} for n in range(3)]
            append(lake.catalog, lake.table, rows)
        drop_column(lake.table)
        yield Lake(lake.folder, make_stream(value={"columns": {"id": "long!"}}))


def drop_column(table: Table) -> None:
    with table.update_spec() as spec:
        spec.remove_field("kind")
    with table.update_schema(allow_incompatible_changes=True) as schema:
        schema.delete_column("kind")


def run(lake: Lake, key: str) -> int:
    """Erase a key and return how many rows had it."""
    work = Workspace(lake.stream, lake.folder, f"erase-{key}")
    work.__dict__["store"] = lake.store
    wanted = ErasureRequest(stream="orders", keys=(key,), dry_run=False, by="a", reason="b")
    return erase(work, plan_erasure(work, wanted), wanted).rows


def list_files(table: Table) -> list[DataFile]:
    return [task.file for task in table.scan().plan_files()]


def test_an_erasure_rewrites_files_of_the_older_spec(lake: Lake) -> None:
    before = {str(file.partition) for file in list_files(lake.table)}

    assert run(lake, "id=1") == 1

    files = list_files(lake.table)
    assert {file.spec_id for file in files} == {0}
    assert {str(file.partition) for file in files} == before
    assert sorted(lake.table.scan().to_arrow()["id"].to_pylist()) == [0, 2, 3, 4, 5]


def test_the_table_keeps_its_schema(lake: Lake) -> None:
    before = lake.table.metadata.schemas

    run(lake, "id=1")

    assert lake.table.metadata.schemas == before


def test_a_column_that_no_schema_has_is_named_with_the_way_out(lake: Lake) -> None:
    table = lake.table
    only_current = {"schemas": [table.metadata.schema()]}
    table.metadata = table.metadata.model_copy(update=only_current)

    with pytest.raises(IncompatibleTableError, match="partitioned by kind") as caught:
        require_known_sources(table, {0})

    assert "--only compact --rewrite-all --no-dry-run" in caught.value.next_step
    require_known_sources(table, {1})


def test_metadata_without_dropped_columns_is_not_copied(molds: Molds) -> None:
    with molds.begin(make_stream()) as lake:
        metadata = lake.table.metadata

        assert with_dropped_sources(metadata) is metadata
