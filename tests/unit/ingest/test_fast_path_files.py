"""Files of Python workers join the attempt's one staged snapshot, once."""

import base64
import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.exceptions import CommitFailedException, ServerError
from pyiceberg.typedef import Record
from pyiceberg.types import StringType
from support.lake import Lake, make_stream, rows_of
from support.scripted_catalog import landed_then

from frazil.errors import ConfigurationError, StageLostError, StageStaleError
from frazil.iceberg import commits
from frazil.iceberg.branches import create_branch, name_branch
from frazil.ingest.bootstrap import new_table
from frazil.ingest.fast_path import (
    choose_parquet_options,
    data_folder,
    fits_fast_path,
    is_worthwhile,
    narrow_schema,
    plan_fast_path,
)
from frazil.ingest.fast_path_files import describe_file, stage_fast_path_files
from frazil.ingest.staging import require_exact_offsets
from frazil.schemas.wire_format import SchemaDecode, WireFormat
from frazil.streams.models import Stream

OBJECT_STORAGE = {"write.object-storage.enabled": "true"}
DICTIONARY = "write.parquet.dict-size-bytes"


def write_file(lake: Lake, path: Path, *ends: int) -> str:
    """Write the rows of the next batch as a worker would."""
    rows = rows_of(lake.table, lake.plan(*ends))
    pq.write_table(rows.cast(narrow_schema(rows.schema)), path)
    return f"file://{path}"


def begin_attempt(lake: Lake) -> tuple[str, int]:
    branch = name_branch("orders", 0)
    return branch, create_branch(lake.store, "demo.orders", branch)


def test_files_become_one_staged_snapshot_on_the_head_of_the_attempt(lake: Lake) -> None:
    path = write_file(lake, lake.folder / "a.parquet", 3, 2)
    branch, head = begin_attempt(lake)
    lake.append_foreign(1)

    stage_fast_path_files(lake.store, lake.plan(3, 2), (branch, head), (path,))

    table = lake.table
    staged = table.snapshot_by_id(table.metadata.refs[branch].snapshot_id)
    assert staged is not None
    assert staged.parent_snapshot_id == head
    assert staged.summary is not None
    assert staged.summary["added-records"] == "5"
    (file,) = commits.read_added_files(table, staged.snapshot_id)
    assert file.lower_bounds[1] == (0).to_bytes(8, "little")
    require_exact_offsets(table, staged.snapshot_id, lake.plan(3, 2))


def test_they_join_what_spark_wrote_on_the_branch(lake: Lake) -> None:
    plan = lake.plan(3, 2)
    staged = lake.stage(plan)
    before = staged.snapshot_id
    path = write_file(lake, lake.folder / "a.parquet", 3, 2)

    stage_fast_path_files(lake.store, lake.plan(3, 2), (staged.attempt, staged.base_head), (path,))

    table = lake.table
    ref = table.metadata.refs[staged.attempt]
    snapshot = table.snapshot_by_id(ref.snapshot_id)
    assert snapshot is not None
    assert snapshot.parent_snapshot_id == staged.base_head
    assert len(commits.read_added_files(table, ref.snapshot_id)) == 2
    assert table.snapshot_by_id(before or 0) is None


@pytest.mark.parametrize("lost", [ServerError("502"), CommitFailedException("late")])
def test_an_answer_that_is_lost_stages_nothing_twice(lake: Lake, lost: Exception) -> None:
    path = write_file(lake, lake.folder / "a.parquet", 3, 2)
    branch, head = begin_attempt(lake)
    lake.catalog.script = [landed_then(lost)]

    stage_fast_path_files(lake.store, lake.plan(3, 2), (branch, head), (path,))

    table = lake.table
    files = commits.read_added_files(table, table.metadata.refs[branch].snapshot_id)
    assert [file.file_path for file in files] == [path]
    assert lake.catalog.commits_asked >= 1


def test_a_staged_file_is_published_like_any_other(lake: Lake) -> None:
    plan = lake.plan(3, 2)
    path = write_file(lake, lake.folder / "a.parquet", 3, 2)
    branch, head = begin_attempt(lake)
    stage_fast_path_files(lake.store, lake.plan(3, 2), (branch, head), (path,))
    staged = lake.stage(plan)
    own = lake.table.metadata.refs[branch].snapshot_id

    ours = staged.model_copy(update={"attempt": branch, "snapshot_id": own, "base_head": head})
    lake.publish(plan, ours)

    assert lake.coordinates() == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1)]


