"""A schema change that a state table cannot follow is refused before the change table has it."""

from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml
from support.state_lake import Change, StateLake, make_state_lake

from frazil.errors import SchemaRefusedError
from frazil.iceberg.table_view import TableView
from frazil.schemas.evolution import settle_schema
from frazil.schemas.review import review_table
from frazil.state_tables.messages import MergeCounts
from frazil.state_tables.tables import ensure_state_table
from frazil.streams.models import Stream
from frazil.workspace import Workspace

COLUMNS = {"id": "long!", "op": "string", "at": "long!", "name": "string"}
INSERTED = MergeCounts(changes=1, inserted=1, updated=0, deleted=0, absent=0, superseded=0, stale=0)


@pytest.fixture
def lake(tmp_path: Path) -> StateLake:
    """Return a state table with one row; the policy makes every change by itself."""
    table = {
        "name": "states.orders",
        "mode": "upsert",
        "id_columns": ["id"],
        "cdc_field": "op",
        "partition_by": ["name"],
    }
    lake = make_state_lake(StateLake, tmp_path, "orders", table=table, schema={"other": "auto"})
    lake.produce(0, Change(1, "c", 1, "one"))
    lake.ingest_all()
    rows = lake.table.scan().to_arrow().drop_columns("op").to_pylist()
    lake.put_state(rows, lake.position(INSERTED))
    return lake


def edit(lake: StateLake, columns: Mapping[str, str], **table: object) -> Workspace:
    """Open the stream as if its file had these columns and options of the table."""
    document = yaml.safe_load((lake.folder / "orders.yaml").read_text())
    document["value"]["columns"] = dict(columns)
    document["table"] |= table
    work = Workspace(Stream.model_validate(document), lake.folder, "test")
    vars(work)["store"] = lake.store
    return work


@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        ({"id": "string!"}, "change_type id: long to string: the state table's rows are found"),
        ({"id": "int!"}, "narrow id: long to int: the state table's rows are found"),
        ({"at": "timestamp!"}, "change_type at: long to timestamp: the state table's rows"),
        ({"name": "long"}, "change_type name: string to long: a partition field"),
    ],
    ids=["key", "narrower key", "order", "partition"],
)
def test_a_change_that_stops_the_merges_is_refused_and_nothing_is_written(
    lake: StateLake, columns: Mapping[str, str], reason: str
) -> None:
    before = lake.table.schema()

    with pytest.raises(SchemaRefusedError, match="not possible in place") as refused:
        settle_schema(
            edit(lake, {**COLUMNS, **columns}), TableView(lake.store, lake.stream.table.name)
        )

    assert reason in str(refused.value)
    assert lake.table.schema() == before


def test_a_new_column_of_the_key_is_refused(lake: StateLake) -> None:
    wider = edit(lake, {**COLUMNS, "part": "long!"}, id_columns=["id", "part"])

    review = review_table(lake.table, wider)

    assert review is not None
    assert review.impossible == (
        "add_required part: long!: the state table's rows are found or ordered by it",
    )
    with pytest.raises(SchemaRefusedError) as refused:
        settle_schema(wider, TableView(lake.store, lake.stream.table.name))
    assert "needs a stream with a new name and table" in str(refused.value.next_step)


RENAMED = {"id": "long!", "op": "string", "at": "long!", "label": "string"}


def test_a_change_that_the_state_table_follows_is_made(lake: StateLake) -> None:
    review = review_table(lake.table, edit(lake, {**COLUMNS, "extra": "string"}))
    assert review is not None
    assert review.impossible == ()


def test_a_name_that_comes_back_after_a_rename_is_that_of_its_own_partition(
    lake: StateLake,
) -> None:
    name = lake.stream.table.name
    renamed = edit(lake, RENAMED, partition_by=["label"])
    settle_schema(renamed, TableView(lake.store, name))
    ensure_state_table(renamed, TableView(lake.store, lake.state_name), lake.table.schema())

    taken, in_capitals = (
        review_table(lake.table, edit(lake, {**RENAMED, name: "string"}, partition_by=["label"]))
        for name in ("name", "NAME")
    )
    settle_schema(edit(lake, COLUMNS), TableView(lake.store, name))

    assert "name" in lake.table.schema().column_names
    for review in (taken, in_capitals):
        assert review is not None
        assert "a partition field of the state table has this name" in review.impossible[0]


def test_a_state_table_without_a_merge_follows_another_type_of_its_key(tmp_path: Path) -> None:
    table = {"name": "states.orders", "mode": "upsert", "id_columns": ["id"], "cdc_field": "op"}
    lake = make_state_lake(StateLake, tmp_path, "orders", table=table, schema={"other": "auto"})
    lake.produce(0, Change(1, "c", 1, "one"))
    lake.ingest_all()
    work = edit(lake, COLUMNS)
    ensure_state_table(work, TableView(lake.store, lake.state_name), lake.table.schema())

    review = review_table(lake.table, edit(lake, {**COLUMNS, "id": "string!"}))

    assert review is not None
    assert review.impossible == ()
