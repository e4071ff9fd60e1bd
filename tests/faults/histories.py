"""Random short histories of one table: runs that overlap, answers that get lost, people who meddle.

Everything but Kafka and Spark is real: the steps of the product, PyIceberg, a SQLite catalog. A
history is decided by its seed alone; `History.told` lists what happened, for whom it fails.
"""

import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TypeAlias

from pyiceberg.exceptions import CommitFailedException, ServerError
from requests.exceptions import ReadTimeout
from support.lake import Lake, passed
from support.scripted_catalog import Answer, honest, landed_then, overtaken_by, refused

from faults.imagined_kafka import ImaginedLog
from frazil.errors import FrazilError, NothingToDecideError
from frazil.ingest.messages import BatchPlan, NothingToRead, Staged
from frazil.ingest.pipeline import publish_staged
from frazil.ledger.authors import Author
from frazil.ledger.recovery_point import walk_ancestors
from frazil.recovery.halt_resolution import reingest
from frazil.recovery.messages import RecoverRequest
from frazil.recovery.range_overwrite import publish_replacement
from frazil.recovery.rollback import plan_recovery, recover
from frazil.workspace import Workspace

STEPS = 12
MAX_RUNS = 4
PERSON = Author("jane@example.org", "rolled back by hand")

Act: TypeAlias = Callable[[], None]


class Killed(BaseException):
    """The process died here: no handler of the product may see it end otherwise."""


@dataclass
class Run:
    """One run of the pipeline, as far as it came."""

    plan: BatchPlan
    staged: Staged | None = None


