"""A wrong connection of a catalog: PyIceberg and Spark's Java give it the same sentence."""

import json
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyarrow as pa
import pytest
from conformance.cells import serve
from conformance.gateway import CLIENT_ID, CLIENT_SECRET, SCOPE
from conformance.servers import (
    DATABASE_PASSWORD,
    DATABASE_USER,
    MissingPartError,
    Servers,
    Store,
    run_s3,
)
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField
from support.http_server import serve_http
from support.network import NO_ROUTE

from frazil.connections.clients import CatalogPreset, find_catalog
from frazil.errors import (
    CatalogRejectedError,
    CatalogUnavailableError,
    FrazilError,
    StorageError,
)
from frazil.iceberg.catalog import NewTable, TableStore
from frazil.spark.engine import SparkEngine
from frazil.spark.job_errors import parse_job_error
from frazil.spark.messages import ProbeRequest, ProbeResult

pytestmark = [pytest.mark.spark, pytest.mark.slow]

Connections = Mapping[str, tuple[Mapping[str, object], str]]
"""Name → a connection with one fault, and the sentence for it."""
REFUSED = "refuses the login, the password, the key or the token"
DEAD, UNKNOWN = "nothing listens at the catalog's address", "the catalog's host name is unknown"
NO_HOST = "no-such-host.invalid:1"
SILENT = "no route to the catalog"
NEW = NewTable(Schema(NestedField(1, "id", LongType(), required=False)))
STORE_REFUSED = "the storage refuses the login, the password, the key or the token"
STRANGER = {"access": "stranger", "secret": "planted-stranger", "role": "user"}
"""A user of the S3 server to whom no bucket belongs."""


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    with ExitStack() as stack:
        yield Servers(tmp_path_factory.mktemp("servers"), stack)


@contextmanager
def answer(status: int, body: str) -> Iterator[str]:
    """Send one answer to all requests, as a server in front of a catalog or a catalog does."""
    with serve_http(lambda _: (status, body.encode())) as address:
        yield f"http://{address}"


def list_misnamed(
    servers: Servers, connections: Connections, monkeypatch: pytest.MonkeyPatch
) -> list[str]:
    """Let both clients open each catalog; list those whose sentence one of them does not say."""
    misnamed = []
    for name, (connection, sentence) in connections.items():
        preset = find_preset(connection, monkeypatch)
        with pytest.raises((CatalogUnavailableError, CatalogRejectedError)) as by_python:
            TableStore(preset).probe()
        by_java = ask_java(servers, preset, "nowhere.t")
        assert isinstance(by_java, CatalogUnavailableError), (name, by_java)
        if not all(says(sentence, error) for error in (by_python.value, by_java)):
            misnamed.append(name)
    return misnamed


def find_preset(connection: Mapping[str, object], monkeypatch: pytest.MonkeyPatch) -> CatalogPreset:
    monkeypatch.setenv("AIRFLOW_CONN_ICEBERG_DEFAULT", json.dumps(connection))
    return find_catalog("iceberg_default")


def ask_java(servers: Servers, preset: CatalogPreset, table: str) -> FrazilError | None:
    """Let Spark's Java read a table; return its error."""
    request = ProbeRequest(
        catalog=preset.name,
        table=table,
        kafka_options={},
        ranges={},
        session_conf=preset.spark_conf(),
    )
    engine = SparkEngine(servers.spark.remote)
    result = engine.run_job("probe_connections", request, ProbeResult)
    return parse_job_error("probe_connections", result.catalog)


def says(sentence: str, error: FrazilError) -> bool:
    return sentence in error.facts and "planted-" not in error.facts


