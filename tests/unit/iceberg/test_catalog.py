"""What a catalog's and a storage's refusal becomes: the cause, and what to do next."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField
from support.http_server import serve_http

from frazil.connections.clients import CatalogPreset
from frazil.errors import (
    CatalogRejectedError,
    CatalogUnavailableError,
    FrazilError,
    StorageError,
)
from frazil.iceberg.catalog import NewTable, TableStore, translated_errors

NEW = NewTable(Schema(NestedField(1, "id", LongType(), required=False)))


@contextmanager
def serve(status: int, body: str) -> Iterator[str]:
    """Answer each request alike."""
    with serve_http(lambda _: (status, body.encode())) as address:
        yield f"http://{address}"


@pytest.mark.parametrize(
    ("code", "sentence"),
    [
        ("SignatureDoesNotMatch", "the storage refuses the login, the password, the key"),
        ("AccessDenied", "the connection's user has no right to this in the storage"),
    ],
)
def test_s3_is_asked_once_more_why_it_refuses(tmp_path: Path, code: str, sentence: str) -> None:
    with serve(403, f"<Error><Code>{code}</Code><Message>no</Message></Error>") as endpoint:
        properties = {
            "type": "sql",
            "uri": f"sqlite:///{tmp_path}/c.db",
            "warehouse": "s3://bucket/lake",
            "s3.endpoint": endpoint,
            "s3.region": "us-east-1",
            "s3.access-key-id": "me",
            "s3.secret-access-key": "no",
        }
        with pytest.raises(StorageError) as caught:
            TableStore(CatalogPreset("lake", properties)).create("a.b", NEW)

    assert f"creating table a.b in catalog lake: {sentence}" in caught.value.facts
    assert "nothing was published" in caught.value.next_step


@pytest.mark.parametrize(
    ("status", "body", "kind", "sentence"),
    [
        (
            401,
            '{"error": {"message": "m", "type": "NotAuthorizedException", "code": 401}}',
            CatalogUnavailableError,
            "the catalog refuses the login",
        ),
        (
            403,
            '{"error": {"message": "m", "type": "ForbiddenException", "code": 403}}',
            CatalogUnavailableError,
            "user has no right to this in the catalog",
        ),
        (
            200,
            "<html>x</html>",
            CatalogRejectedError,
            "this address is not a catalog",
        ),
    ],
)
def test_a_rest_catalog_that_refuses_says_why(
    status: int, body: str, kind: type[Exception], sentence: str
) -> None:
    with serve(status, body) as uri, pytest.raises(kind, match=sentence):
        TableStore(CatalogPreset("lake", {"type": "rest", "uri": uri})).probe()


def test_a_port_without_a_server_is_named() -> None:
    store = TableStore(CatalogPreset("lake", {"type": "rest", "uri": "http://127.0.0.1:1"}))

    with pytest.raises(CatalogUnavailableError, match="nothing listens at the catalog's address"):
        store.probe()


def test_an_error_names_a_file_without_its_partition_values() -> None:
    path = "/lake/t/data/customer=4711/mail=jane%40example.org/00001.parquet"

    with pytest.raises(FrazilError) as told, translated_errors(f"copying {path}"):
        raise OSError(5, "Input/output error")

    assert "copying /lake/t/data/customer=…/mail=…/00001.parquet" in str(told.value)
    assert "4711" not in str(told.value)