@dataclass
class History:
    """One history in the making."""

    seed: int
    lake: Lake
    work: Workspace
    ends: list[int] = field(default_factory=lambda: [0, 0])
    runs: list[Run] = field(default_factory=list)
    over: list[Run] = field(default_factory=list)
    told: list[str] = field(default_factory=list)
    has_meddled: bool = False

    def __post_init__(self) -> None:
        """Draw everything from the seed."""
        self.rnd = random.Random(self.seed)

    def unfold(self) -> None:
        """Take the steps, then let runs go on until nothing is left to read."""
        acts: dict[str, tuple[int, Act]] = {
            "begin": (8, self.begin),
            "stage": (3, self.stage),
            "publish": (9, self.publish),
            "publish again": (2, self.publish_again),
            "crash": (1, self.crash),
            "expire": (1, self.expire),
            "append": (1, self.append_foreign),
            "rewrite": (1, self.rewrite),
            "roll back": (1, self.roll_back),
            "recover": (1, self.recover),
            "replay": (1, self.replay),
        }
        weights = [weight for weight, _ in acts.values()]
        for _ in range(STEPS):
            (name,) = self.rnd.choices(list(acts), weights)
            self.tell(name, acts[name][1])
        self.drain()

    def tell(self, name: str, act: Act) -> None:
        """Act, and write down how it ended."""
        try:
            act()
        except (FrazilError, Killed) as error:
            self.told.append(f"{name}: {type(error).__name__}")
        else:
            self.told.append(name)

    def begin(self) -> None:
        """Plan a run on what Kafka has by now; most runs stage at once, some wait."""
        self.ends[self.rnd.randrange(2)] += self.rnd.randrange(1, 6)
        plan = self.lake.plan(*self.ends)
        if len(self.runs) < MAX_RUNS:
            is_quick = self.rnd.random() < 0.7
            self.runs.append(Run(plan, self.lake.stage(plan) if is_quick else None))

    def stage(self) -> None:
        waiting = [run for run in self.runs if run.staged is None]
        if waiting:
            run = self.rnd.choice(waiting)
            run.staged = self.lake.stage(run.plan)

    def publish(self) -> None:
        """Publish one of the staged runs, under answers that are drawn."""
        staged = [run for run in self.runs if run.staged is not None]
        if not staged:
            return
        run = self.rnd.choice(staged)
        script = [self.draw_answer() for _ in range(self.rnd.randrange(4))]
        self._publish(run, script)
        self.runs.remove(run)
        self.over.append(run)

    def publish_again(self) -> None:
        """Wake up a run that is over: a zombie, or a task that somebody cleared."""
        if self.over:
            self._publish(self.rnd.choice(self.over), [])

    def _publish(self, run: Run, script: list[Answer]) -> None:
        assert run.staged is not None
        self.work.store.catalog.script = script  # type: ignore[attr-defined]
        try:
            publish_staged(self.work, run.plan, run.staged, passed(run.plan, run.staged))
        finally:
            self.work.store.catalog.script = []  # type: ignore[attr-defined]

    def draw_answer(self) -> Answer:
        """Draw how the catalog answers a commit."""
        lost = (ServerError("502"), ReadTimeout(), CommitFailedException("late"), Killed())
        return self.rnd.choice(
            [
                honest,
                landed_then(self.rnd.choice(lost)),
                refused(self.rnd.choice(lost)),
                overtaken_by(self.overtake),
            ]
        )

    def overtake(self) -> None:
        """Let another run publish, or somebody else write, between look and commit."""
        others = [run for run in self.runs if run.staged is not None]
        if others and self.rnd.random() < 0.7:
            run = self.rnd.choice(others)
            assert run.staged is not None
            with suppress(FrazilError):
                self.lake.publish(run.plan, run.staged)
            self.told.append("  overtaken by a run")
        else:
            self.append_foreign()
            self.told.append("  overtaken by another writer")

    def crash(self) -> None:
        if self.runs:
            self.runs.remove(self.rnd.choice(self.runs))

    def expire(self) -> None:
        """Archive the ledger, then keep no snapshot but those that a ref names."""
        self.lake.expire_history()

    def append_foreign(self) -> None:
        self.lake.append_foreign(self.rnd.randrange(10**6))
        self.has_meddled = True

    def rewrite(self) -> None:
        table = self.lake.table
        table.overwrite(table.scan().to_arrow())
        self.has_meddled = True

    def roll_back(self) -> None:
        """Set main back to an ancestor, as others do; then a named person answers the halt."""
        past = list(walk_ancestors(self.lake.history, beyond_metadata=False))[1:]
        # Between the two halves of a rewrite its rows are gone: nobody sets main back to there.
        ancestors = [entry for entry in past if entry.summary.get("operation") != "delete"]
        if not ancestors:
            return
        target = self.rnd.choice(ancestors).snapshot_id
        self.lake.table.manage_snapshots().rollback_to_snapshot(target).commit()
        with suppress(NothingToDecideError):
            reingest(self.work, PERSON)

    def recover(self) -> None:
        """Go back to an ancestor by Frazil, under answers that are drawn; a kill is repeated."""
        past = list(walk_ancestors(self.lake.history, beyond_metadata=False))[1:]
        ancestors = [entry for entry in past if entry.summary.get("operation") != "delete"]
        if not ancestors:
            return
        self.work.__dict__["kafka"] = ImaginedLog(tuple(self.ends))
        request = RecoverRequest(
            stream="orders",
            to_snapshot=self.rnd.choice(ancestors).snapshot_id,
            by=PERSON.by,
            reason=f"number {len(self.told)}",
            dry_run=False,
        )
        for _ in range(2):
            plan = plan_recovery(self.work, request)
            try:
                self._answer_by_script(lambda plan=plan: recover(self.work, plan))  # type: ignore[misc]
            except Killed:
                self.told.append("  killed while it went back")

    def replay(self) -> None:
        """Put staged rows in the place of some that were read, under answers that are drawn."""
        point = self.lake.point
        partition = self.rnd.randrange(2)
        end = point.state.offsets["orders"][partition] if point else 0
        if end == 0:
            return
        start = self.rnd.randrange(end)
        ranges = {"orders": {partition: (start, self.rnd.randrange(start, end) + 1)}}
        ahead = self.lake.plan(*(each + 1 for each in self.ends))
        batch_id = f"replay {len(self.told)}"
        plan = ahead.model_copy(update={"batch_id": batch_id, "ranges": ranges})
        staged = self.lake.stage(plan)
        self._answer_by_script(
            lambda: publish_replacement(self.work, plan, staged, passed(plan, staged))
        )

    def _answer_by_script(self, act: Callable[[], object]) -> None:
        script = [self.draw_answer() for _ in range(self.rnd.randrange(4))]
        self.work.store.catalog.script = script  # type: ignore[attr-defined]
        try:
            act()
        finally:
            self.work.store.catalog.script = []  # type: ignore[attr-defined]

    def drain(self) -> None:
        """Run alone and undisturbed until nothing is left."""
        while True:
            plan = self.lake.plan(*self.ends)
            if isinstance(plan, NothingToRead):
                return
            self._publish(Run(plan, self.lake.stage(plan)), [])
