"""The embedded stack for real: up, used by its clients, hurt, down; and nothing stays behind."""

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import psutil
import pytest
import stamina
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from pyiceberg.catalog import load_catalog

from frazil_stack.processes import find_processes

pytestmark = pytest.mark.stack

REPO = Path(__file__).parents[2]
COMMAND = (sys.executable, "-m", "frazil_cli.main")
PORTS = {f"FRAZIL_{name}_PORT": "0" for name in ("KAFKA", "KAFKA_CONTROLLER", "SPARK", "AIRFLOW")}
IDLE_MEMORY_LIMIT_MB = 3584

Json = dict[str, object]


@dataclass(frozen=True)
class Home:
    """A stack of a test's own, driven through the command line."""

    path: Path

    def frazil(self, *words: str, **extra: str) -> "subprocess.CompletedProcess[str]":
        """Run `frazil stack …` in a process of its own."""
        environment = {
            **os.environ,
            **PORTS,
            "FRAZIL_HOME": str(self.path),
            "FRAZIL_STREAMS": str(self.path.parent / "streams"),
            "FRAZIL_JARS": os.environ.get("FRAZIL_JARS", str(REPO / ".frazil" / "jars")),
            "PYTHONPATH": str(REPO / "include"),
        }
        return subprocess.run(
            [*COMMAND, "stack", *words],
            env=environment | extra,
            capture_output=True,
            text=True,
            timeout=400,
            check=False,
        )

    def up(self, *words: str, **extra: str) -> str:
        """Bring the stack up and give the progress that it told."""
        done = self.frazil("up", *words, **extra)
        assert done.returncode == 0, done.stderr
        return done.stderr

    def status(self) -> Json:
        """Read `status --json`."""
        return cast("Json", json.loads(self.frazil("status", "--json").stdout))

    def at(self, *keys: str) -> str:
        """Follow keys into what `up` wrote, else into the status, and give the text there."""
        written = json.loads((self.path / "stack" / "stack.json").read_text())
        found: object = written if keys[0] in written else self.status()
        for key in keys:
            found = cast("Json", found)[key]
        return str(found)

    def services(self) -> dict[str, object]:
        """Give each service's own pid; parsers and tasks below it come and go."""
        parts = cast("dict[str, Json]", self.status()["parts"])
        return {name: part["pid"] for name, part in parts.items()}

    def pids(self) -> set[int]:
        """Give the pids of all processes of this stack."""
        return {process.pid for process in find_processes(self.path)}


def make_home(folder: Path, *tables: str) -> Home:
    """Make an empty home beside stream files for these tables."""
    streams = folder / "streams"
    streams.mkdir(parents=True)
    for table in tables:
        write_stream(streams, table)
    return Home((folder / "home").resolve())


def write_stream(streams: Path, table: str) -> None:
    (streams / f"{table.replace('.', '_')}.yaml").write_text(f"table: {{name: {table}}}\n")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Home]:
    """Start the whole stack once for the tests that only use it."""
    home = make_home(tmp_path_factory.mktemp("whole"), "demo.flights")
    try:
        home.up()
        yield home
    finally:
        home.frazil("down")
        assert home.pids() == set()


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    """Give a test a home of its own and leave nothing of it running."""
    made = make_home(tmp_path)
    yield made
    made.frazil("down")


def create_topic(config: dict[str, str], name: str) -> None:
    """Create a topic of one partition."""
    admin = AdminClient(config)
    admin.create_topics([NewTopic(name, 1, 1)])[name].result(30)


@stamina.retry(on=TimeoutError, attempts=3)
def call_airflow(home: Home, path: str, body: Json | None = None, token: str = "") -> Json:
    """Call Airflow's REST API; two stacks on two cores may make it late, never wrong."""
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {token}"}
    data = json.dumps(body).encode() if body is not None else None
    url = home.at("airflow", "url") + path
    request = urllib.request.Request(url, data, headers)  # noqa: S310 - this machine
    with urllib.request.urlopen(request, timeout=60) as response:  # noqa: S310 - this machine
        return cast("Json", json.load(response))


