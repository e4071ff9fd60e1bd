"""Mutation tests of the auditor: each breaks a table made by hand after the protocol."""

from __future__ import annotations

import ast
import base64
import json
import sys
import time
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from confluent_kafka import Producer
from faults import audit_kafka, auditor
from faults.audit_values import PartitionLog
from faults.audited_table import KAFKA, Lake, coordinates, located
from pyiceberg.io.pyarrow import _dataframe_to_data_files
from pyiceberg.table.snapshots import Operation


def test_a_clean_table_has_no_findings_and_its_facts_are_counted(lake: Lake) -> None:
    report = lake.audit()

    assert report.findings == ()
    assert report.facts["rows_of_stream"] == 23
    assert report.facts["dead_letters_counting"] == 2
    assert report.facts["records_delivered"] == 26
    assert report.facts["recovery_point"] == {"flights-0": 20, "flights-1": 6}


def test_a_compaction_that_keeps_all_rows_passes(lake: Lake) -> None:
    old = lake.files()
    rows = [row for file in old for row in lake.rows_of(file)]

    lake.commit({}, lake.write(rows), removed=old, operation=Operation.REPLACE)

    assert lake.audit().findings == ()
    assert lake.audit().facts["foreign_snapshots"] == [lake.head]


def test_a_rewind_and_the_same_records_again_pass(lake: Lake) -> None:
    first = lake.table.metadata.snapshots[1].snapshot_id
    lake.epoch, lake.batch, lake.next = 3, "rewind3", [10, 6]
    lake.commit({"frazil.kind": "rewind", **lake.state()}, parent=first)

    lake.ingest({0: (10, 25)}, bad=(12,))

    assert lake.audit().findings == ()


@pytest.mark.parametrize("kind", ["erase", "expire-rows"])
def test_rows_that_left_on_purpose_are_not_missed(lake: Lake, kind: str) -> None:
    lake.take((5, 12), kind=kind)
    lake.ingest({0: (20, 25)})
    lake.log[0] = PartitionLog(8, 40, np.arange(8, 40))

    assert lake.audit().findings == ()
    assert lake.audit().facts["rows_of_stream"] == 26


def test_letters_that_left_on_purpose_are_not_missed(lake: Lake) -> None:
    lake.erase_letters("try_b1", 3, 4)
    lake.letters.delete("attempt == 'try_b1'")

    assert lake.audit().findings == ()
    assert lake.audit().facts["dead_letters_counting"] == 0


def test_letters_that_are_listed_as_gone_and_are_there_are_found(lake: Lake) -> None:
    lake.erase_letters("try_b1", 3)

    assert located(lake.audit(), "E1") == {("flights", 0, 3)}


@pytest.mark.parametrize(
    ("harm", "found", "words"),
    [
        (lambda it: it.take((5,), {"flights": {"0": [5, 6]}}), "E1", "still there"),
        (lambda it: it.take((5,), {"flights": {"0": [6]}}), "E1", "neither in the table"),
        (lambda it: it.take((5, 6), {"flights": {"0": [5]}}), "E1", "neither in the table"),
        (lambda it: it.take((5,), **{"rows-deleted": "2"}), "E3", "says 2 rows, lists 1, took 1"),
        (lambda it: it.take((5,), {"flights": {"0": [5, 7]}}), "E3", "lists 2"),
        (lambda it: it.take((5,), {"flights": {"0": [5, 39]}}), "E1", "above every published"),
        (lambda it: it.take((5,), by=""), "E6", "without a name"),
    ],
    ids=["too many", "another", "too few", "miscounted", "skipped", "not read", "no name"],
)
def test_a_forged_erasure_is_found(
    lake: Lake, harm: Callable[[Lake], object], found: str, words: str
) -> None:
    harm(lake)

    findings = lake.audit().findings

    assert [f for f in findings if f.invariant == found and words in f.text], findings


def test_what_a_replay_brings_back_is_found_if_erased_and_not_if_too_old(lake: Lake) -> None:
    lake.take((5,))
    lake.take((6,), kind="expire-rows")

    named = {"frazil.kind": "replay", "frazil.batch-id": "replay-1", "frazil.attempt": "try_r"}
    ranges = {"frazil.ranges": json.dumps({"flights": {"0": [5, 7]}})}
    lake.commit({**named, **ranges, **lake.counts(2, 0, 0)}, lake.write(coordinates(5, 6)))

    assert located(lake.audit(), "E1") == {("flights", 0, 5)}


def test_carry_gap_and_an_empty_batch_pass(lake: Lake) -> None:
    lake.log[0] = PartitionLog(25, 40, np.arange(30, 40))
    lake.mark("carry", rise=0)
    lake.mark("gap", p0=25)

    lake.ingest({0: (25, 30)})

    assert lake.audit().findings == ()
    assert lake.audit().facts["checked_from"] == {"flights-0": 25, "flights-1": 0}


