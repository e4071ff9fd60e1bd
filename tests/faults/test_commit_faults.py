"""Commits whose answer is lost, late or wrong (docs/faults.md, A); the auditor judges the table.

What the unit tests of publishing prove already is not repeated: docs/guarantees.md names the test
of every case.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from pyiceberg.exceptions import CommitFailedException, ForbiddenError, ServerError
from pyiceberg.table import CommitTableResponse
from requests.exceptions import ReadTimeout
from support.lake import Lake, passed
from support.scripted_catalog import Answer, Land, honest, landed_then, overtaken_by, refused
from support.stack_lake import point_catalog_to

from faults.imagined_kafka import find_broken, find_faults, list_files
from frazil.errors import CatalogUnavailableError, SupersededError, UnavailableError
from frazil.iceberg.commit_retry import MAX_ATTEMPTS
from frazil.iceberg.ledger_archive import read_archive
from frazil.ingest.messages import BatchPlan, Published, Staged
from frazil.ingest.pipeline import publish_staged
from frazil.ledger.recovery_point import keys
from frazil.workspace import Workspace

RACE = CommitFailedException("Requirement failed: branch main has changed")
FIVE = [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1)]


@dataclass
class Wire:
    """A network that keeps one commit and delivers it when the test says so."""

    held: list[Land] = field(default_factory=list)

    def hold_then(self, error: BaseException) -> Answer:
        """Keep the commit; its client sees this instead of an answer."""

        def answer(land: Land) -> CommitTableResponse:
            self.held.append(land)
            raise error

        return answer

    def deliver(self) -> None:
        self.held.pop()()


def publish_all(work: Workspace, plan: BatchPlan, staged: Staged) -> Published:
    """Publish as the last task of a run does: letters, batch, archive."""
    return publish_staged(work, plan, staged, passed(plan, staged))


def script(work: Workspace, *answers: Answer) -> None:
    """Script the catalog of the process that runs the stream."""
    work.store.catalog.script = list(answers)  # type: ignore[attr-defined]


def rewrite_files(lake: Lake) -> None:
    """Replace every file of main by new ones with the same rows, as a compaction does."""
    table = lake.table
    table.overwrite(table.scan().to_arrow())


def kill_at_commit(lake: Lake, plan: BatchPlan, staged: Staged, answer: Answer) -> None:
    """Publish in a process that does not outlive the answer."""
    lake.catalog.script = [answer]
    with pytest.raises(KeyboardInterrupt):
        lake.publish(plan, staged)


@pytest.mark.parametrize(
    "error", [RACE, ServerError("504"), ReadTimeout("no answer")], ids=["409", "504", "timeout"]
)
def test_a2_a3_ledger_rows_that_landed_without_an_answer_count_once(
    lake: Lake, work: Workspace, error: Exception
) -> None:
    plan = lake.plan(3, 2)
    staged = lake.stage(plan)
    script(work, honest, landed_then(error), landed_then(error))

    for _ in range(3):
        try:
            done = publish_all(work, plan, staged)
        except CatalogUnavailableError:
            continue

    assert done.snapshot_id == lake.history.head
    assert lake.store.load(keys.LEDGER_TABLE).scan().to_arrow().num_rows > 1, "it landed twice"
    assert list(read_archive(lake.store, plan.table, plan.table_uuid).entries) == [done.snapshot_id]
    assert find_faults(lake, 3, 2) == ()


def test_a5_a_dead_clients_commit_that_lands_between_the_retrys_look_and_commit_counts_once(
    lake: Lake,
) -> None:
    plan, wire = lake.plan(3, 2), Wire()
    first, second = lake.stage(plan), lake.stage(plan)
    kill_at_commit(lake, plan, first, wire.hold_then(KeyboardInterrupt()))
    lake.catalog.script = [overtaken_by(wire.deliver)]

    landed = lake.publish(plan, second)

    assert landed.already_published
    assert lake.coordinates() == FIVE
    assert find_faults(lake, 3, 2) == ()


@pytest.mark.parametrize("ends", [(3, 2), (9, 9)], ids=["same batch", "longer batch"])
def test_a5_a_dead_clients_commit_that_arrives_after_the_retry_is_refused(
    lake: Lake, ends: tuple[int, int]
) -> None:
    plan, wire = lake.plan(3, 2), Wire()
    kill_at_commit(lake, plan, lake.stage(plan), wire.hold_then(KeyboardInterrupt()))
    landed = lake.ingest(*ends)

    with pytest.raises(CommitFailedException):
        wire.deliver()

    assert lake.history.head == landed.entry.snapshot_id
    assert find_faults(lake, *ends) == ()


@pytest.mark.parametrize(
    "first",
    [landed_then(ReadTimeout("?")), refused(ReadTimeout("?"))],
    ids=["it landed", "it did not land"],
)
def test_a6_a_publish_that_never_learns_its_outcome_deletes_nothing(
    lake: Lake, work: Workspace, first: Answer
) -> None:
    plan = lake.plan(3, 2)
    staged = lake.stage(plan)
    before = list_files(lake)
    script(work, first)
    lose_reads_after_commit(work)

    with pytest.raises(UnavailableError):
        publish_all(work, plan, staged)

    assert before <= list_files(lake)
    work.store.catalog.lost_reads = []  # type: ignore[attr-defined]
    publish_all(work, plan, staged)
    assert find_faults(lake, 3, 2) == ()


def lose_reads_after_commit(work: Workspace, reads: int = 2 * MAX_ATTEMPTS) -> None:
    """Let the catalog fall silent for reads as soon as the first commit was answered."""
    catalog = work.store.catalog
    first = catalog.script[0]  # type: ignore[attr-defined]

    def answer(land: Land) -> CommitTableResponse:
        try:
            return first(land)
        finally:
            catalog.lost_reads = [ServerError("503")] * reads  # type: ignore[attr-defined]

    script(work, answer)


def test_a8_a_compaction_that_overtakes_again_and_again_does_not_starve_the_batch(
    lake: Lake,
) -> None:
    lake.ingest(1, 1)
    plan = lake.plan(3, 2)
    staged = lake.stage(plan)
    asked = lake.catalog.commits_asked
    lake.catalog.script = [overtaken_by(lambda: rewrite_files(lake))] * 5

    landed = lake.publish(plan, staged)

    assert not landed.already_published
    assert lake.catalog.commits_asked - asked == 6 + 5
    assert lake.coordinates() == FIVE


@pytest.mark.parametrize("reads", [1, 3, 2 * MAX_ATTEMPTS], ids=["one", "some", "all"])
def test_a9_reads_that_fail_after_the_commit_lose_nothing_and_the_next_batch_is_not_stale(
    lake: Lake, work: Workspace, reads: int
) -> None:
    plan = lake.plan(3, 2)
    staged = lake.stage(plan)
    script(work, honest)
    lose_reads_after_commit(work, reads)
    with pytest.raises(CatalogUnavailableError):
        publish_all(work, plan, staged)
    work.store.catalog.lost_reads = []  # type: ignore[attr-defined]

    lake.ingest(5, 5)

    assert publish_all(work, plan, staged).outcome == "ALREADY"
    assert find_faults(lake, 5, 5) == ()


def test_a10_unknown_then_conflict_then_forbidden_keeps_the_stage_for_the_late_commit(
    lake: Lake,
) -> None:
    plan, wire = lake.plan(3, 2), Wire()
    staged = lake.stage(plan)
    before = list_files(lake)
    lost = wire.hold_then(ReadTimeout("no answer"))
    forbidden = [refused(ForbiddenError("no WRITE"))] * MAX_ATTEMPTS
    lake.catalog.script = [lost, refused(RACE), *forbidden]
    with pytest.raises(UnavailableError, match="no WRITE"):
        lake.publish(plan, staged)

    wire.deliver()

    assert before <= list_files(lake)
    lake.catalog.script = []
    assert lake.publish(plan, staged).already_published
    assert find_faults(lake, 3, 2) == ()


def test_a10_unknown_then_superseded_leaves_nothing_that_could_land_later(
    lake: Lake, work: Workspace
) -> None:
    plan, wire = lake.plan(3, 2), Wire()
    staged = lake.stage(plan)
    rival = overtaken_by(lambda: lake.ingest(5, 5))
    script(work, wire.hold_then(ReadTimeout("no answer")), rival)
    with pytest.raises(SupersededError):
        publish_all(work, plan, staged)

    with pytest.raises(CommitFailedException):
        wire.deliver()

    assert find_faults(lake, 5, 5) == ()


@pytest.mark.parametrize("events", [[rewrite_files], [rewrite_files] * 3])
def test_a11_a_landed_batch_whose_files_were_compacted_away_is_found_by_its_id(
    lake: Lake, events: list[Callable[[Lake], None]]
) -> None:
    plan = lake.plan(3, 2)
    staged = lake.stage(plan)
    kill_at_commit(lake, plan, staged, landed_then(KeyboardInterrupt()))
    landed = {task.file.file_path for task in lake.table.scan().plan_files()}
    for event in events:
        event(lake)

    again = lake.publish(plan, staged)

    assert again.already_published
    assert landed.isdisjoint(task.file.file_path for task in lake.table.scan().plan_files())
    assert lake.coordinates() == FIVE


def test_a12_a_foreign_append_that_retries_by_itself_keeps_the_batch(lake: Lake) -> None:
    plan = lake.plan(3, 2)
    staged = lake.stage(plan)
    lake.catalog.script = [overtaken_by(lambda: lake.publish(plan, staged))]

    lake.append_foreign(100, 101)

    assert sorted(lake.table.scan().to_arrow()["id"].to_pylist()) == [0, 0, 1, 1, 2, 100, 101]
    assert lake.point is not None
    assert lake.point.state == plan.state_after
    lake.ingest(5, 5)
    assert find_broken(lake, 5, 5) <= {"E6", "E1"}


def overwritten_by(lake: Lake, rival: Callable[[], object]) -> Answer:
    """Land, and let a rival that looked before put its own version over it (last writer wins)."""

    def answer(land: Land) -> CommitTableResponse:
        before = lake.table.metadata_location
        response = land()
        point_catalog_to(lake, before)
        rival()
        return response

    return answer


def test_a13_a_commit_that_the_catalog_let_others_overwrite_is_not_called_published(
    lake: Lake, work: Workspace
) -> None:
    plan = lake.plan(3, 2)
    staged = lake.stage(plan)
    script(work, overwritten_by(lake, lambda: lake.append_foreign(100)))

    with pytest.raises(CatalogUnavailableError, match=rf"{plan.batch_id} .* main does not have it"):
        publish_all(work, plan, staged)

    assert lake.coordinates() == []
    assert publish_all(work, plan, staged).outcome == "PUBLISHED"
    assert lake.coordinates() == FIVE


def test_a13_rows_and_offsets_are_overwritten_together_so_the_next_run_reads_them_again(
    lake: Lake, work: Workspace
) -> None:
    before = lake.table.metadata_location
    plan = lake.plan(3, 2)
    publish_all(work, plan, lake.stage(plan))
    point_catalog_to(lake, before)

    lake.ingest(9, 9)

    assert find_faults(lake, 9, 9) == ()