def log_in(home: Home) -> str:
    """Log in with the generated password."""
    password = Path(home.at("airflow", "password_file")).read_text().strip()
    login: Json = {"username": home.at("airflow", "user"), "password": password}
    return str(call_airflow(home, "/auth/token", login)["access_token"])


def is_alive(pid: int) -> bool:
    """Say whether a process runs; one that is dead and not yet reaped does not."""
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def test_up_again_says_so_and_starts_nothing(whole: Home) -> None:
    before = whole.services()

    told = whole.up()

    assert "was already up" in told
    assert whole.services() == before


def test_status_tells_clients_where_everything_is(whole: Home) -> None:
    status = whole.status()
    written = json.loads((whole.path / "stack" / "stack.json").read_text())

    assert status["state"] == "up"
    assert {key: status[key] for key in written} == written
    parts = cast("dict[str, Json]", status["parts"])
    asked_for = {name: part for name, part in parts.items() if name != "registry"}
    assert parts["registry"]["state"] == "stopped"
    assert {part["state"] for part in asked_for.values()} == {"running"}
    assert {part["pid"] for part in asked_for.values()} <= whole.pids()


def test_the_idle_stack_fits_a_small_machine(whole: Home) -> None:
    # Not `rss_mb`: Airflow's workers are forks, whose common pages it counts in each of them.
    assert 1000 < int(whole.at("pss_mb")) < IDLE_MEMORY_LIMIT_MB


def test_nothing_listens_beyond_this_machine(whole: Home) -> None:
    addresses: set[str] = set()
    for pid in whole.pids():
        with contextlib.suppress(psutil.NoSuchProcess):  # short-lived ones end meanwhile
            addresses |= {
                connection.laddr.ip.removeprefix("::ffff:")
                for connection in psutil.Process(pid).net_connections(kind="inet")
                if connection.status == psutil.CONN_LISTEN
            }

    assert addresses == {"127.0.0.1"}


def test_kafka_keeps_what_is_sent_and_creates_no_topic_unasked(whole: Home) -> None:
    bootstrap = {"bootstrap.servers": whole.at("kafka", "bootstrap")}
    create_topic(bootstrap, "kept")
    producer = Producer(bootstrap)
    producer.produce("kept", b"value")
    assert producer.flush(15) == 0

    consumer = Consumer({**bootstrap, "group.id": "g", "auto.offset.reset": "earliest"})
    consumer.subscribe(["kept"])
    message = consumer.poll(20)
    consumer.close()

    assert message is not None
    assert message.value() == b"value"
    assert AdminClient(bootstrap).list_topics("misspelt", 10).topics["misspelt"].error is not None


def test_spark_and_pyiceberg_see_one_table(whole: Home) -> None:
    code = (
        "import sys; from pyspark.sql import SparkSession\n"
        "spark = SparkSession.builder.remote(sys.argv[1]).getOrCreate()\n"
        "spark.sql('create namespace lake.seen')\n"
        "spark.sql('create table lake.seen.t (id bigint) using iceberg')\n"
        "spark.sql('insert into lake.seen.t values (1), (2)')\n"
    )
    url = whole.at("spark_connect", "url")

    subprocess.run([sys.executable, "-c", code, url], check=True, timeout=120)

    catalog = cast("Json", whole.status()["catalog"])
    properties = cast("dict[str, str]", catalog["properties"])
    table = load_catalog(str(catalog["name"]), **properties).load_table("seen.t")
    assert sorted(table.scan().to_arrow()["id"].to_pylist()) == [1, 2]
    assert table.location() == f"{properties['warehouse']}/seen/t"


def test_airflow_lets_in_who_has_the_password_and_nobody_else(whole: Home) -> None:
    token = log_in(whole)

    assert call_airflow(whole, "/api/v2/dags", token=token)["dags"] is not None
    with pytest.raises(urllib.error.HTTPError, match="401"):
        call_airflow(whole, "/auth/token", {"username": "admin", "password": "admin"})
    with pytest.raises(urllib.error.HTTPError, match="401"):
        call_airflow(whole, "/api/v2/dags")


def test_two_homes_run_side_by_side_and_end_apart(whole: Home, home: Home) -> None:
    before = whole.services()

    home.up("--only", "kafka")

    assert home.at("kafka", "bootstrap") != whole.at("kafka", "bootstrap")
    assert home.frazil("down").returncode == 0
    assert home.pids() == set()
    assert whole.services() == before


