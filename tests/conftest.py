"""Fixtures of every suite: a lake or a stream of its own per test, the stack once per session."""

import gc
import json
import os
import secrets
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import stamina
import yaml
from confluent_kafka import KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from confluent_kafka.schema_registry import SchemaRegistryClient
from hypothesis import settings
from support.figures import PROPERTY as FIGURES
from support.figures import summarize as summarize_figures
from support.forked import Run, run_frazil
from support.lake import Lake, Molds, make_stream
from support.storms import STACK_SHARE, choose_left_out, choose_stack_tests
from xdist.scheduler import LoadFileScheduling

from frazil.workspace import Workspace

if TYPE_CHECKING:
    from support.registry_lab import RegistryLab
    from xdist.remote import Producer as Log

REPO = Path(__file__).parents[1]
NO_KAFKA = json.dumps({"conn_type": "kafka", "extra": {"bootstrap.servers": "127.0.0.1:1"}})
NO_SPARK = json.dumps({"conn_type": "spark_connect", "host": "sc://127.0.0.1", "port": 1})
FRAZIL = Path(sys.executable).with_name("frazil")
os.environ.setdefault("FRAZIL_JARS", str(REPO / ".frazil" / "jars"))  # of every stack, once
# No JVM of the tests lives long enough for its second compiler to pay: a third of their seconds.
os.environ.setdefault("JAVA_TOOL_OPTIONS", "-XX:TieredStopAtLevel=1")
settings.register_profile("frazil", deadline=None)  # no test has a stopwatch
settings.register_profile("fast", deadline=None, max_examples=25)
settings.load_profile("frazil")
FREE_PORTS = {
    f"FRAZIL_{name}_PORT": "0"
    for name in ("KAFKA", "KAFKA_CONTROLLER", "SPARK", "AIRFLOW", "REGISTRY")
}


LONGEST = "test_kill_points.py"


def needs_stack(item: pytest.Item) -> bool:
    """Tell whether a test starts servers or a JVM and may be left out of a sample."""
    marks = {mark.name for mark in item.iter_markers()}
    return bool(marks & {"stack", "spark"}) and "core" not in marks


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--sample",
        action="store_true",
        help="run a few instances of each storm, and of the tests on a stack those marked `core` "
        f"and one in {STACK_SHARE} others; the random seed chooses",
    )
    parser.addoption(
        "--all-stacks", action="store_true", help="with --sample: run all tests on a stack"
    )


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out most of each storm if a sample is wanted; begin with what takes long.

    Each part has a random order. One worker has all tests that share an Airflow, the other ones
    begin with the longest file; small files fill all of them to the end, after those that share
    the import of Airflow.
    """
    if config.getoption("sample"):
        seed = config.getoption("randomly_seed", 0)
        storms = {
            item.nodeid: mark.args[0] for item in items for mark in item.iter_markers("storm")
        }
        left_out = choose_left_out(storms, seed)
        if not config.getoption("all_stacks"):
            others = {item.nodeid for item in items if needs_stack(item)} - left_out
            long = {item.nodeid for item in items if item.get_closest_marker("long")}
            left_out |= long | choose_stack_tests(others - long, STACK_SHARE, seed)
        config.hook.pytest_deselected(items=[item for item in items if item.nodeid in left_out])
        items[:] = [item for item in items if item.nodeid not in left_out]

    def place(item: pytest.Item) -> int:
        if str(item.path.relative_to(REPO)) in SHARE_AIRFLOW:
            return 0
        if item.path.name == LONGEST:
            return 1
        if any(item.iter_markers("stack")) or any(item.iter_markers("spark")):
            return 2
        return 3 if item.path.parent == REPO / "tests" / "airflow" else 4

    items.sort(key=place)


def pytest_collection_finish() -> None:
    """Spare the garbage collector what the imports left: a tenth of the fast lane's time."""
    gc.collect()
    gc.freeze()


class OneAirflow(LoadFileScheduling):
    """Return all tests that share an Airflow to one worker; it ends with the last of them.

    An idle Airflow costs a fifth of a core. Tests that import Airflow share a worker, too.
    """

    def _split_scope(self, nodeid: str) -> str:
        """Name what goes to one worker as a whole."""
        file = str(super()._split_scope(nodeid))
        if file.startswith("tests/airflow/"):
            return "tests/airflow"
        return "Airflow" if file in SHARE_AIRFLOW else file


