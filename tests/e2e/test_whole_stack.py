"""The whole embedded stack, as its clients and its user see it."""

import contextlib
import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import psutil
import pytest
import stamina
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient
from pyiceberg.catalog import load_catalog
from support.stack_home import Home, Json, create_topic

from e2e.conftest import Airflow

pytestmark = pytest.mark.stack

IDLE_MEMORY_LIMIT_MB = 3584


@pytest.fixture
def whole(airflow: Airflow) -> Home:
    """Return the stack that all end-to-end tests share."""
    return Home(airflow.home)


@pytest.fixture
def other(tmp_path: Path) -> Iterator[Home]:
    """Return an empty home of the test's own and leave nothing of it running."""
    (tmp_path / "streams").mkdir()
    home = Home((tmp_path / "home").resolve())
    yield home
    home.frazil("down")


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


def test_the_idle_stack_fits_a_small_machine(airflow: Airflow) -> None:
    assert 1000 < airflow.idle_pss_mb < IDLE_MEMORY_LIMIT_MB


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


def test_two_homes_run_side_by_side_and_end_apart(whole: Home, other: Home) -> None:
    before = whole.services()

    other.up("--only", "kafka")

    assert other.at("kafka", "bootstrap") != whole.at("kafka", "bootstrap")
    assert other.frazil("down").returncode == 0
    assert other.pids() == set()
    assert whole.services() == before
