"""Two processes, one table: one wins, the other says so, nothing is doubled (A7, B1, B5, F1, F2).

A one-at-a-time refusal proves nothing for SQL catalogs, where the client checks; only races count.
"""

import secrets
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from conftest import Lab, Stack, good_values
from pyspark.sql import SparkSession
from support.lake import make_stream

from faults.imagined_kafka import find_faults
from faults.racing import ROWS, Answer, Order, RaceLake, Racer, connection, race, start_racers
from faults.rest_catalog import run_rest_catalog
from frazil.connections.clients import find_catalog
from frazil.iceberg.catalog import dead_letters_name
from frazil.ingest.messages import BatchPlan, Staged
from frazil.ledger.recovery_point import keys

ROUNDS, FEW_ROUNDS = 50, 6
MEETINGS = 3
MOST_BATCHES = 1000
CATALOG = "arena"
CONFLICTS = ("CommitFailed", "ValidationException", "Cannot commit", "conflict")


@dataclass(frozen=True)
class Arena:
    """A catalog and two racers that share it."""

    folder: Path
    racers: list[Racer]

    def open(self, topic: str = "orders") -> RaceLake:
        """Open a stream of its own, without the ledger of earlier races, which only costs time."""
        name = f"r{secrets.token_hex(4)}"
        table = {"name": f"races.{name}"}
        lake = RaceLake(self.folder, make_stream(name, source={"topic": topic}, table=table))
        if lake.store.find(keys.LEDGER_TABLE) is not None:
            lake.store.catalog.drop_table(keys.LEDGER_TABLE)
        return lake

    def publish(
        self, lake: RaceLake, plans: list[BatchPlan], stages: list[Staged]
    ) -> tuple[tuple[str, ...], int]:
        """Let both racers publish at the same moment; give the outcomes and the turns lost."""
        orders = [
            Order(step="publish", stream=lake.stream, plan=plan, staged=staged)
            for plan, staged in zip(plans, stages, strict=True)
        ]
        answers = race(self.racers, orders)
        return outcomes(answers), sum(answer.lost_turns for answer in answers)


@pytest.fixture(scope="session")
def rounds(sampled: bool) -> int:  # noqa: FBT001 - a fixture
    """Return how often the racers start."""
    return FEW_ROUNDS if sampled else ROUNDS


@pytest.fixture(scope="module", params=["sqlite", "rest"])
def arena(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Arena]:
    """Yield, for every race of this file, one catalog of each kind, with two racers."""
    folder = tmp_path_factory.mktemp("arena")
    sqlite = {
        "type": "sql",
        "uri": f"sqlite:///{folder}/catalog.db",
        "warehouse": f"file://{folder}/warehouse",
    }
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "sqlite":
            yield from open_arena(patch, folder, sqlite)
        else:
            with run_rest_catalog(folder) as rest:
                yield from open_arena(patch, folder, rest)


def open_arena(
    patch: pytest.MonkeyPatch, folder: Path, properties: dict[str, str]
) -> Iterator[Arena]:
    catalog = connection({"catalog": CATALOG, **properties})
    patch.setenv("AIRFLOW_CONN_ICEBERG_DEFAULT", catalog)
    with start_racers(2, {"AIRFLOW_CONN_ICEBERG_DEFAULT": catalog}) as racers:
        yield Arena(folder, racers)


def outcomes(answers: list[Answer]) -> tuple[str, ...]:
    return tuple(sorted(outcome for answer in answers for outcome in answer.outcomes))


def assert_nothing_doubled(lake: RaceLake, batches: int, ends: tuple[int, ...]) -> None:
    """See every row once, every batch in one snapshot, and epochs that rise by one (I1, I2)."""
    account = lake.account()

    assert account.rows == Counter(
        (p, offset) for p, end in enumerate(ends) for offset in range(end)
    )
    assert sorted(account.batches.values()) == [1] * batches
    assert account.epochs == list(range(batches + 1))


@pytest.mark.storm(1)
def test_of_two_publishers_of_one_plan_one_publishes_and_the_other_finds_it_there(
    arena: Arena, rounds: int
) -> None:
    lake, seen, lost_turns = arena.open(), Counter[tuple[str, ...]](), 0
    lake.begin()

    for number in range(1, rounds + 1):
        plan = lake.plan(number * ROWS, 0)
        first = lake.stage(plan)
        second = first if number % 2 else lake.stage(plan)
        ended, lost = arena.publish(lake, [plan, plan], [first, second])
        seen[ended] += 1
        lost_turns += lost

    assert seen == {("ALREADY", "PUBLISHED"): rounds}
    assert lost_turns > rounds // 10, "they hardly met"
    assert_nothing_doubled(lake, rounds, (rounds * ROWS, 0))
    assert find_faults(lake, rounds * ROWS, 0) == ()


