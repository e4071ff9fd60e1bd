"""Manifest lists that Java and Python read alike; a test fails if PyIceberg changes."""

from pathlib import Path
from uuid import UUID

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.expressions import EqualTo
from pyiceberg.manifest import DataFile, ManifestFile, read_manifest_list
from pyiceberg.table import Table
from pyiceberg.typedef import Record
from support.lake import Lake, make_stream

from frazil.iceberg import commits
from frazil.iceberg.manifests import can_skip_files, find_lowest
from frazil.iceberg.parquet_files import build_data_file, read_statistics
from frazil.iceberg.row_changes import RowSearch, find_rows
from frazil.iceberg.table_schema import build_partition_spec, build_table_schema
from frazil.ingest.fast_path import narrow_schema
from frazil.ingest.fast_path_files import describe_file
from frazil.maintenance.erasure_keys import ErasedKeys, select_rows_by_key
from frazil.streams.column_types import parse_column
from frazil.streams.partitioning import parse_partition_field

LOW, HIGH = "7f9c3e09-677c-4bbd-a479-3f349cb785e7", "809c3e09-677c-4bbd-a479-3f349cb785e7"
"""In this order as unsigned bytes, and in the other one as Java's signed numbers."""


def open_lake(folder: Path, partition_by: list[str]) -> Lake:
    columns = {"id": "long!", "uid": "uuid", "a": "decimal(9,2)", "b": "decimal(9,2)"}
    table = {"name": "demo.orders", "partition_by": partition_by}
    lake = Lake(folder, make_stream(value={"columns": columns}, table=table))
    lake.begin()
    return lake


def add(lake: Lake, *uids: str | None) -> None:
    """Append a file for each uuid in one commit; PyIceberg's own writer cannot place uuids."""
    table = lake.table
    files = [write_file(table, number, uid) for number, uid in enumerate(uids)]
    added = commits.build_append(table, {}, files)
    main = commits.set_branch(commits.MAIN, added.snapshot.snapshot_id)
    commits.commit(lake.catalog, table, [], [added, main])


def write_file(table: Table, number: int, uid: str | None) -> DataFile:
    """Write a row into a file of the partition of its uuid, as Spark would."""
    row = {
        "id": number,
        "uid": uid and UUID(uid).bytes,
        "_kafka": {"topic": "orders", "partition": 0, "offset": number},
    }
    path = f"{table.location()}/data/{number}.parquet"
    with table.io.new_output(path).create() as sink:
        pq.write_table(pa.Table.from_pylist([row], table.schema().as_arrow()), sink)
    source = table.io.new_input(path)
    with source.open() as stream:
        statistics = read_statistics(table, pq.ParquetFile(stream).metadata)
    partition = Record(uid and UUID(uid))
    return build_data_file((path, len(source)), (table.spec().spec_id, partition), statistics)


def read_manifests(lake: Lake) -> list[ManifestFile]:
    snapshot = lake.table.current_snapshot()
    assert snapshot is not None
    return list(read_manifest_list(lake.table.io.new_input(snapshot.manifest_list)))


@pytest.mark.parametrize(
    ("uids", "bounds"), [([LOW, HIGH], 0), ([LOW, None], 1), ([None, None], 1)]
)
def test_a_manifest_list_has_no_bounds_of_uuids_that_two_orders_read_differently(
    tmp_path: Path, uids: list[str | None], bounds: int
) -> None:
    lake = open_lake(tmp_path, ["uid"])

    add(lake, *uids)

    assert [len(manifest.partitions or []) for manifest in read_manifests(lake)] == [bounds]


def test_the_next_commit_corrects_the_list_of_an_earlier_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = open_lake(tmp_path, ["uid"])
    with monkeypatch.context() as earlier:
        earlier.setattr(commits, "_omit_uuid_bounds", lambda _: None)
        add(lake, LOW, HIGH)
    assert [len(manifest.partitions or []) for manifest in read_manifests(lake)] == [1]

    add(lake)

    assert [manifest.partitions for manifest in read_manifests(lake)] == [None]


