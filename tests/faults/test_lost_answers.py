"""Answers get lost between PyIceberg's REST client and a REST catalog (docs/faults.md, A and J4).

The commits arrive at the reference server; the wire in front of it cuts the connection, keeps a
commit, sends it twice, or says something else than the server did.
"""

import json
import secrets
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from urllib.parse import urlparse

import pytest
import stamina
from support.lake import Lake, make_stream, passed

from faults.imagined_kafka import find_faults, list_files
from faults.rest_catalog import run_rest_catalog
from faults.wires import Wire, landed_then, overtaken_by, refused, run_wire, sent_twice
from frazil.connections.clients import find_catalog
from frazil.connections.lookup import find_connection
from frazil.errors import CatalogUnavailableError, FrazilError, SupersededError
from frazil.iceberg.catalog import TableStore
from frazil.iceberg.commit_retry import MAX_ATTEMPTS
from frazil.iceberg.ledger_archive import read_archive
from frazil.ingest.messages import BatchPlan, Published, Staged
from frazil.ingest.pipeline import publish_staged
from frazil.ledger.recovery_point import keys
from frazil.observability.timeline_table import read_timeline
from frazil.workspace import Workspace
from frazil_stack.drills.faulty_catalog import forbid_commits, lose_first_answer, write_connection

pytestmark = pytest.mark.stack
LOST = [409, 500, 502, 503, 504, 0]
IDS = ["409", "500", "502", "503", "504", "cut"]


class RestLake(Lake):
    """A stream whose catalog is reached by REST, through the connection of the environment."""

    @cached_property
    def store(self) -> TableStore:
        return TableStore(find_catalog("iceberg_default"))

    def publish_all(self, plan: BatchPlan, staged: Staged) -> Published:
        """Publish as the last task of a run does, with a client of its own."""
        work = Workspace(self.stream, self.folder, "test")
        try:
            return publish_staged(work, plan, staged, passed(plan, staged))
        finally:
            work.store.catalog.close()

    def told(self) -> list[str]:
        """List the kinds of what the line of time tells."""
        work = Workspace(self.stream, self.folder, "test")
        return [event.kind for event in read_timeline(work, datetime.min.replace(tzinfo=UTC))]

    @property
    def kinds(self) -> list[str]:
        """List the kinds of all snapshots in the metadata."""
        return [entry.summary.get(keys.KIND, "") for entry in self.history.entries.values()]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[int, Path]]:
    """Run one REST catalog for this file; give its port and folder."""
    folder = tmp_path_factory.mktemp("rest")
    with run_rest_catalog(folder) as properties:
        port = urlparse(properties["uri"]).port
        assert port is not None
        yield port, folder


@pytest.fixture
def wire(server: tuple[int, Path], monkeypatch: pytest.MonkeyPatch) -> Iterator[Wire]:
    """Let every client of the test reach the catalog through one wire."""
    with run_wire(server[0]) as (wire, port):
        extra = {"catalog": "lake", "type": "rest", "uri": f"http://127.0.0.1:{port}"}
        monkeypatch.setenv("AIRFLOW_CONN_ICEBERG_DEFAULT", json.dumps({"extra": extra}))
        yield wire


@pytest.fixture
def rest(server: tuple[int, Path], wire: Wire) -> Iterator[RestLake]:
    """Begin a stream of the test's own at offset 0 of two partitions."""
    del wire  # must be there before the first client
    table = f"lost.t{secrets.token_hex(4)}"
    lake = RestLake(server[1], make_stream(table={"name": table}))
    lake.begin()
    with stamina.set_testing(True, attempts=MAX_ATTEMPTS, cap=True):
        yield lake
    lake.close()


@pytest.mark.storm(2)
@pytest.mark.parametrize("status", LOST, ids=IDS)
def test_a2_a3_a_batch_that_landed_at_the_server_without_an_answer_is_found_there(
    rest: RestLake, wire: Wire, status: int
) -> None:
    plan = rest.plan(3, 2)
    staged = rest.stage(plan)
    before = list_files(rest)
    wire.script = [landed_then(status)]

    done = rest.publish_all(plan, staged)

    assert done.outcome == "ALREADY"
    assert rest.kinds.count(keys.INGEST) == 1
    assert rest.told().count(keys.INGEST) == 1
    assert before <= list_files(rest)
    assert find_faults(rest, 3, 2) == ()


