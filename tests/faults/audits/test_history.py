"""The auditor finds wrong ranges, epochs, counts and states in the history (E2, E3, E4)."""

from __future__ import annotations

import json

import numpy as np
import pytest
from faults import audit_tables, auditor
from faults.audit_values import PartitionLog
from faults.audited_table import Lake, coordinates, forge_state
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.update import (
    SetPropertiesUpdate,
)


@pytest.mark.parametrize(
    ("start", "text"), [(22, "gap, [20, 22)"), (18, "overlap, [18, 20)")], ids=["gap", "overlap"]
)
def test_a_range_that_does_not_start_at_its_carrier_is_found(
    lake: Lake, start: int, text: str
) -> None:
    lake.ingest({0: (start, 30)})

    report = lake.audit()

    assert "E2" in report.found()
    assert any(text in finding.text for finding in report.findings)


def test_a_range_shifted_in_its_summary_is_found(lake: Lake) -> None:
    lake.ingest({0: (20, 30)}, forged={"frazil.ranges": '{"flights": {"0": [21, 31]}}'})

    assert {"E1", "E2"} <= lake.audit().found()


def test_a_backfill_of_what_a_batch_published_is_found(lake: Lake) -> None:
    ranges = json.dumps({"flights": {"0": [0, 2]}})
    summary = {"frazil.kind": "backfill", "frazil.batch-id": "f1", "frazil.ranges": ranges}

    lake.commit({**summary, "frazil.stream": "flights"}, [])

    assert "E2" in lake.audit().found()
    assert any("was published before" in each.text for each in lake.audit().findings)


def test_a_batch_published_twice_is_found(lake: Lake) -> None:
    lake.ingest({0: (20, 25)})
    again = {"epoch": 4, "batch": "b2", "offsets": {"flights": [30, 6]}}
    forged = {"frazil.batch-id": "b2", "frazil.state.flights": json.dumps(again)}

    lake.ingest({0: (25, 30)}, forged=forged)

    assert [finding.text for finding in lake.audit().findings] == ["batch b2 was published 2 times"]


def test_a_batch_id_unlike_the_states_is_found(lake: Lake) -> None:
    lake.ingest({0: (20, 25)}, forged={"frazil.batch-id": "b9"})

    assert lake.audit().found() == {"E2"}


def test_a_gap_under_the_old_batch_is_found(lake: Lake) -> None:
    lake.log[0] = PartitionLog(25, 40, np.arange(25, 40))

    lake.mark("gap", p0=25, forged=forge_state(lake, epoch=3, batch="b2", offsets=[25, 6]))

    assert lake.audit().found() == {"E2"}


def test_a_state_that_stops_inside_its_range_is_found(lake: Lake) -> None:
    state = {"epoch": 3, "batch": "b3", "offsets": {"flights": [28, 6]}}

    lake.ingest({0: (20, 30)}, forged={"frazil.state.flights": json.dumps(state)})

    assert lake.audit().found() == {"E2"}


def test_a_topic_that_was_made_anew_between_two_batches_is_found(lake: Lake) -> None:
    for epoch, end in ((3, 25), (4, 30)):
        state = {"epoch": epoch, "batch": f"b{epoch}", "offsets": {"flights": [end, 6]}}
        ids = {"topic-ids": {"flights": f"id-{epoch}"}}
        forged = {"frazil.state.flights": json.dumps(state | ids)}
        lake.ingest({0: (end - 5, end)}, forged=forged)

    assert lake.audit().found() == {"E2"}


def test_ranges_that_cannot_be_read_are_found(lake: Lake) -> None:
    lake.ingest({0: (20, 25)}, forged={"frazil.ranges": "[1"})

    assert any("its ranges cannot be read" in finding.text for finding in lake.audit().findings)


def test_an_epoch_that_does_not_rise_by_one_is_found(lake: Lake) -> None:
    lake.epoch += 1

    lake.ingest({0: (20, 25)})

    assert lake.audit().found() == {"E2"}


def test_a_second_bootstrap_is_found(lake: Lake) -> None:
    lake.mark("bootstrap", rise=0)

    assert lake.audit().found() == {"E2"}


def test_a_history_without_its_beginning_is_found(lake: Lake) -> None:
    lake.expire(lake.table.metadata.snapshots[0].snapshot_id)

    assert lake.audit().found() == {"E2"}


def test_a_snapshot_that_neither_metadata_nor_ledger_knows_is_found(lake: Lake) -> None:
    first = lake.table.metadata.snapshots[0].snapshot_id
    lake.archive(lake.ledger_rows(left_out=first))

    lake.expire(first)

    texts = [finding.text for finding in lake.audit().findings]
    assert texts == [f"the ancestry is cut: neither metadata nor ledger knows {first}"]