@pytest.mark.parametrize(
    ("stream", "fits"),
    [
        (make_stream(), True),
        (make_stream(value={"columns": {"id": "long!", "d": "decimal(18,2)", "t": "date"}}), True),
        (make_stream(value={"columns": {"s": "struct<a: list<int>>"}}), True),
        (make_stream(value={"convert": "string", "columns": {"value": "string"}}), True),
        (make_stream(value={"convert": "raw", "columns": {"value": "binary!"}}), True),
        (make_stream(value={"columns": {"id": "decimal(19,2)"}}), False),
        (make_stream(value={"columns": {"id": "float"}}), False),
        (make_stream(value={"columns": {"id": "uuid"}}), False),
        (make_stream(value={"columns": {"m": "map<string, int>"}}), False),
        (make_stream(value={"columns": {"s": "struct<a: int!>"}}), False),
        (make_stream(value={"columns": {"s": "list<date>"}}), False),
        (make_stream(table={"name": "demo.orders", "partition_by": ["bucket(id, 4)"]}), True),
        (make_stream(table={"name": "demo.orders", "partition_by": ["id", "name"]}), True),
        (make_stream(table={"name": "demo.orders", "sort_by": ["id"]}), False),
        (make_stream(table={"name": "demo.orders", "properties": OBJECT_STORAGE}), True),
        *[
            (make_stream(table={"name": "demo.orders", "properties": {name: value}}), False)
            for name, value in {
                "write.parquet.bloom-filter-enabled.column.id": "true",
                "write.parquet.page-row-limit": "100",
            }.items()
        ],
    ],
)
def test_only_what_workers_write_exactly_as_spark_would(
    tmp_path: Path, stream: Stream, *, fits: bool
) -> None:
    lake = Lake(tmp_path, stream)
    table = lake.store.create("demo.orders", new_table(stream))

    assert fits_fast_path(table, stream) is fits
    assert not fits or data_folder(table) == f"{table.location()}/data"
    lake.catalog.close()


def test_a_folder_that_libraries_read_in_several_ways_is_left_to_spark(lake: Lake) -> None:
    with lake.table.transaction() as transaction:
        transaction.set_properties({"write.data.path": "file:///ware%20house/data"})

    assert not fits_fast_path(lake.table, lake.stream)


@pytest.mark.parametrize(
    ("layout", "columns", "fits"),
    [
        ("{}", {"id": "long!", "f": "float", "b": "binary", "l": "list<date>"}, True),
        ("", {"id": "long!"}, False),
        ("{}", {"id": "long!", "u": "uuid"}, False),
        ("{}", {"id": "long!", "m": "map<string, int>"}, False),
        ("{}", {"id": "long!", "d": "decimal(19,2)"}, False),
    ],
)
def test_a_registrys_values_need_a_layout_and_columns_that_are_exact(
    tmp_path: Path, layout: str, columns: dict[str, str], *, fits: bool
) -> None:
    stream = make_stream(value={"convert": "by_schema_id", "columns": columns})
    lake = Lake(tmp_path, stream)
    table = lake.store.create("demo.orders", new_table(stream))
    schemas = (SchemaDecode(schema_id=1), SchemaDecode(schema_id=2, layout=layout))

    wire = WireFormat(format="avro", has_schema_id=True, schemas=schemas)

    assert fits_fast_path(table, stream, wire) is fits
    lake.catalog.close()


@pytest.mark.parametrize(
    ("table", "of_table", "of_workers"),
    [
        pytest.param({}, None, 32768, id="workers know it, compaction takes the default"),
        pytest.param({"partition_by": ["id"]}, None, 32768, id="so where workers part the rows"),
        pytest.param(
            {"partition_by": ["price"]}, "32768", 32768, id="Spark learns it of the table"
        ),
        pytest.param({"sort_by": ["id"]}, "32768", 32768, id="so where rows have an order"),
        pytest.param({"properties": {DICTIONARY: "99"}}, "99", 99, id="the file decides"),
    ],
)
def test_batches_write_small_dictionaries(
    table: dict[str, object], of_table: str | None, of_workers: int
) -> None:
    columns = {"id": "long!", "price": "decimal(9,2)"}
    stream = make_stream(value={"columns": columns}, table={"name": "demo.orders", **table})
    new = new_table(stream)

    properties = dict(new.properties or {})

    assert properties.get(DICTIONARY) == of_table
    assert choose_parquet_options(properties)["dictionary_pagesize_limit"] == of_workers


def test_columns_that_somebody_else_added_are_left_to_spark(lake: Lake) -> None:
    table = lake.table
    table.update_schema().add_column("note", StringType()).commit()

    assert not fits_fast_path(lake.table, lake.stream)