def test_what_a_drill_does_to_a_catalog_it_does_to_this_one_too(
    rest: RestLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = rest.plan(3, 2)
    staged = rest.stage(plan)
    given = find_connection("iceberg_default")

    monkeypatch.setenv("AIRFLOW_CONN_ICEBERG_DEFAULT", write_connection(given, forbid_commits))
    with pytest.raises(CatalogUnavailableError, match="this commit is forbidden"):
        rest.publish_all(plan, staged)
    monkeypatch.setenv("AIRFLOW_CONN_ICEBERG_DEFAULT", write_connection(given, lose_first_answer))
    done = rest.publish_all(plan, staged)

    assert done.outcome == "ALREADY"
    assert find_faults(rest, 3, 2) == ()


@pytest.mark.storm(2)
@pytest.mark.parametrize("status", LOST, ids=IDS)
def test_a2_a3_a_branch_and_ledger_rows_that_landed_without_an_answer_count_once(
    rest: RestLake, wire: Wire, status: int
) -> None:
    plan = rest.plan(3, 2)
    wire.script = [landed_then(status)]
    staged = rest.stage(plan)
    wire.script = [landed_then(status)] * 2

    with suppress(CatalogUnavailableError):
        rest.publish_all(plan, staged)
    done = rest.publish_all(plan, staged)

    assert wire.script == []
    assert list(read_archive(rest.store, plan.table, plan.table_uuid).entries) == [done.snapshot_id]
    assert find_faults(rest, 3, 2) == ()


def test_a5_a_commit_that_arrives_between_the_next_turns_look_and_commit_counts_once(
    rest: RestLake, wire: Wire
) -> None:
    plan = rest.plan(3, 2)
    staged = rest.stage(plan)
    wire.script = [wire.hold, overtaken_by(wire.deliver)]

    done = rest.publish_all(plan, staged)

    assert done.outcome == "ALREADY"
    assert wire.replies[-3:-1] == [200, 409], wire.replies
    assert find_faults(rest, 3, 2) == ()


@pytest.mark.core
@pytest.mark.storm(1)
@pytest.mark.parametrize("ends", [(3, 2), (9, 9)], ids=["same batch", "longer batch"])
def test_a5_a_commit_that_arrives_after_the_retry_is_refused_by_the_server(
    rest: RestLake, wire: Wire, ends: tuple[int, int]
) -> None:
    plan = rest.plan(3, 2)
    staged = rest.stage(plan)
    rival = rest.plan(*ends)
    second = rest.stage(rival)
    wire.script = [wire.hold, overtaken_by(lambda: rest.publish(rival, second))]

    if rival == plan:
        assert rest.publish_all(plan, staged).outcome == "ALREADY"
    else:
        with pytest.raises(SupersededError):
            rest.publish_all(plan, staged)

    assert wire.deliver().status == 409
    assert find_faults(rest, *ends) == ()


@pytest.mark.parametrize("status", [401, 403])
def test_j2_a_commit_that_the_server_forbids_leaves_the_stage_for_the_next_try(
    rest: RestLake, wire: Wire, status: int
) -> None:
    plan = rest.plan(3, 2)
    staged = rest.stage(plan)
    files, head = list_files(rest), rest.history.head
    wire.script = (
        [refused(status)] * 4 * MAX_ATTEMPTS
    )  # some clients log in again and send it twice

    with pytest.raises(FrazilError, match="said by the wire"):
        rest.publish_all(plan, staged)

    wire.script.clear()
    assert (rest.history.head, list_files(rest) >= files) == (head, True)
    assert rest.publish_all(plan, staged).outcome == "PUBLISHED"
    assert find_faults(rest, 3, 2) == ()


def test_j4_a_commit_that_a_proxy_sends_twice_lands_once(rest: RestLake, wire: Wire) -> None:
    plan = rest.plan(3, 2)
    staged = rest.stage(plan)
    wire.script = [sent_twice]

    done = rest.publish_all(plan, staged)

    assert done.outcome == "ALREADY"
    assert wire.replies.count(409) == 1, wire.replies
    assert rest.kinds.count(keys.INGEST) == 1
    assert find_faults(rest, 3, 2) == ()