def test_down_ends_every_process_and_data_and_ports_stay(home: Home) -> None:
    home.up("--only", "kafka")
    bootstrap = {"bootstrap.servers": home.at("kafka", "bootstrap")}
    create_topic(bootstrap, "kept")
    pids = home.pids()

    assert home.frazil("down").returncode == 0
    assert home.pids() == set()
    assert not any(is_alive(pid) for pid in pids)
    assert home.frazil("status").returncode == 1

    assert "kafka: ready" in home.up("--only", "kafka")
    assert home.at("kafka", "bootstrap") == bootstrap["bootstrap.servers"]
    assert "kept" in AdminClient(bootstrap).list_topics(timeout=15).topics


def test_the_first_spark_server_of_a_home_leaves_its_classes_to_the_next(home: Home) -> None:
    jars = home.path / "jars"
    fetched = os.environ.get("FRAZIL_JARS", REPO / ".frazil" / "jars")
    others = shutil.ignore_patterns("*.jsa", "*.part", "connect", "flink", "rest")
    shutil.copytree(fetched, jars, ignore=others)
    own = {"FRAZIL_JARS": str(jars)}
    home.up("--only", "spark", **own)
    assert home.frazil("down", **own).returncode == 0

    home.up("--only", "spark", **own)

    (archive,) = jars.glob("spark-*.jsa")
    server = psutil.Process(int(str(home.services()["spark_connect"])))
    assert str(archive) in {part.path for part in server.memory_maps()}
    assert home.frazil("down", **own).returncode == 0
    assert [*jars.glob("spark-*.part")] == []


def test_down_twice_is_as_good_as_once(home: Home) -> None:
    first, second = home.frazil("down"), home.frazil("down")

    assert (first.returncode, second.returncode) == (0, 0)


def test_down_ends_what_a_killed_supervisor_left(home: Home) -> None:
    home.up("--only", "kafka")
    os.kill(int(home.at("parts", "supervisor", "pid")), signal.SIGKILL)
    assert home.pids()

    done = home.frazil("down")

    assert done.returncode == 0, done.stderr
    assert home.pids() == set()


def test_up_recovers_from_a_killed_supervisor(home: Home) -> None:
    home.up("--only", "kafka")
    orphan = int(home.at("parts", "kafka", "pid"))
    os.kill(int(home.at("parts", "supervisor", "pid")), signal.SIGKILL)

    home.up("--only", "kafka")

    assert not psutil.pid_exists(orphan)
    assert home.at("state") == "up"


def test_a_killed_service_comes_back_by_itself(home: Home) -> None:
    home.up("--only", "kafka")
    first = int(home.at("parts", "kafka", "pid"))

    os.kill(first, signal.SIGKILL)
    home.up("--only", "kafka")

    assert int(home.at("parts", "kafka", "pid")) != first


def test_a_taken_port_stops_up_before_anything_runs(home: Home) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = home.frazil("up", "--only", "kafka", FRAZIL_KAFKA_PORT=str(port))

    assert done.returncode == 1
    assert f"port {port}" in done.stderr
    assert f"process {os.getpid()}" in done.stderr
    assert "FRAZIL_KAFKA_PORT" in done.stderr
    assert home.pids() == set()


def test_a_service_that_dies_at_its_start_shows_its_log_and_leaves_nothing(home: Home) -> None:
    done = home.frazil("up", "--only", "kafka,spark", FRAZIL_SPARK_MEMORY="1m")

    assert done.returncode == 1
    assert "Too small maximum heap" in done.stderr
    assert str(home.path / "logs" / "spark_connect.log") in done.stderr
    assert home.pids() == set()


def test_a_failed_up_spares_what_ran_before(home: Home) -> None:
    home.up("--only", "kafka")
    kafka = home.at("parts", "kafka", "pid")

    assert home.frazil("up", "--only", "spark", FRAZIL_SPARK_MEMORY="1m").returncode == 1

    assert home.at("parts", "kafka", "pid") == kafka
    assert home.at("parts", "spark_connect", "state") != "running"