@pytest.mark.storm(1)
def test_of_two_plans_with_the_same_base_one_is_superseded(arena: Arena, rounds: int) -> None:
    lake, seen, lost_turns = arena.open(), Counter[tuple[str, ...]](), 0
    lake.begin()

    for _ in range(rounds):
        point = lake.point
        assert point is not None
        ends = point.state.offsets["orders"]
        plans = [lake.plan(ends[0] + ROWS, ends[1]), lake.plan(ends[0] + 3, ends[1] + 4)]
        ended, lost = arena.publish(lake, plans, [lake.stage(plan) for plan in plans])
        seen[ended] += 1
        lost_turns += lost

    assert seen == {("PUBLISHED", "Superseded"): rounds}
    assert lost_turns > rounds // 10, "they hardly met"
    assert list(lake.table.metadata.refs) == ["main"]
    assert lake.point is not None
    assert_nothing_doubled(lake, rounds, lake.point.state.offsets["orders"])
    assert find_faults(lake, *lake.point.state.offsets["orders"]) == ()


@pytest.mark.storm(1)
@pytest.mark.stack
def test_of_two_first_runs_on_a_new_table_both_go_on_from_one_bootstrap(
    arena: Arena, lab: Lab, rounds: int
) -> None:
    lab.create_topic()
    lab.produce(good_values(ROWS))
    seen = Counter[tuple[str, ...]]()

    for _ in range(rounds):
        lake = arena.open(lab.topic)
        order = Order(step="plan", stream=lake.stream, bootstrap=lab.stack.bootstrap)
        answers = race(arena.racers, [order, order])
        plans = [answer.plan for answer in answers if answer.plan]
        assert len(plans) == 2, answers
        assert plans[0] == plans[1]
        stages = [lake.stage(plan) for plan in plans]
        seen[arena.publish(lake, plans, stages)[0]] += 1
        assert_nothing_doubled(lake, 1, (ROWS // 2, ROWS // 2))
        letters = lake.store.load(dead_letters_name(lake.stream.table.name))
        assert len(letters.metadata.snapshots) == 1
    assert find_faults(lake, ROWS // 2, ROWS // 2) == ()

    assert seen == {("ALREADY", "PUBLISHED"): rounds}


@pytest.mark.storm(1)
@pytest.mark.stack
@pytest.mark.spark
def test_f1_compaction_by_spark_beside_the_publisher_loses_and_doubles_nothing(
    arena: Arena, stack: Stack, rounds: int
) -> None:
    lake, seen = arena.open(), Met()
    lake.begin()

    with opened_spark(stack) as spark:
        while not seen.enough and seen.orders * rounds < MOST_BATCHES:
            arena.racers[0].send(Order(step="ingest", stream=lake.stream, rounds=rounds))
            compact_until_answered(arena.racers[0], lake, spark, seen)
            seen.add(arena.racers[0].read())

    batches = seen.orders * rounds
    assert seen.outcomes == {"PUBLISHED": batches}
    assert seen.enough, f"they hardly met: {seen}"
    assert [text for text in seen.refused if not any(word in text for word in CONFLICTS)] == []
    assert_nothing_doubled(lake, batches, (batches * ROWS, 0))
    assert find_faults(lake, batches * ROWS, 0) == ()


@dataclass
class Met:
    """What a publisher and a compaction beside it saw of each other so far."""

    orders: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    lost_turns: int = 0
    rewritten: int = 0
    refused: list[str] = field(default_factory=list)

    @property
    def enough(self) -> bool:
        return self.rewritten > 0 and self.lost_turns + len(self.refused) >= MEETINGS

    def add(self, answer: Answer) -> None:
        self.orders += 1
        self.outcomes.update(answer.outcomes)
        self.lost_turns += answer.lost_turns


def compact_until_answered(racer: Racer, lake: RaceLake, spark: SparkSession, seen: Met) -> None:
    """Rewrite small files in a loop; count the rewritten ones and keep what was refused."""
    call = (
        f"CALL {CATALOG}.system.rewrite_data_files(table => '{lake.stream.table.name}', "
        "options => map('min-input-files', '2'))"
    )
    while not racer.has_answered():
        try:
            seen.rewritten += spark.sql(call).collect()[0]["rewritten_data_files_count"]
        except Exception as error:  # noqa: BLE001 - a lost race has many names, judged by the test
            seen.refused.append(f"{type(error).__name__}: {str(error)[:300]}")


@contextmanager
def opened_spark(stack: Stack) -> Iterator[SparkSession]:
    """Open a session of the stack's server that sees the arena's catalog."""
    remote = stack.facts["spark_connect"]["url"]
    session: SparkSession = SparkSession.builder.remote(str(remote)).create()
    try:
        for key, value in find_catalog("iceberg_default").spark_conf().items():
            session.conf.set(key, value)
        yield session
    finally:
        session.stop()