SHARE_AIRFLOW = {
    str(path.relative_to(REPO))
    for path in (REPO / "tests" / "e2e").glob("test_*.py")
    if "airflow: Airflow" in path.read_text()
}


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(
    config: pytest.Config, log: "Log | None"
) -> LoadFileScheduling | None:
    """Schedule by files, but for the ones that share Airflow."""
    return OneAirflow(config, log) if config.getoption("dist") == "loadfile" else None


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print one line for each case; pytest-xdist's controller has the reports of all workers."""
    outcomes: dict[str, str] = {}
    for kind in ("passed", "skipped", "failed", "error"):
        for report in terminalreporter.stats.get(kind, []):
            outcomes[report.nodeid] = "failed" if kind == "error" else kind
    ended = [report for report in terminalreporter.stats.get("", []) if report.when == "teardown"]
    counts = [dict(report.user_properties).get(FIGURES) for report in ended]
    if found := [each for each in counts if each]:
        terminalreporter.section("matrix")
        for line in summarize_figures(found):
            terminalreporter.write_line(line)
    if not any(nodeid.startswith("tests/faults/") for nodeid in outcomes):
        return
    from faults.cases import PAGE, summarize, summarize_kills  # noqa: PLC0415 - others do without
    from faults.tally import PROPERTY  # noqa: PLC0415

    tallies = [dict(report.user_properties).get(PROPERTY, {}) for report in ended]

    terminalreporter.section("failure catalogue")
    for line in [*summarize_kills(tallies), *summarize(outcomes, PAGE.read_text())]:
        terminalreporter.write_line(line)


def is_timeout(error: Exception) -> bool:
    """Recognise a broker that did not answer in time."""
    return isinstance(error, KafkaException) and error.args[0].code() == KafkaError._TIMED_OUT  # noqa: SLF001


@dataclass(frozen=True)
class Stack:
    """A running embedded stack: broker, Spark Connect, catalog."""

    home: Path
    facts: Mapping[str, Mapping[str, object]]

    @classmethod
    def read(cls, home: Path) -> "Stack":
        """Read what `frazil stack up` wrote."""
        return cls(home, json.loads((home / "stack" / "stack.json").read_text()))

    @property
    def bootstrap(self) -> str:
        return str(self.facts["kafka"]["bootstrap"])

    @property
    def registry_url(self) -> str:
        return str(self.facts["schema_registry"]["url"])

    @property
    def catalog_properties(self) -> dict[str, str]:
        properties = self.facts["catalog"]["properties"]
        assert isinstance(properties, Mapping)
        return {str(k): str(v) for k, v in properties.items()}


@dataclass
class Lab:
    """One stream of a test's own, on real parts, driven through the command line."""

    stack: Stack
    folder: Path
    stream: str
    document: dict[str, object] = field(default_factory=dict)

    @property
    def topic(self) -> str:
        return self.stream

    @property
    def table(self) -> str:
        return f"lab.{self.stream}"

    def write_stream(self, **changes: object) -> None:
        """Write the stream file; keyword arguments replace top-level keys."""
        self.document = {**self.document, **changes}
        (self.folder / f"{self.stream}.yaml").write_text(yaml.safe_dump(self.document))

    def environment(self, **extra: str) -> dict[str, str]:
        return {
            **os.environ,
            "FRAZIL_HOME": str(self.stack.home),
            "FRAZIL_STREAMS": str(self.folder),
            **extra,
        }

    def frazil(self, *arguments: str, timeout: float = 240, **extra: str) -> Run:
        """Run the command in a process of its own."""
        return run_frazil(arguments, self.environment(**extra), timeout)

    def create_topic(self, partitions: int = 2, **config: str) -> None:
        topic = NewTopic(self.topic, partitions, 1, config=config)
        # A client whose first answer names no controller asks for it once in five minutes.
        for turn in stamina.retry_context(on=is_timeout, timeout=120, wait_jitter=0):
            with turn:
                admin = self.admin
                admin.create_topics([topic], request_timeout=20)[self.topic].result(25)

    @property
    def admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.stack.bootstrap})

    def truncate(self, partition: int, before: int) -> None:
        """Let Kafka lose the records of a partition before an offset, as retention does."""
        admin, end = self.admin, TopicPartition(self.topic, partition, before)
        admin.delete_records([end])[end].result(30)

    @property
    def rows(self) -> int:
        """Count the rows that anybody can see."""
        status = self.frazil("status", self.stream, "--json").json
        assert isinstance(status, list)
        return int(status[0]["rows"] or 0)

    def produce(self, values: list[bytes | None], partitions: int = 2) -> None:
        """Send values round robin over the partitions; a broker may learn late of a new one."""
        waiting = [*enumerate(values)]
        for turn in stamina.retry_context(on=AssertionError, timeout=15, wait_initial=0.1):
            with turn:
                waiting = self._send(waiting, partitions)
                assert waiting == []

    def _send(
        self, values: list[tuple[int, bytes | None]], partitions: int
    ) -> list[tuple[int, bytes | None]]:
        """Send each to its partition; give those whose partition is not known yet."""
        producer = Producer({"bootstrap.servers": self.stack.bootstrap, "linger.ms": 5})
        unknown: list[tuple[int, bytes | None]] = []

        def note(error: KafkaError | None, each: tuple[int, bytes | None]) -> None:
            if error is not None:
                if error.name() != "_UNKNOWN_PARTITION":
                    raise KafkaException(error)
                unknown.append(each)

        for index, value in values:
            each = (index, value)
            target = {"key": str(index).encode(), "partition": index % partitions}
            try:
                producer.produce(
                    self.topic,
                    value=value,
                    on_delivery=lambda error, _, each=each: note(error, each),
                    **target,
                )
            except KafkaException as failure:
                note(failure.args[0], each)
            producer.poll(0)
        assert producer.flush(30) == 0
        return unknown

    def drain(self) -> list[Run]:
        """Run batches until nothing is new; the last answer says so."""
        runs = []
        while True:
            run = self.frazil("run", self.stream, "--json")
            assert run.code == 0, run.out + run.err
            runs.append(run)
            if "next_offsets" in run.out:
                return runs


