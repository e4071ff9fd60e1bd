"""The auditor finds files that are missing, doubled or changed by other writers (E5, E6)."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from faults import audit_tables
from faults.audit_values import Findings, LiveFile
from faults.audited_table import ROWS, Lake, coordinates, located
from pyiceberg.manifest import DataFileContent
from pyiceberg.table.snapshots import Operation


def test_a_file_referenced_twice_is_found(lake: Lake) -> None:
    lake.commit({}, lake.files()[-1:])

    assert {"E1", "E5"} <= lake.audit().found()


def test_an_object_missing_in_the_storage_is_found(lake: Lake) -> None:
    lake.ingest({0: (20, 25)})

    Path(lake.files()[-1].file_path.removeprefix("file://")).unlink()

    assert {"E1", "E5"} <= lake.audit().found()


def test_an_object_missing_in_an_older_snapshot_is_found(lake: Lake) -> None:
    lake.ingest({0: (20, 25)})
    old = lake.files()[-1:]
    lake.commit({}, lake.write(lake.rows_of(old[0])), old, Operation.REPLACE)

    Path(old[0].file_path.removeprefix("file://")).unlink()

    assert lake.audit().found() == {"E5"}


def test_a_missing_manifest_list_is_found(lake: Lake) -> None:
    lake.ingest({0: (20, 25)})
    head = lake.table.current_snapshot()
    assert head is not None

    Path(head.manifest_list.removeprefix("file://")).unlink()

    assert "E5" in lake.audit().found()


def test_a_missing_manifest_is_found(lake: Lake) -> None:
    lake.ingest({0: (20, 25)})
    head = lake.table.current_snapshot()
    assert head is not None
    newest = head.manifests(lake.table.io)[0]

    Path(newest.manifest_path.removeprefix("file://")).unlink()

    assert "E5" in lake.audit().found()


def test_a_record_count_unlike_the_footer_is_found(lake: Lake) -> None:
    file = lake.write(coordinates(*range(20, 25)))[0]
    file[4] = 6  # the record count

    lake.ingest({0: (20, 25)}, files=[file])

    assert {"E3", "E5"} <= lake.audit().found()


def test_position_deletes_take_rows_away(lake: Lake) -> None:
    path = lake.files()[-1].file_path
    deletes = pa.table({"file_path": [path, path], "pos": [0, 3]})
    target = Path(path.removeprefix("file://")).with_name("deletes.parquet")
    pq.write_table(deletes, target)
    file = LiveFile(f"file://{target}", 2, 1, 1, DataFileContent.POSITION_DELETES)

    found = audit_tables.read_deletes(lake.table, [file], Findings())

    assert found[path].tolist() == [0, 3]


def test_equality_deletes_are_found(lake: Lake) -> None:
    file, findings = (
        LiveFile("deletes.parquet", 2, 1, 1, DataFileContent.EQUALITY_DELETES),
        Findings(),
    )

    audit_tables.read_deletes(lake.table, [file], findings)

    assert [finding.invariant for finding in findings] == ["E5"]


def test_a_foreign_append_is_found(lake: Lake) -> None:
    lake.table.append(pa.Table.from_pylist([{"flight": "XX1"}], ROWS))

    report = lake.audit()

    assert report.found() == {"E1", "E6"}
    assert report.facts["foreign_snapshots"] == [lake.head]


def test_a_compaction_that_loses_rows_is_found(lake: Lake) -> None:
    old = lake.files()[-1:]

    lake.commit({}, lake.write(coordinates(*range(10, 19))), old, Operation.REPLACE)

    report = lake.audit()
    assert report.found() == {"E1", "E6"}
    assert located(report, "E1") == {("flights", 0, 19)}


def test_an_empty_foreign_snapshot_is_only_a_fact(lake: Lake) -> None:
    foreign = lake.commit({})

    report = lake.audit()

    assert (report.findings, report.facts["foreign_snapshots"]) == ((), [foreign])
