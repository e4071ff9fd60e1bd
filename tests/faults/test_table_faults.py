"""Tables that change or break under a batch (docs/faults.md, E and G), with what Spark staged."""

import json
import re
import secrets

import pytest
from conftest import Lab, good_values
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import StringType

from faults.batches import Batches
from frazil.errors import MissingTableError, StageLostError, StageStaleError
from frazil.iceberg import commits
from frazil.iceberg.catalog import dead_letters_name
from frazil.ingest.checking import check_batch
from frazil.ingest.messages import BatchPlan, Staged
from frazil.ingest.pipeline import publish_staged
from frazil.ingest.staging import stage_batch
from frazil.ledger.recovery_point import keys
from frazil.ledger.state import Hint, encode_hint
from frazil.workspace import Workspace

pytestmark = pytest.mark.stack

MIXED: list[bytes | None] = [*good_values(6), b"no json", b"{}"]


def stage_mixed(lab: Lab, batches: Batches) -> tuple[Workspace, BatchPlan, Staged]:
    """Let Spark stage good rows and dead letters."""
    lab.create_topic()
    lab.produce(MIXED)
    work, plan = batches.open(), batches.plan()
    return work, plan, stage_batch(work, plan)


def publish(work: Workspace, plan: BatchPlan, staged: Staged) -> None:
    publish_staged(work, plan, staged, check_batch(work, plan, staged))


@pytest.mark.core
def test_e3_g5_without_its_dead_letters_a_batch_moves_neither_rows_nor_offsets(
    lab: Lab, batches: Batches
) -> None:
    work, plan, staged = stage_mixed(lab, batches)
    head = batches.table.current_snapshot()
    batches.catalog.drop_table(dead_letters_name(lab.table))

    with pytest.raises(MissingTableError, match=dead_letters_name(lab.table)):
        publish(work, plan, staged)

    assert batches.table.current_snapshot() == head
    published = batches.publish()
    assert (published.rows_written, published.rows_quarantined) == (6, 2)
    assert published.ranges == plan.ranges
    assert batches.faults() == ()


def test_e4_g1_letters_without_their_batch_do_not_count_beside_those_of_the_next_attempt(
    lab: Lab, batches: Batches
) -> None:
    work, plan, staged = stage_mixed(lab, batches)
    head = batches.table.current_snapshot()
    batches.table.manage_snapshots().remove_branch(staged.attempt).commit()

    with pytest.raises(StageLostError):
        publish(work, plan, staged)

    assert batches.table.current_snapshot() == head
    assert count_letters(batches) == 2
    batches.publish()
    assert count_letters(batches) == 4
    assert batches.faults() == ()


def count_letters(batches: Batches) -> int:
    """Count the rows of the dead letters' table, whether they count or not."""
    name = dead_letters_name(batches.lab.table)
    return int(batches.catalog.load_table(name).scan().to_arrow().num_rows)


def test_e12_a_column_that_is_added_between_stage_and_commit_lets_the_batch_land(
    lab: Lab, batches: Batches
) -> None:
    work, plan, staged = stage_mixed(lab, batches)
    with batches.table.update_schema() as update:
        update.add_column("note", StringType())

    publish(work, plan, staged)

    assert batches.table.scan(selected_fields=("note",)).to_arrow()["note"].null_count == 6
    assert batches.faults() == ()


def test_e12_a_layout_that_changes_between_stage_and_commit_is_staged_again(
    lab: Lab, batches: Batches
) -> None:
    work, plan, staged = stage_mixed(lab, batches)
    head = batches.table.current_snapshot()
    with batches.table.update_spec() as update:
        update.add_field("name", IdentityTransform())

    with pytest.raises(StageStaleError):
        publish(work, plan, staged)

    assert batches.table.current_snapshot() == head
    assert batches.publish().ranges == plan.ranges
    assert batches.faults() == ()


def test_g2_a_broken_table_fails_its_own_run_and_no_other(lab: Lab, batches: Batches) -> None:
    lab.create_topic()
    lab.produce(good_values(6))
    second = Lab(lab.stack, lab.folder, f"s{secrets.token_hex(4)}")
    second.document = {**lab.document, "stream": second.stream}
    second.write_stream(table={"name": second.table})
    batches.publish()
    Batches(second).publish()
    lab.produce(good_values(4))
    schema = batches.table.schema()
    batches.catalog.drop_table(lab.table)
    batches.catalog.create_table(lab.table, schema)

    broken, sound = (lab.frazil("run", stream) for stream in (lab.stream, second.stream))

    assert broken.code == 1
    assert "TableRecreated: " in broken.err
    assert sound.code == 0, sound.err
    assert len(batches.catalog.load_table(second.table).scan().to_arrow()) == 10


def test_another_writer_halts_a_stream_that_allows_none_until_it_is_taken_back(
    lab: Lab, batches: Batches
) -> None:
    lab.write_stream(table={"name": lab.table, "other_writers": "refuse"})
    lab.create_topic()
    lab.produce(good_values(10))
    lab.drain()
    batches.table.delete("id = 3")
    lab.produce(good_values(5, start=10))

    halted = lab.frazil("run", lab.stream)
    state = lab.frazil("status", lab.stream, "--json").json
    way_back = re.search(r"--to-snapshot \d+", halted.err)
    assert way_back is not None, halted.err
    person = ("--by", "tests@example.org", "--reason", "not agreed")
    back = lab.frazil("recover", lab.stream, *way_back[0].split(), *person, "--no-dry-run")
    lab.drain()

    assert (halted.code, "another writer changed rows" in halted.err) == (1, True)
    assert isinstance(state, list)
    assert state[0]["state"] == "WriterActive"
    assert back.code == 0, back.err
    assert lab.rows == 15
    assert batches.faults() == ()


def test_a_state_that_nobody_can_read_halts_and_the_page_leads_out(
    lab: Lab, batches: Batches
) -> None:
    lab.create_topic()
    lab.produce(good_values(20))
    batches.publish()
    lab.produce(good_values(20, 20))
    newer = json.dumps({"v": 9, "offsets": "of a form to come"})
    table = batches.table
    before = table.current_snapshot()
    assert before is not None
    added = commits.build_append(table, {keys.state_key(lab.stream): newer})
    new_id = added.snapshot.snapshot_id
    hint = {keys.hint_key(lab.stream): encode_hint(Hint(2, "of a newer release", new_id))}
    updates = [added, commits.set_branch(commits.MAIN, new_id), commits.set_properties(hint)]
    commits.commit(batches.catalog, table, commits.require_uuid(table), updates)

    refused = lab.frazil("run", lab.stream)
    listed = lab.frazil("snapshots", lab.stream, "--json").json
    batches.table.manage_snapshots().rollback_to_snapshot(before.snapshot_id).commit()
    decision = ("--by", "jane@example.org", "--reason", "edited by hand", "--no-dry-run")
    answered = lab.frazil("recover", lab.stream, "--reingest", *decision)

    told = (lab.table, str(new_id), f"`frazil recover {lab.stream} --reingest`")
    assert refused.code == 1
    assert all(word in refused.err for word in ("UnknownState", *told)), refused.err
    assert isinstance(listed, list)
    assert listed[0]["epoch"] is None
    assert answered.code == 0, answered.err
    assert lab.frazil("run", lab.stream).code == 0
    rows = batches.table.scan(selected_fields=("id",)).to_arrow()
    assert sorted(rows["id"].to_pylist()) == list(range(40))
