"""A wrong connection of a catalog: PyIceberg and Spark's Java give it the same sentence."""

import json
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from conformance.gateway import CLIENT_ID, CLIENT_SECRET, SCOPE
from conformance.servers import DATABASE_PASSWORD, DATABASE_USER, MissingPartError, Servers
from support.http_server import serve_http

from frazil.connections.clients import find_catalog
from frazil.errors import CatalogRejectedError, CatalogUnavailableError
from frazil.iceberg.catalog import TableStore
from frazil.spark.engine import SparkEngine
from frazil.spark.job_errors import parse_job_error
from frazil.spark.messages import ProbeRequest, ProbeResult

pytestmark = [pytest.mark.spark, pytest.mark.slow]

Connections = Mapping[str, tuple[Mapping[str, object], str]]
"""Name → a connection with one fault, and the sentence for it."""
REFUSED = "refuses the login, the password, the key or the token"
DEAD, UNKNOWN = "nothing listens at the catalog's address", "the catalog's host name is unknown"
NO_HOST = "no-such-host.invalid:1"


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    with ExitStack() as stack:
        yield Servers(tmp_path_factory.mktemp("servers"), stack)


@contextmanager
def answer(status: int, body: str) -> Iterator[str]:
    """Give one answer to all requests, as a server in front of a catalog or a catalog does."""
    with serve_http(lambda _: (status, body.encode())) as address:
        yield f"http://{address}"


def list_misnamed(
    servers: Servers, connections: Connections, monkeypatch: pytest.MonkeyPatch
) -> list[str]:
    """Let both clients open each catalog; list those whose sentence one of them does not say."""
    engine, misnamed = SparkEngine(servers.spark.remote), []
    for name, (connection, sentence) in connections.items():
        monkeypatch.setenv("AIRFLOW_CONN_ICEBERG_DEFAULT", json.dumps(connection))
        preset = find_catalog("iceberg_default")
        with pytest.raises((CatalogUnavailableError, CatalogRejectedError)) as by_python:
            TableStore(preset).probe()
        request = ProbeRequest(
            catalog=preset.name,
            table="nowhere.t",
            kafka_options={},
            ranges={},
            session_conf=preset.spark_conf(),
        )
        result = engine.run_job("probe_connections", request, ProbeResult)
        by_java = parse_job_error("probe_connections", result.catalog)
        assert isinstance(by_java, CatalogUnavailableError), (name, by_java)
        both = [by_python.value.facts, by_java.facts]
        if not all(sentence in text and "planted-" not in text for text in both):
            misnamed.append(name)
    return misnamed


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