@pytest.mark.parametrize(
    ("forged", "found", "words"),
    [
        ({"frazil.by": ""}, "E6", "without a name or reason"),
        ({"frazil.reason": " "}, "E6", "without a name or reason"),
        ({"frazil.ranges": "{}"}, "E2", "flights-0 [20, 25): leaves it out"),
        ({"frazil.ranges": '{"flights": {"0": [20, 24]}}'}, "E2", "[20, 25): leaves it out"),
        ({"frazil.ranges": '{"flights": {"0": [20, 26]}}'}, "E2", "[20, 26): says so"),
        ({"frazil.ranges": '{"flights": {"1": [20, 25]}}'}, "E2", "flights-1 [20, 25): says so"),
        ({"frazil.ranges": '{"trains": {"0": [0, 5]}}'}, "E2", "trains-0 [0, 5): says so"),
        ({"frazil.ranges": "[1"}, "E2", "its ranges cannot be read"),
    ],
    ids=["no name", "no reason", "none", "too few", "too many", "another", "foreign", "unreadable"],
)
def test_a_gap_that_does_not_say_who_why_and_what_is_found(
    lake: Lake, forged: Mapping[str, str], found: str, words: str
) -> None:
    lake.log[0] = PartitionLog(25, 40, np.arange(25, 40))
    lake.mark("gap", p0=25, forged=forged)
    lake.ingest({0: (25, 30)})

    findings = lake.audit().findings

    assert {finding.invariant for finding in findings} == {found}, findings
    assert any(words in finding.text for finding in findings), findings


def test_a_gap_over_records_that_kafka_still_delivers_is_found(lake: Lake) -> None:
    lake.log[0] = PartitionLog(22, 40, np.arange(22, 40))
    lake.mark("gap", p0=25)
    lake.ingest({0: (25, 30)})

    report = lake.audit()

    assert report.found() == {"E1"}
    assert located(report, "E1") == {("flights", 0, offset) for offset in (22, 23, 24)}


def test_a_gap_that_answers_a_rollback_may_leave_out_what_kafka_has(lake: Lake) -> None:
    target = lake.head
    lake.ingest({0: (20, 25)})
    lake.table.manage_snapshots().rollback_to_snapshot(target).commit()
    lake.next = [20, 6]

    lake.mark("gap", p0=25)
    lake.ingest({0: (25, 30)})

    assert lake.audit().findings == ()