def test_a_stream_that_the_table_does_not_know_is_found(lake: Lake) -> None:
    tables = audit_tables.open_tables(lake.catalog, "demo.flights")

    report = auditor.audit(tables, "trains", "read_committed", lambda _topic, _level: {})

    assert "E2" in report.found()


@pytest.mark.parametrize("name", ["read", "written", "quarantined", "skipped"])
def test_a_wrong_count_is_found(lake: Lake, name: str) -> None:
    lake.ingest({0: (20, 25)}, forged={f"frazil.rows-{name}": "9"})

    assert "E3" in lake.audit().found()


def test_a_count_that_is_no_number_is_found(lake: Lake) -> None:
    lake.ingest({0: (20, 25)}, forged={"frazil.rows-skipped": "none"})

    assert lake.audit().found() == {"E3"}


def test_counts_that_agree_with_each_other_but_not_with_kafka_are_found(lake: Lake) -> None:
    lake.ingest({0: (20, 25)}, forged={"frazil.rows-read": "6", "frazil.rows-skipped": "1"})

    assert lake.audit().found() == {"E3"}


def test_a_compacted_batch_is_counted_by_its_own_manifests(lake: Lake) -> None:
    batch = lake.ingest({0: (20, 25)}, forged={"frazil.rows-written": "6"})
    old = lake.files()
    rows = [row for file in old for row in lake.rows_of(file)]

    lake.commit({}, lake.write(rows), removed=old, operation=Operation.REPLACE)

    texts = [finding.text for finding in lake.audit().findings]
    assert f"ingest snapshot {batch}: wrote 6 rows, its files hold 5" in texts
    assert f"ingest snapshot {batch}: wrote 6 rows, added-records is 5" in texts


def test_a_state_ahead_of_its_data_is_found(lake: Lake) -> None:
    lake.next = [20, 8]

    lake.ingest({0: (20, 25)})

    assert lake.audit().found() == {"E4"}


@pytest.mark.parametrize("state", ["", "{"], ids=["absent", "unreadable"])
def test_a_batch_without_a_state_is_found(lake: Lake, state: str) -> None:
    lake.ingest({0: (20, 25)}, forged={"frazil.state.flights": state})

    report = lake.audit()

    assert "E4" in report.found()
    expected = "its state cannot be read" if state else "moves rows without a state"
    assert any(expected in finding.text for finding in report.findings)


def test_a_state_on_a_replay_is_found(lake: Lake) -> None:
    lake.commit({}, lake.write(coordinates(3)))

    lake.seal(
        "redrive", {"frazil.ranges": [["flights", 0, 3]]}, lake.counts(1, 0, 0) | lake.state()
    )

    assert lake.audit().found() == {"E4"}


@pytest.mark.parametrize("kind", ["carry", "adopt"])
def test_a_state_that_goes_back_without_a_rewind_is_found(lake: Lake, kind: str) -> None:
    lake.mark(kind, rise=int(kind != "carry"), p0=15)

    assert "E4" in lake.audit().found()


def test_a_carry_that_moves_offsets_is_found(lake: Lake) -> None:
    lake.mark("carry", rise=0, p0=22)

    assert lake.audit().found() == {"E4"}


def test_a_rollback_without_a_rewind_is_found(lake: Lake) -> None:
    table = lake.table

    table.manage_snapshots().rollback_to_snapshot(table.metadata.snapshots[1].snapshot_id).commit()

    assert lake.audit().found() == {"E4"}


@pytest.mark.parametrize("text", ['{"epoch": 9, "batch": "b9"}', "{"], ids=["above", "unreadable"])
def test_a_hint_that_main_does_not_explain_is_found(lake: Lake, text: str) -> None:
    hint = SetPropertiesUpdate(updates={"frazil.hint.flights": text})

    lake.catalog.commit_table(lake.table, (), (hint,))

    assert lake.audit().found() == {"E4"}


def test_a_recovery_point_beyond_kafkas_end_is_found(lake: Lake) -> None:
    lake.log[1] = PartitionLog(0, 5, np.arange(5))

    assert "E4" in lake.audit().found()


def test_rows_that_came_with_another_batch_are_found(lake: Lake) -> None:
    lake.ingest({0: (20, 25)}, files=lake.write(coordinates(*range(25, 30))))
    lake.ingest({0: (25, 30)}, files=lake.write(coordinates(*range(20, 25))))

    assert lake.audit().found() == {"E4"}


def test_a_replay_above_the_recovery_point_is_found(lake: Lake) -> None:
    lake.commit({}, lake.write(coordinates(*range(20, 23))))

    lake.seal("replay", {"frazil.ranges": {"flights": {"0": [20, 23]}}}, lake.counts(3, 0, 0))

    assert lake.audit().found() == {"E4"}