def test_each_cause_of_a_database_is_named_by_each_client(
    servers: Servers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    try:
        uri = servers.database.uri("postgres")
    except MissingPartError as missing:
        pytest.skip(str(missing))  # PostgreSQL is not installed

    def connect(address: str, password: str = DATABASE_PASSWORD) -> dict[str, object]:
        extra = {"type": "sql", "uri": address, "warehouse": f"file://{tmp_path}"}
        return {"login": DATABASE_USER, "password": password, "extra": extra}

    start = "postgresql+psycopg2://"
    bare = f"{uri.partition('?')[0]}?sslmode=verify-full&sslrootcert={tmp_path}/none.pem"
    connections = {
        "wrong password": (connect(uri, "planted-other"), REFUSED),
        "dead port": (connect(f"{start}127.0.0.1:1/postgres"), DEAD),
        "unknown host": (connect(f"{start}{NO_HOST}/postgres"), UNKNOWN),
        "no route": (connect(f"{start}{NO_ROUTE}/postgres"), SILENT),
        "unknown database": (connect(uri.replace("/postgres?", "/nowhere?")), "database does not"),
        "no authority": (connect(bare), "not signed by an authority that is trusted here"),
    }
    assert list_misnamed(servers, connections, monkeypatch) == []


def test_each_cause_of_a_rest_catalog_is_named_by_each_client(
    servers: Servers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    warehouse = f"file://{tmp_path}/warehouse"
    uri = servers.guard(servers.rest(tmp_path / "rest", {"CATALOG_WAREHOUSE": warehouse}))

    def connect(address: str, **more: str) -> dict[str, object]:
        return {"extra": {"type": "rest", "uri": address, "warehouse": "lake", **more}}

    def refuse(kind: str, text: str, code: int) -> str:
        return json.dumps({"error": {"message": text, "type": kind, "code": code}})

    login = connect(uri, scope=SCOPE, **{"oauth2-server-uri": f"{uri}/token"})
    page = "<html>Welcome</html>"
    with ExitStack() as stack:

        def serve(status: int, body: str) -> dict[str, object]:
            return connect(stack.enter_context(answer(status, body)))

        connections: Connections = {
            "wrong secret": (login | {"login": CLIENT_ID, "password": "planted-other"}, REFUSED),
            "unknown client": (login | {"login": "other", "password": CLIENT_SECRET}, REFUSED),
            "wrong token": (connect(uri, token="planted-other"), REFUSED),  # noqa: S106 - no token
            "no token": (connect(uri), REFUSED),
            "dead port": (connect("http://127.0.0.1:1"), DEAD),
            "unknown host": (connect(f"http://{NO_HOST}"), UNKNOWN),
            "no route": (connect(f"http://{NO_ROUTE}"), SILENT),
            "a page": (serve(200, page), "the server at this address is not a catalog"),
            "no page": (serve(404, page), "the server at this address is not a catalog"),
            "forbidden": (serve(403, refuse("ForbiddenException", "no", 403)), "has no right"),
            **{
                f"unknown warehouse, {kind}": (
                    serve(code, refuse(kind, "Unable to find warehouse lake", code)),
                    "the catalog does not know the warehouse",
                )
                for kind, code in (
                    *(("NotFoundException", 404), ("WarehouseNotFound", 404)),
                    ("BadRequestException", 400),
                )
            },
        }
        assert list_misnamed(servers, connections, monkeypatch) == []


def test_each_cause_of_s3_is_named_by_each_client(
    servers: Servers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PyIceberg reads the metadata of a table in SQLite, Java the manifests of one in REST.

    Java tries for minutes to read metadata itself, whatever the cause is.
    """
    table = "lake.t"
    misnamed: list[str] = []
    with run_store(tmp_path) as store:
        place = {"warehouse": "s3://kept/x", **store.settings}
        sql = {"type": "sql", "uri": f"sqlite:///{tmp_path}/c.db"}
        rest = {"type": "rest", "uri": servers.rest(tmp_path / "rest", serve(place))}
        for catalog in (sql, rest):
            made = TableStore(find_preset({"extra": {**place, **catalog}}, monkeypatch))
            made.create(table, NEW).append(pa.table({"id": [1]}))
        for name, (fault, sentence) in list_faults(store).items():
            extra = {**place, **fault}
            with pytest.raises(StorageError) as by_python:
                TableStore(find_preset({"extra": {**extra, **sql}}, monkeypatch)).find(table)
            by_java = ask_java(
                servers, find_preset({"extra": {**extra, **rest}}, monkeypatch), table
            )
            assert by_java is not None, name
            both = (by_python.value, by_java)
            if not all(isinstance(e, StorageError) and says(sentence, e) for e in both):
                misnamed += [name, *(f"{type(e).__name__}: {e}" for e in both)]
    assert not misnamed, "\n".join(misnamed)


def list_faults(store: Store) -> dict[str, tuple[dict[str, str], str]]:
    """Return settings of a connection that are wrong, and the sentence for them, by name."""
    key, secret, endpoint = "s3.access-key-id", "s3.secret-access-key", "s3.endpoint"
    return {
        "wrong secret": ({secret: "planted-other"}, STORE_REFUSED),
        "unknown key": ({key: "other"}, STORE_REFUSED),
        "no right": (
            {key: STRANGER["access"], secret: STRANGER["secret"]},
            "the connection's user has no right to this in the storage",
        ),
        "wrong region": (
            {"s3.region": "eu-west-9"},
            "the region of the storage is missing or wrong",
        ),
        "dead port": (
            {endpoint: "http://127.0.0.1:1"},
            "nothing listens at the storage's address",
        ),
        "unknown host": ({endpoint: f"http://{NO_HOST}"}, "the storage's host name is unknown"),
        "no route": ({endpoint: f"http://{NO_ROUTE}"}, "no route to the storage"),
        "no TLS": (
            {endpoint: store.endpoint.replace("http:", "https:")},
            "the storage does not use TLS",
        ),
    }


@contextmanager
def run_store(folder: Path) -> Iterator[Store]:
    """Run an S3 server with a bucket, and a user who has no right to it."""
    users = folder / "users"
    users.mkdir()
    (users / "users.json").write_text(
        json.dumps({"accessAccounts": {STRANGER["access"]: STRANGER}})
    )
    with run_s3(folder / "s3", "--iam-dir", str(users)) as store:
        store.create_bucket("kept")
        yield store


def test_a_bucket_that_does_not_exist_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with run_store(tmp_path) as store:
        place = {"type": "sql", "uri": f"sqlite:///{tmp_path}/c.db", "warehouse": "s3://gone/x"}
        preset = find_preset({"extra": {**store.settings, **place}}, monkeypatch)
        with pytest.raises(StorageError, match="the bucket does not exist"):
            TableStore(preset).create("lake.t", NEW)
