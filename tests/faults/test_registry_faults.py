"""The schema registry's faults: it waits, it never drops or quarantines what is good (E17)."""

import base64
import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
import stamina
from confluent_kafka.schema_registry.error import SchemaRegistryError
from conformance.planted import Search
from pyiceberg.catalog import load_catalog
from support.avro_bytes import encode, record
from support.forked import Run
from support.http_server import Request, serve_http
from support.registry_lab import RegistryLab, frame, read_table

from faults.batches import Batches, EventfulEngine
from faults.judges import assert_audited
from frazil.connections.clients import find_spark_remote
from frazil.errors import RegistryUnavailableError, UnknownSchemaIdError
from frazil.ingest.staging import stage_batch

pytestmark = [pytest.mark.spark, pytest.mark.stack]

V1 = record(("id", "long"))
NAME = {"name": "name", "type": ["null", "string"], "default": None}
V2 = {**V1, "fields": [{"name": "id", "type": "long"}, NAME]}
V3 = record(("id", "string"))
SECRET = "planted-registry-password"  # noqa: S105 - of a test
NO_REGISTRY = json.dumps(
    {"conn_type": "http", "host": "http://127.0.0.1:9", "login": "me", "password": SECRET}
)


def assert_waits(run: Run, error: str, *facts: str) -> None:
    """See a typed error that names its facts and the next step."""
    assert run.code == 1, run.out + run.err
    told = json.loads(run.out)
    assert told["error"] == error, told
    assert told["next_step"]
    for fact in facts:
        assert fact in told["facts"], told


def read_refs(registry: RegistryLab) -> dict[str, int]:
    """Read where the table's branches are; empty where there is no table."""
    catalog = load_catalog("lake", **registry.lab.stack.catalog_properties)
    if not catalog.table_exists(registry.lab.table):
        return {}
    refs = catalog.load_table(registry.lab.table).metadata.refs
    return {name: ref.snapshot_id for name, ref in refs.items()}


def test_a_registry_that_is_down_stops_a_new_stream_at_its_plan(registry: RegistryLab) -> None:
    lab, known = registry.lab, registry.register(json.dumps(V1))
    registry.send([frame(known, encode(V1, {"id": 1}))])

    run = lab.frazil("run", lab.stream, "--json", AIRFLOW_CONN_SCHEMA_REGISTRY_DEFAULT=NO_REGISTRY)

    assert_waits(run, "RegistryUnavailable", "127.0.0.1:9", f"{lab.topic}-value")
    assert read_refs(registry) == {}
    assert SECRET not in run.out + run.err
    search = Search()
    search.read_files(lab.stack.home)
    assert search.found == set()
    (lab.folder / "note").write_text(SECRET)
    search.read_files(lab.folder)
    assert search.found == {str(lab.folder / "note")}  # the search finds one
    lab.drain()
    assert [row["id"] for row in read_table(lab)] == [1]


@contextmanager
def guard(address: str, seen: list[bool]) -> Iterator[str]:
    """Ask for the planted password before a registry; note for each request whether it came."""
    wanted = "Basic " + base64.b64encode(f"me:{SECRET}".encode()).decode()

    def answer(request: Request) -> tuple[int, bytes]:
        seen.append(request.headers.get("Authorization") == wanted)
        if not seen[-1]:
            return 401, b'{"error_code": 40101, "message": "Unauthorized"}'
        try:
            with urlopen(f"{address}{request.path}", timeout=10) as found:  # noqa: S310 - a registry
                return found.status, found.read()
        except HTTPError as error:
            return error.code, error.read()

    with serve_http(answer) as place:
        yield place


def test_the_password_of_a_registry_that_answers_is_seen_nowhere(registry: RegistryLab) -> None:
    lab, known = registry.lab, registry.register(json.dumps(V1))
    registry.send([frame(known, encode(V1, {"id": 1}))])
    seen: list[bool] = []
    with guard(lab.stack.registry_url, seen) as place:
        login = {"conn_type": "http", "host": place, "login": "me"}

        def run(password: str) -> Run:
            connection = json.dumps({**login, "password": password})
            given = {"AIRFLOW_CONN_SCHEMA_REGISTRY_DEFAULT": connection}
            return lab.frazil("run", lab.stream, "--json", **given)

        refused = run("planted-other")
        good = run(SECRET)

    assert_waits(refused, "RegistryUnavailable", "refuses the login, the password, the key or the")
    assert good.code == 0, good.out + good.err
    assert [row["id"] for row in read_table(lab)] == [1]
    assert {True, False} == set(seen)
    assert "planted-" not in refused.out + refused.err + good.out + good.err
    search = Search()
    search.read_files(lab.stack.home)
    search.read_files(lab.folder)
    assert search.found == set()


@pytest.mark.core
def test_an_id_that_the_registry_does_not_know_waits_and_then_is_read(
    registry: RegistryLab,
) -> None:
    lab, known = registry.lab, registry.register(json.dumps(V1))
    good = frame(known, encode(V1, {"id": 1}))
    registry.send([good] * 3)
    lab.drain()
    before = read_refs(registry)
    unknown = 2_000_000_000
    registry.send([good, frame(unknown, encode(V1, {"id": 2}))])

    run = lab.frazil("run", lab.stream, "--json")

    assert_waits(run, "UnknownSchemaId", str(unknown), lab.topic, f"first at {lab.topic}:1:")
    assert read_refs(registry) == before
    registry.write_stream(unknown_id="quarantine")
    lab.drain()
    letters = read_table(lab, f"{lab.table}__dead_letters")
    assert [r["reason"] for r in letters] == ["unknown_schema_id"]
    assert [row["id"] for row in read_table(lab)] == [1] * 4
    assert_audited(lab)


