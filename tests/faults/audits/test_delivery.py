"""The auditor finds each record that is lost, doubled or not delivered (E1)."""

from __future__ import annotations

import numpy as np
from faults.audit_values import PartitionLog
from faults.audited_table import Lake, coordinates, located


def test_a_dropped_data_file_is_found(lake: Lake) -> None:
    lake.commit({"frazil.kind": "carry", **lake.state()}, removed=lake.files()[-1:])

    report = lake.audit()

    assert {"E1", "E3"} <= report.found()
    assert located(report, "E1") == {("flights", 0, offset) for offset in range(10, 20)}


def test_rows_appended_twice_are_found(lake: Lake) -> None:
    lake.commit({}, lake.write(coordinates(11, 12)))

    report = lake.audit()

    assert report.found() == {"E1", "E6"}
    assert located(report, "E1") == {("flights", 0, 11), ("flights", 0, 12)}


def test_a_lost_letter_is_found(lake: Lake) -> None:
    lake.letters.delete("reason = 'json'")

    report = lake.audit()

    assert report.found() == {"E1", "E3"}
    assert {("flights", 0, 3), ("flights", 0, 4)} <= located(report, "E1")


def test_a_doubled_letter_is_found(lake: Lake) -> None:
    lake.quarantine("try_b1", 3)

    report = lake.audit()

    assert report.found() == {"E1"}
    assert located(report, "E1") == {("flights", 0, 3)}


def test_a_record_in_the_table_and_in_its_letters_is_found(lake: Lake) -> None:
    lake.quarantine("try_b2", 15)

    assert located(lake.audit(), "E1") == {("flights", 0, 15)}


def test_a_letter_outside_its_attempts_ranges_is_found(lake: Lake) -> None:
    lake.quarantine("try_b2", 30)

    assert located(lake.audit(), "E1") == {("flights", 0, 30)}


def test_a_row_above_the_recovery_point_is_found(lake: Lake) -> None:
    lake.commit({}, lake.write(coordinates(20)))

    report = lake.audit()

    assert located(report, "E1") == {("flights", 0, 20)}
    assert any("above every published range" in finding.text for finding in report.findings)


def test_a_row_in_an_accepted_gap_is_found(lake: Lake) -> None:
    lake.log[0] = PartitionLog(25, 40, np.arange(25, 40))
    lake.mark("gap", p0=25)
    lake.ingest({0: (25, 30)})

    lake.commit({}, lake.write(coordinates(22)))

    assert located(lake.audit(), "E1") == {("flights", 0, 22)}


def test_a_letter_without_an_attempt_is_found(lake: Lake) -> None:
    lake.quarantine(None, 30)

    assert lake.audit().found() == {"E1"}


def test_an_aborted_record_in_the_table_is_found(lake: Lake) -> None:
    lake.log[0] = PartitionLog(0, 40, np.delete(np.arange(40), 15))

    report = lake.audit()

    assert report.found() == {"E1", "E3"}
    assert located(report, "E1") == {("flights", 0, 15)}


def test_records_that_a_compacted_topic_forgot_may_stay_in_the_table(lake: Lake) -> None:
    lake.log[0] = PartitionLog(0, 40, np.delete(np.arange(40), 15), is_compacted=True)

    assert lake.audit().findings == ()


def test_rows_lost_below_kafkas_earliest_are_found_by_count(lake: Lake) -> None:
    lake.log[0] = PartitionLog(20, 40, np.arange(20, 40))
    files = lake.files()

    lake.commit({}, lake.write(lake.rows_of(files[-1])[1:]), removed=files[-1:])

    assert lake.audit().found() == {"E1", "E6"}


def test_rows_of_an_unknown_topic_or_without_coordinate_are_found(lake: Lake) -> None:
    nameless: list[dict[str, object]] = [{"topic": None, "partition": None, "offset": None}]

    lake.commit({}, lake.write([*coordinates(5, topic="trains"), *nameless]))

    assert [finding.invariant for finding in lake.audit().findings].count("E1") == 2