def test_small_batches_wake_no_worker(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = lake.plan(3, 2)
    assert not is_worthwhile(plan)

    monkeypatch.setenv("FRAZIL_DIRECT_MIN_RECORDS", "5")

    assert is_worthwhile(plan)
    assert not is_worthwhile(lake.plan(2, 2))


def test_the_order_names_the_columns_that_metrics_read(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FRAZIL_DIRECT_MIN_RECORDS", "0")
    metrics = {"m": "count(CASE WHEN _frazil_good AND _frazil_record.`name` IS NULL THEN 1 END)"}

    direct = plan_fast_path(lake.table, lake.stream, lake.plan(1, 1), metrics)

    assert direct is not None
    assert direct.counted_columns == ("name",)
    assert direct.folder.startswith("file:///")
    assert direct.parquet["dictionary_pagesize_limit"] == 32768


def test_a_column_that_the_file_requires_is_required_also_where_the_table_has_nulls(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FRAZIL_DIRECT_MIN_RECORDS", "0")
    stream = make_stream(value={"columns": {"id": "long", "name": "string!"}})

    direct = plan_fast_path(lake.table, stream, lake.plan(1, 1), {})

    assert direct is not None
    schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(direct.schema_ipc)))
    assert lake.table.schema().find_field("name").optional
    assert {f.name for f in schema if not f.nullable} >= {"name"}


def test_bounds_that_one_row_group_lacks_are_bounds_of_nothing(lake: Lake) -> None:
    path = lake.folder / "a.parquet"
    rows = rows_of(lake.table, lake.plan(3, 2))
    small = rows.cast(narrow_schema(rows.schema))
    texts = [["a", "b", "b", "b", "b"], ["c", "z" * 5000, "c", "c", "c"]]
    with pq.ParquetWriter(path, small.schema) as writer:
        for group in texts:
            place = small.schema.get_field_index("name")
            writer.write_table(small.set_column(place, small.schema.field("name"), [group]))

    file = describe_file(lake.table, f"file://{path}")

    assert 2 not in file.lower_bounds
    assert 2 not in file.upper_bounds
    assert file.upper_bounds[1] == (2).to_bytes(8, "little")


def test_a_file_that_is_none_is_a_lost_stage(lake: Lake) -> None:
    (lake.folder / "a.parquet").write_bytes(b"PAR1 and then the machine died")

    with pytest.raises(StageLostError, match="is not a Parquet file"):
        describe_file(lake.table, f"file://{lake.folder}/a.parquet")


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ('["x"]', None),
        (None, "its footer names no partition"),
        ("[]", "its footer names no partition"),
        ("[", "Expecting value"),
        ('["y"]', "its footer and its rows differ in partition field name"),
    ],
    ids=["its own", "none", "too few", "no JSON", "another"],
)
def test_a_file_is_staged_in_its_own_partition_or_not_at_all(
    tmp_path: Path, said: str | None, words: str | None
) -> None:
    table = {"name": "demo.orders", "partition_by": ["name"]}
    lake = Lake(tmp_path, make_stream(table=table))
    lake.begin()
    rows = rows_of(lake.table, lake.plan(3, 0))
    with pq.ParquetWriter(tmp_path / "a.parquet", rows.schema) as writer:
        writer.write_table(rows)
        if said:
            writer.add_key_value_metadata({"frazil.partition": said})

    if words is None:
        assert describe_file(lake.table, f"file://{tmp_path}/a.parquet").partition == Record("x")
    else:
        with pytest.raises(StageLostError, match=re.escape(words)):
            describe_file(lake.table, f"file://{tmp_path}/a.parquet")
    lake.close()


def test_files_for_another_layout_are_refused(lake: Lake) -> None:
    plan = lake.plan(3, 2)
    path = write_file(lake, lake.folder / "a.parquet", 3, 2)
    branch, head = begin_attempt(lake)
    lake.table.update_schema().add_column("note", StringType()).commit()

    with pytest.raises(StageStaleError, match="has schema 1 and spec 0 now"):
        stage_fast_path_files(lake.store, plan, (branch, head), (path,))

    assert lake.table.metadata.refs[branch].snapshot_id == head


@pytest.mark.parametrize("folder", ["ware house", "wäre"])
def test_a_path_that_libraries_read_differently_is_left_to_spark(
    tmp_path: Path, folder: str
) -> None:
    stream = make_stream()
    (tmp_path / folder).mkdir()
    lake = Lake(tmp_path / folder, stream)
    table = lake.store.create("demo.orders", new_table(stream))

    assert not fits_fast_path(table, stream)
    lake.catalog.close()


def test_a_limit_that_is_no_number_is_refused(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FRAZIL_DIRECT_MIN_RECORDS", "many")

    with pytest.raises(ConfigurationError, match="'many', not a number of records"):
        is_worthwhile(lake.plan(1, 1))