def test_a_table_that_nobody_took_over_by_name_is_found(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    lake.mark("adopt", p0=3, forged={"frazil.by": ""})

    assert lake.audit().found() == {"E6"}


def test_an_adoption_on_a_stream_that_had_begun_is_found_where_it_jumps(lake: Lake) -> None:
    lake.mark("adopt", p0=25)

    assert "E4" in lake.audit().found()


@pytest.mark.parametrize(
    "listed",
    [
        {"frazil.ranges": [["flights", 0, 3], ["flights", 0, 4]]},
        {"frazil.ranges": {"flights": {"0": [3, 5]}}},
        {"frazil.ranges": {"flights": {"0": [[3, 4], [4, 5]]}}},
        {"frazil.ranges": {}, "frazil.coordinates": {"flights": {"0": [3, 4]}}},
    ],
    ids=["triples", "range", "ranges", "offsets"],
)
def test_a_sealed_redrive_moves_letters_into_the_table(
    lake: Lake, listed: Mapping[str, object]
) -> None:
    lake.commit({}, lake.write(coordinates(3, 4)))

    lake.seal("redrive", listed, lake.counts(2, 0, 0))

    assert lake.audit().findings == ()
    assert lake.audit().facts["dead_letters_counting"] == 0


def test_a_sealed_replay_that_cures_a_letter_passes(lake: Lake) -> None:
    old = lake.files()[:1]
    kept = [r for r in lake.rows_of(old[0]) if r["partition"] == 1]
    again = coordinates(*(o for o in range(10) if o not in (4, 7)))
    lake.commit({}, lake.write(kept + again), removed=old, operation=Operation.OVERWRITE)
    lake.quarantine("try_replay", 4)

    lake.seal("replay", {"frazil.ranges": {"flights": {"0": [0, 10]}}}, lake.counts(10, 1, 1))

    assert lake.audit().findings == ()
    assert lake.audit().facts["dead_letters_counting"] == 1


@pytest.mark.parametrize("order", [1, -1], ids=["first", "after the one without"])
def test_the_ledger_continues_the_ancestry_and_a_row_with_a_parent_wins(
    lake: Lake, order: int
) -> None:
    whole = lake.ledger_rows()
    lake.expire(*(snapshot.snapshot_id for snapshot in lake.table.metadata.snapshots[:2]))
    without_parent = lake.ledger_rows()

    for rows in (whole, without_parent)[::order]:
        lake.archive(rows)

    assert lake.audit().findings == ()
    assert lake.audit().facts["archived_snapshots"] == 2


def test_another_streams_rows_and_batches_are_not_this_streams_matter(lake: Lake) -> None:
    state = {"epoch": 1, "batch": "t1", "offsets": {"trains": [2]}}
    summary = {
        "frazil.kind": "ingest",
        "frazil.ranges": '{"trains": {"0": [0, 2]}}',
        "frazil.state.trains": json.dumps(state),
        **lake.counts(2, 0, 0),
    }

    lake.commit(summary, lake.write(coordinates(0, 1, topic="trains")))

    assert lake.audit().findings == ()
    assert lake.audit().facts["rows_of_stream"] == 23


def test_an_upsert_stream_may_drop_superseded_rows_but_not_double_one(lake: Lake) -> None:
    last = lake.files()[-1:]
    lake.commit({}, lake.write(coordinates(19, 22)), last, Operation.OVERWRITE)
    lake.epoch, lake.batch, lake.next = 3, "ingest-1", [25, 6]
    lake.seal("ingest", {"frazil.ranges": {"flights": {"0": [20, 25]}}}, lake.state())
    clean = lake.audit()
    lake.commit({}, lake.write(coordinates(22)))

    assert (clean.findings, clean.facts["mode"]) == ((), "upsert")
    assert located(lake.audit(), "E1") == {("flights", 0, 22)}


def test_a_table_that_was_taken_over_is_checked_above_its_adoption(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    nameless: list[dict[str, object]] = [{"topic": None, "partition": None, "offset": None}]
    lake.commit({}, lake.write([*coordinates(0, 1, 2), *nameless]))
    lake.mark("adopt", p0=3)
    lake.ingest({0: (3, 6)})

    report = lake.audit()

    assert (report.findings, report.facts["inherited_snapshots"]) == ((), 1)


def test_letters_of_an_abandoned_attempt_do_not_count(lake: Lake) -> None:
    lake.quarantine("try_lost", 3, 15, 25)

    report = lake.audit()

    assert report.findings == ()
    assert (report.facts["dead_letters"], report.facts["dead_letters_counting"]) == (5, 2)


def test_a_compressed_state_is_read(lake: Lake) -> None:
    lake.epoch, lake.batch, lake.next = 3, "b3", [21, 6]
    plain = lake.state()["frazil.state.flights"]
    packed = "z:" + base64.b64encode(zlib.compress(plain.encode())).decode()
    lake.epoch, lake.next = 2, [20, 6]

    lake.ingest({0: (20, 21)}, forged={"frazil.state.flights": packed})

    assert lake.audit().findings == ()


def test_the_fingerprint_changes_with_rows_and_letters_only(lake: Lake) -> None:
    before = auditor.fingerprint(lake.table)
    again = auditor.fingerprint(lake.table)
    lake.quarantine("try_b3", 30)
    with_letter = auditor.fingerprint(lake.table)
    lake.ingest({0: (20, 25)})

    assert before == again
    assert len({before, with_letter, auditor.fingerprint(lake.table)}) == 3


def test_the_auditor_shares_no_code_with_the_product() -> None:
    files = sorted(Path(auditor.__file__).parent.glob("audit[_o]*.py"))
    nodes = [node for file in files for node in ast.walk(ast.parse(file.read_text()))]
    plain = [n.name for node in nodes if isinstance(node, ast.Import) for n in node.names]
    named = [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)]
    own = {f"faults.{file.stem}" for file in files}

    roots = {name.split(".")[0] for name in {*plain, *named} - own}

    assert len(files) == 6
    foreign = {"confluent_kafka", "numpy", "pyarrow", "pyiceberg"}
    assert roots - foreign <= sys.stdlib_module_names


def test_the_reader_delivers_every_offset_of_every_partition() -> None:
    producer = Producer({"test.mock.num.brokers": 1})
    broker = next(iter(producer.list_topics(timeout=10).brokers.values()))
    for number in range(3000):
        producer.produce("flights", b"{}", partition=number % 3)
    assert producer.flush(20) == 0

    logs = audit_kafka.read_logs(f"{broker.host}:{broker.port}", "flights", "read_committed")

    read = {number: (logs[number].earliest, logs[number].end) for number in range(3)}
    assert read == dict.fromkeys(range(3), (0, 1000))
    assert all(logs[number].offsets.tolist() == list(range(1000)) for number in range(3))


def test_a_million_records_are_audited_in_seconds(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    lake.log = {0: PartitionLog(0, 1_000_000, np.arange(1_000_000))}
    lake.next = [0]
    lake.mark("bootstrap", rise=0)
    offsets = pa.array(np.arange(1_000_000))
    topic = pa.array(["flights"]).take(pa.array(np.zeros(1_000_000, np.int64)))
    kafka = pa.StructArray.from_arrays(
        [topic, pa.array(np.zeros(1_000_000, np.int32)), offsets], fields=list(KAFKA)
    )
    flights = pa.table({"flight": topic, "_kafka": kafka})
    files = list(_dataframe_to_data_files(lake.table.metadata, flights, lake.table.io))
    lake.ingest({0: (0, 1_000_000)}, files=files)
    started = time.process_time()

    report = lake.audit()

    assert report.findings == ()
    assert time.process_time() - started < 15