def good_values(count: int, start: int = 0) -> list[bytes | None]:
    """Make records that fit the lab's columns."""
    return [
        json.dumps({"id": i, "name": f"n{i}", "amount": i % 100 + 0.25}).encode()
        for i in range(start, start + count)
    ]


@pytest.fixture(scope="session")
def sampled(pytestconfig: pytest.Config) -> bool:
    """Tell a storm with many rounds whether a few are enough."""
    return bool(pytestconfig.getoption("sample"))


@pytest.fixture(scope="session")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """Start broker and Spark once; FRAZIL_TEST_HOME names one that runs already."""
    given = os.environ.get("FRAZIL_TEST_HOME")
    if given:
        yield Stack.read(Path(given))
        return
    home = tmp_path_factory.mktemp("stack") / "home"
    environment = {
        **os.environ,
        **FREE_PORTS,
        "FRAZIL_HOME": str(home),
    }
    command = [str(FRAZIL), "stack"]
    try:
        subprocess.run(
            [*command, "up", "--only", "kafka,spark", "--with", "registry"],
            env=environment,
            check=True,
        )
        yield Stack.read(home)
    finally:
        subprocess.run([*command, "down"], env=environment, check=True)


@pytest.fixture
def lab(stack: Stack, tmp_path: Path) -> Lab:
    """Return a stream, a topic name and a table of a test's own."""
    stream = f"s{secrets.token_hex(4)}"
    made = Lab(stack, tmp_path, stream)
    made.write_stream(
        stream=stream,
        owner="tests@example.org",
        source={"topic": stream},
        value={"convert": "json", "columns": {"id": "long!", "name": "string", "amount": "double"}},
        table={"name": made.table, "partition_by": ["bucket(id, 2)"]},
        batch={"max_records": 200},
        errors={"max_bad_ratio": 0.5},
    )
    return made


@pytest.fixture
def registry(lab: Lab) -> Iterator["RegistryLab"]:
    """Open the stack's registry; the topic is there, the stream decodes by schema id."""
    from support.registry_lab import RegistryLab  # noqa: PLC0415 - it needs this module

    with SchemaRegistryClient({"url": lab.stack.registry_url}) as client:
        made = RegistryLab(lab, client)
        lab.create_topic()
        made.write_stream()
        yield made


@pytest.fixture(scope="session")
def molds(tmp_path_factory: pytest.TempPathFactory) -> Molds:
    """Keep the lakes that many tests begin with."""
    return Molds(tmp_path_factory.mktemp("molds"))


@pytest.fixture
def lake(molds: Molds) -> Iterator[Lake]:
    """Return a fresh catalog with the stream `orders` begun at offset 0 of two partitions."""
    with molds.begin(make_stream()) as lake:
        yield lake


@pytest.fixture
def work(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> Iterator[Workspace]:
    """Open the lake's stream in another process's way: by connections that lead to no server."""
    preset = lake.store.preset
    content = {"extra": {"catalog": preset.name, **preset.properties}}
    monkeypatch.setenv("AIRFLOW_CONN_ICEBERG_DEFAULT", json.dumps(content))
    monkeypatch.setenv("AIRFLOW_CONN_KAFKA_DEFAULT", NO_KAFKA)
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_CONNECT_DEFAULT", NO_SPARK)
    work = Workspace(lake.stream, lake.folder, "run-1")
    yield work
    work.store.catalog.close()
