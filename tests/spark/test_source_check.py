"""`frazil verify-source` on real parts: PostgreSQL, events through Kafka, merges by Spark."""

import json
import threading
from collections.abc import Iterator

import pytest
from conftest import Lab
from pyspark.sql import SparkSession
from support.change_events import Message, event, send
from support.postgres import MISSING, PROGRAMS, Database, start_postgres

pytestmark = [pytest.mark.stack, pytest.mark.skipif(not PROGRAMS, reason=MISSING)]
Verified = dict[str, object]


@pytest.fixture(scope="module")
def database() -> Iterator[Database]:
    with start_postgres() as database:
        yield database


def capture(lab: Lab, database: Database, *ids: int) -> None:
    """Send the rows of the source as a connector sends them, and merge them."""
    found = database.ask(
        "SELECT id, name, pg_current_wal_insert_lsn() - '0/0'::pg_lsn FROM customers"
        " WHERE id = ANY(%s) ORDER BY id",
        [*ids],
    )
    place = {"db": "postgres", "table": "customers"}
    messages: list[Message] = [
        event(
            "c",
            json.dumps({"id": key, "name": name}),
            json.dumps({"id": key}),
            lsn=int(str(lsn)),
            **place,
        )
        for key, name, lsn in found
    ]
    send(lab.stack.bootstrap, lab.topic, messages)
    lab.drain()


def verify(lab: Lab, database: Database, wait: int = 0) -> tuple[int, Verified, str]:
    """Run the command; give its exit code, its result and its progress."""
    command = ("verify-source", lab.stream, "--connection", "shop_db", "--show-keys", "--json")
    shop = json.dumps(database.connection())
    run = lab.frazil(*command, f"--wait={wait}", AIRFLOW_CONN_SHOP_DB=shop)
    return run.code, json.loads(run.out), run.err


def plant(lab: Lab, *statements: str) -> None:
    """Change the state behind Frazil's back."""
    remote = str(lab.stack.facts["spark_connect"]["url"])
    spark = SparkSession.builder.remote(remote).create()
    for statement in statements:
        spark.sql(statement.replace("STATE", f"lake.{lab.table}")).collect()
    spark.stop()


@pytest.mark.core
def test_a_state_is_compared_with_its_source(lab: Lab, database: Database) -> None:
    database.ask("CREATE TABLE customers (id bigint PRIMARY KEY, name text)")
    database.ask("INSERT INTO customers SELECT i, 'n' || i FROM generate_series(1, 50) AS i")
    columns = {"id": "long!", "name": "string"}
    lab.write_stream(
        value={"convert": "json", "transform": "flatten_debezium", "columns": columns},
        table={"name": lab.table, "mode": "upsert", "id_columns": ["id"]},
    )
    lab.create_topic(partitions=1)
    capture(lab, database, *range(1, 51))

    equal = verify(lab, database)
    plant(
        lab,
        "UPDATE STATE SET name = 'planted' WHERE id = 7",
        "DELETE FROM STATE WHERE id = 8",
        "INSERT INTO STATE SELECT 99 AS id, name, _source, _kafka FROM STATE WHERE id = 9",
    )
    answers: list[tuple[int, Verified, str]] = []
    thread = threading.Thread(target=lambda: answers.append(verify(lab, database, wait=120)))
    thread.start()
    while thread.is_alive():  # the source goes on, and the state behind it
        database.ask("INSERT INTO customers SELECT max(id) + 100, 'new' FROM customers")
        capture(lab, database, int(str(database.ask("SELECT max(id) FROM customers")[0][0])))
        thread.join(1)

    assert (equal[0], equal[1]["verdict"]) == (0, "equal"), equal
    code, found, told = answers[0]
    assert (code, found["verdict"]) == (1, "different"), (found, told)
    keys = {"different": [{"id": "7"}], "missing": [{"id": "8"}], "extra": [{"id": "99"}]}
    assert found["keys"] == keys
    assert found["columns"] == {"name": 1}
    assert "planted" not in f"{found}{told}"
    assert "waiting up to" in told