def test_a_uuid_is_found_and_its_file_removed_where_uuids_are_partitions(tmp_path: Path) -> None:
    lake = open_lake(tmp_path, ["uid"])
    add(lake, LOW, HIGH)
    table = lake.table
    assert table.scan(EqualTo("uid", LOW)).to_arrow().num_rows == 0  # PyIceberg's own search

    rows = select_rows_by_key(table, ErasedKeys({"uid": (LOW,)}, frozenset()))
    (found,) = find_rows(table, rows)
    added = commits.build_overwrite(table, {}, RowSearch(rows).replace(table, [found]))

    assert found.offsets == {("orders", 0): [0]}
    assert added.snapshot.summary is not None
    assert added.snapshot.summary["deleted-records"] == "1"


def test_a_file_of_javas_bounds_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lake = open_lake(tmp_path, ["uid"])
    with monkeypatch.context() as java:
        java.setattr(UUID, "__lt__", lambda a, b: (a.int >= 1 << 127) > (b.int >= 1 << 127))
        java.setattr(UUID, "__gt__", lambda a, b: (a.int >= 1 << 127) < (b.int >= 1 << 127))
        java.setattr(commits, "_omit_uuid_bounds", lambda _: None)
        add(lake, LOW, HIGH)
    (summary,) = read_manifests(lake)[0].partitions or []
    assert (summary.lower_bound, summary.upper_bound) == (UUID(HIGH).bytes, UUID(LOW).bytes)
    (task, _) = lake.table.scan().plan_files()

    manifests = frozenset(manifest.manifest_path for manifest in read_manifests(lake))
    replaced = commits.Replacement([task.file], manifests)

    added = commits.build_overwrite(lake.table, {}, replaced)

    assert added.snapshot.summary is not None
    assert added.snapshot.summary["deleted-records"] == "1"


def test_files_are_skipped_by_other_columns_and_by_buckets_of_uuids(tmp_path: Path) -> None:
    lake = open_lake(tmp_path, ["bucket(uid, 4)", "a"])

    assert can_skip_files(lake.table, "uid", [])
    assert can_skip_files(lake.table, "a", [])


@pytest.mark.parametrize(
    ("kind", "smallest", "partition"),
    [("int", -(2**31), 2**31 - 2), ("long", -(2**63), 2**63 - 2)],
)
def test_the_smallest_number_is_found_where_its_truncated_value_wraps(
    tmp_path: Path, kind: str, smallest: int, partition: int
) -> None:
    layout = {"name": "demo.orders", "partition_by": ["truncate(n, 10)"]}
    columns = {"id": "long!", "n": kind}
    lake = Lake(tmp_path, make_stream(value={"columns": columns}, table=layout))
    lake.begin()
    row = {"id": 1, "n": smallest, "_kafka": {"topic": "orders", "partition": 0, "offset": 0}}
    rows = pa.Table.from_pylist([row], narrow_schema(lake.table.schema().as_arrow()))
    path, place = tmp_path / "a.parquet", {"frazil.partition": f"[{partition}]"}
    with pq.ParquetWriter(path, rows.schema) as writer:
        writer.write_table(rows)
        writer.add_key_value_metadata(place)
    table, file = lake.table, describe_file(lake.table, f"file://{path}")
    added = commits.build_append(table, {}, [file])
    main = commits.set_branch(commits.MAIN, added.snapshot.snapshot_id)
    commits.commit(lake.catalog, table, [], [added, main])
    assert lake.table.scan(EqualTo("n", smallest)).to_arrow().num_rows == 0  # PyIceberg's own

    wanted = select_rows_by_key(lake.table, ErasedKeys({"n": (str(smallest),)}, frozenset()))

    (found,) = find_rows(lake.table, wanted)
    assert found.offsets == {("orders", 0): [0]}
    assert can_skip_files(lake.table, "n", [smallest + 10, 7])


@pytest.mark.parametrize(
    ("kind", "width", "lowest"),
    [
        ("int", 10, "-2147483640"),
        ("int", 2**31 - 1, "-2147483647"),
        ("int", 8, None),
        ("long", 10, "-9223372036854775800"),
        ("long", 1, None),
        ("decimal(4,2)", 30, "-99.90"),
        ("string", 3, None),
    ],
)
def test_the_lowest_value_that_has_a_partition(kind: str, width: int, lowest: str | None) -> None:
    columns = (parse_column("n", kind),)
    schema = build_table_schema(columns)
    field = parse_partition_field(f"truncate(n, {width})", columns)

    found = find_lowest(build_partition_spec(schema, (field,)), schema)

    assert found.get("n") == lowest