def test_a_schema_of_another_subject_is_looked_up_and_a_deleted_version_still_read(
    registry: RegistryLab,
) -> None:
    lab, first = registry.lab, registry.register(json.dumps(V1))
    other = registry.register(json.dumps(V2), part="elsewhere")
    registry.send(
        [frame(first, encode(V1, {"id": 1})), frame(other, encode(V2, {"id": 2, "name": "x"}))]
    )
    registry.client.delete_version(f"{lab.topic}-value", 1)
    registry.write_stream(columns={"id": "long!"})

    lab.drain()

    assert [(r["id"], r["_kafka"]["schema_id"]) for r in read_table(lab)] == [
        (1, first),
        (2, other),
    ]
    assert_audited(lab)


def test_an_incompatible_schema_is_refused_by_the_registry_or_stops_the_batch(
    registry: RegistryLab,
) -> None:
    lab, first = registry.lab, registry.register(json.dumps(V1))
    registry.client.set_compatibility(f"{lab.topic}-value", "BACKWARD")
    with pytest.raises(SchemaRegistryError, match="409"):
        registry.register(json.dumps(V3))
    second = registry.register(json.dumps(V2))
    registry.client.set_compatibility(f"{lab.topic}-value", "NONE")
    third = registry.register(json.dumps(V3))
    registry.write_stream(columns={"id": "long!"})
    registry.send(
        [frame(first, encode(V1, {"id": 1})), frame(second, encode(V2, {"id": 2, "name": None}))]
    )
    lab.drain()
    registry.send([frame(third, encode(V3, {"id": "3"}))])

    run = lab.frazil("run", lab.stream, "--json")

    assert_waits(run, "SchemaMisfit", f"schema {third}", "string, which long cannot hold exactly")
    lab.write_stream(schema={"other": "quarantine"}, errors={"max_bad_ratio": 1.0})
    lab.drain()
    assert [r["reason"] for r in read_table(lab, f"{lab.table}__dead_letters")] == ["type_mismatch"]
    assert [row["id"] for row in read_table(lab)] == [1, 2]
    assert_audited(lab)


def test_e38_a_record_of_a_schema_that_cannot_be_read_is_a_letter(registry: RegistryLab) -> None:
    lab, known = registry.lab, registry.register(json.dumps(V1))
    nested = record(("id", "long"))
    for number in range(110):
        nested = {**record(("a", nested)), "name": f"R{number}"}
    deep = registry.register(json.dumps(nested), part="deep")
    registry.write_stream(columns={"id": "long!"})
    lab.write_stream(errors={"max_bad_ratio": 1.0})
    registry.send([frame(number, encode(V1, {"id": 1})) for number in (known, deep, known)])

    lab.drain()

    (letter,) = read_table(lab, f"{lab.table}__dead_letters")
    assert letter["reason"] == "unreadable_schema"
    assert letter["detail"].startswith(f"schema {deep} is nested")
    assert [row["id"] for row in read_table(lab)] == [1, 1]
    assert_audited(lab)


def kill_registry(registry: RegistryLab) -> None:
    """Kill its process; the stack starts it again."""
    status = registry.lab.frazil("stack", "status", "--json").json
    assert isinstance(status, dict)
    os.kill(status["parts"]["registry"]["pid"], signal.SIGKILL)


def wait_for_registry(batches: Batches) -> None:
    """Wait until it answers again."""
    for attempt in stamina.retry_context(on=RegistryUnavailableError, timeout=120, attempts=60):
        with attempt:
            batches.open().registry("schema_registry_default").probe()


def test_a_registry_that_is_killed_while_spark_works_costs_only_a_wait(
    registry: RegistryLab, batches: Batches
) -> None:
    other = registry.register(json.dumps(V1), part="elsewhere")
    registry.write_stream(columns={"id": "long!"})
    registry.send([frame(other, encode(V1, {"id": 1}))])
    plan, work = batches.plan(), batches.open()
    kill = partial(kill_registry, registry)
    work.__dict__["engine"] = EventfulEngine(find_spark_remote(), after=kill)

    with pytest.raises(RegistryUnavailableError, match="asking for schema"):
        stage_batch(work, plan)

    assert batches.places() == {}
    wait_for_registry(batches)
    assert batches.publish().rows_written == 1
    assert list(batches.table.metadata.refs) == ["main"]
    assert batches.faults() == ()


def test_a_registry_that_is_killed_between_plan_and_stage_comes_back_with_its_schemas(
    registry: RegistryLab, batches: Batches
) -> None:
    known = registry.register(json.dumps(V1))
    registry.send([frame(known, encode(V1, {"id": 1}))] * 2)
    plan, work = batches.plan(), batches.open()
    kill_registry(registry)

    with pytest.raises(RegistryUnavailableError):
        stage_batch(work, plan)

    wait_for_registry(batches)
    assert batches.publish().rows_written == 2
    assert batches.faults() == ()


def test_the_error_of_an_unknown_id_is_one_that_airflow_tries_again() -> None:
    assert UnknownSchemaIdError.retryable
