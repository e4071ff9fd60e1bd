"""Start, damage and stop the embedded stack, without Airflow; nothing stays behind."""

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from confluent_kafka.admin import AdminClient
from support.stack_home import REPO, Home, create_topic

pytestmark = pytest.mark.stack


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Home]:
    """Return the home of most tests of this file and leave nothing of it running."""
    yield from make_home(tmp_path_factory.mktemp("shared"))


@pytest.fixture
def home(shared: Home) -> Home:
    """Return a home whose broker runs; start it if the last test stopped it."""
    shared.up("--only", "kafka")
    return shared


@pytest.fixture
def fresh(tmp_path: Path) -> Iterator[Home]:
    """Return an empty home of the test's own and leave nothing of it running."""
    yield from make_home(tmp_path)


def make_home(folder: Path) -> Iterator[Home]:
    (folder / "streams").mkdir()
    home = Home((folder / "home").resolve())
    yield home
    home.frazil("down")
    assert home.pids() == set()


def is_alive(pid: int) -> bool:
    """Return whether a process runs; one that is dead and not yet reaped does not."""
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def test_down_ends_every_process_and_data_and_ports_stay(home: Home) -> None:
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


@pytest.mark.storm(0)  # the archive is made when a server ends, which takes a minute
def test_the_first_spark_server_of_a_home_leaves_its_classes_to_the_next(fresh: Home) -> None:
    jars = fresh.path / "jars"
    fetched = os.environ.get("FRAZIL_JARS", REPO / ".frazil" / "jars")
    others = shutil.ignore_patterns("*.jsa", "*.part", "connect", "flink", "rest")
    shutil.copytree(fetched, jars, ignore=others)
    own = {"FRAZIL_JARS": str(jars)}
    fresh.up("--only", "spark", **own)
    assert fresh.frazil("down", **own).returncode == 0

    fresh.up("--only", "spark", **own)

    (archive,) = jars.glob("spark-*.jsa")
    server = psutil.Process(int(str(fresh.services()["spark_connect"])))
    assert str(archive) in {part.path for part in server.memory_maps()}
    assert fresh.frazil("down", **own).returncode == 0
    assert [*jars.glob("spark-*.part")] == []


def test_down_twice_is_as_good_as_once(fresh: Home) -> None:
    first, second = fresh.frazil("down"), fresh.frazil("down")

    assert (first.returncode, second.returncode) == (0, 0)


def test_down_ends_what_a_killed_supervisor_left(home: Home) -> None:
    os.kill(int(home.at("parts", "supervisor", "pid")), signal.SIGKILL)
    assert home.pids()

    done = home.frazil("down")

    assert done.returncode == 0, done.stderr
    assert home.pids() == set()


def test_up_recovers_from_a_killed_supervisor(home: Home) -> None:
    orphan = int(home.at("parts", "kafka", "pid"))
    os.kill(int(home.at("parts", "supervisor", "pid")), signal.SIGKILL)

    home.up("--only", "kafka")

    assert not psutil.pid_exists(orphan)
    assert home.at("state") == "up"


def test_a_killed_service_comes_back_by_itself(home: Home) -> None:
    first = int(home.at("parts", "kafka", "pid"))

    os.kill(first, signal.SIGKILL)
    home.up("--only", "kafka")

    assert int(home.at("parts", "kafka", "pid")) != first


def test_a_service_that_dies_at_its_start_shows_its_log_and_leaves_nothing(fresh: Home) -> None:
    done = fresh.frazil("up", "--only", "kafka,spark", FRAZIL_SPARK_MEMORY="1m")

    assert done.returncode == 1
    assert "Too small maximum heap" in done.stderr
    assert str(fresh.path / "logs" / "spark_connect.log") in done.stderr
    assert fresh.pids() == set()


def test_a_failed_up_spares_what_ran_before(home: Home) -> None:
    kafka = home.at("parts", "kafka", "pid")

    assert home.frazil("up", "--only", "spark", FRAZIL_SPARK_MEMORY="1m").returncode == 1

    assert home.at("parts", "kafka", "pid") == kafka
    assert home.at("parts", "spark_connect", "state") != "running"
