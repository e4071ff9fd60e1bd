"""Keys that a REST catalog gives out, which S3 refuses before a step is done (docs/faults.md, J2).

Spark's Java gets new ones where the catalog names an address for them. PyIceberg gets new ones
with each load of a table. Python workers need none: they write no file in a store.
"""

import json
import os
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

import pytest
from conformance.cells import encode, serve
from conformance.gateway import CLIENT_ID, CLIENT_SECRET, SCOPE
from conformance.servers import Servers
from conformance.vending import Keys, describe_catalog, run_s3_for_sessions, vend_keys
from conftest import Lab, Stack
from support.forked import Run
from support.lake import Lake, make_stream, passed

from frazil.connections.clients import find_catalog
from frazil.iceberg.catalog import TableStore
from frazil.iceberg.table_view import TableView
from frazil.ingest.publishing import publish_batch

pytestmark = [pytest.mark.stack, pytest.mark.long]

KEY_SECONDS = 20
RATE, RECORDS, BYTES = 10_000, 400, 1_000
assert 0.7 * RECORDS * BYTES / RATE > KEY_SECONDS
BUCKET = "vended"


@dataclass(frozen=True)
class Site:
    """A catalog that gives out keys, and a stream whose batch takes longer than they hold."""

    stack: Stack
    keys: Keys

    def prepare_lab(self, folder: Path, *, are_renewed: bool) -> Lab:
        self.keys.are_renewed = are_renewed
        lab = Lab(self.stack, folder, f"{BUCKET}_{are_renewed}".lower())
        lab.write_stream(
            stream=lab.stream,
            owner="tests@example.org",
            source={"topic": lab.stream},
            value={"convert": "json", "columns": {"id": "long!", "text": "string"}},
            table={"name": lab.table},
            batch={"max_bytes_per_second": RATE},
            errors={"max_bad_ratio": 0.5},
        )
        lab.create_topic(1)
        text = "x" * (BYTES - 30)
        values = [json.dumps({"id": i, "text": text}).encode() for i in range(RECORDS)]
        lab.produce([b"{", *values], 1)
        return lab

    def run(self, lab: Lab) -> Run:
        return lab.frazil("run", lab.stream, "--json", timeout=600)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("site")
    keys = Keys(folder / "users", KEY_SECONDS)
    with ExitStack() as stack:
        servers = Servers(folder / "servers", stack)
        store = stack.enter_context(run_s3_for_sessions(folder / "s3", keys))
        store.create_bucket(BUCKET)
        given = {"warehouse": f"s3://{BUCKET}/lake", **store.settings}
        address = stack.enter_context(vend_keys(servers.rest(folder / "rest", serve(given)), keys))
        extra = {
            "scope": SCOPE,
            "oauth2-server-uri": f"{address}/token",
            **describe_catalog(address, given["warehouse"], store),
        }
        bootstrap = servers.broker.address("PLAINTEXT")
        connections = {
            "kafka_default": {"conn_type": "kafka", "extra": {"bootstrap.servers": bootstrap}},
            "iceberg_default": {"login": CLIENT_ID, "password": CLIENT_SECRET, "extra": extra},
            "spark_connect_default": {"host": servers.spark.remote},
        }
        lab_stack = Stack(folder, {"kafka": {"bootstrap": bootstrap}})
        with patch.dict(os.environ, {"FRAZIL_HOME": str(folder), **encode(connections)}):
            yield Site(lab_stack, keys)


def test_j2_spark_renews_keys_that_end_during_a_batch(site: Site, tmp_path: Path) -> None:
    lab = site.prepare_lab(tmp_path, are_renewed=True)

    run = site.run(lab)

    assert run.code == 0, run.out + run.err
    assert site.keys.renewals > 0
    assert lab.rows == RECORDS
    assert lab.frazil("audit", lab.stream).code == 0


def test_j2_keys_that_nobody_renews_fail_the_batch_and_a_shorter_one_is_published(
    site: Site, tmp_path: Path
) -> None:
    lab = site.prepare_lab(tmp_path, are_renewed=False)

    failed = site.run(lab)

    assert failed.code != 0, failed.out
    assert failed.json["error"] == "Storage"
    assert "refuses the login, the password, the key or the token" in failed.json["facts"]
    assert "set a smaller `batch.max_records`" in failed.json["next_step"]
    assert lab.rows == 0
    lab.write_stream(batch={})
    lab.drain()
    assert lab.rows == RECORDS
    assert lab.frazil("audit", lab.stream).code == 0


class VendedLake(Lake):
    """A lake whose catalog is that of the connection."""

    @property
    def store(self) -> TableStore:
        """Open the catalog."""
        return TableStore(find_catalog("iceberg_default"))


def test_j2_a_publish_whose_keys_have_ended_gets_new_ones_with_the_table(
    site: Site, tmp_path: Path
) -> None:
    site.keys.are_renewed = False
    lake = VendedLake(tmp_path, make_stream())
    lake.begin()
    plan = lake.plan(3, 2)
    staged = lake.stage(plan)
    view = TableView(lake.store, plan.table)
    assert view.table.io.properties["s3.access-key-id"].startswith("ASIA")

    time.sleep(KEY_SECONDS + 5)
    landed = publish_batch(lake.store, plan, staged, passed(plan, staged), "run-1", view)

    assert landed.already_published is False
    assert len(lake.coordinates()) == 5
