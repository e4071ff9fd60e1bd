"""A catalog that accepts connections and does not answer ends a step with an error."""

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyiceberg.exceptions import NoSuchIcebergTableError, NoSuchPropertyException

from frazil.connections.clients import CatalogPreset
from frazil.errors import CatalogUnavailableError, IncompatibleTableError
from frazil.iceberg import catalog
from frazil.iceberg.catalog import TableStore, wait_for_answer


@pytest.fixture
def silent(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Return the address of a server that accepts connections and is silent."""
    monkeypatch.setattr(catalog, "ANSWER_SECONDS", 1.0)
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


@pytest.mark.parametrize("uri", ["http://{}", "postgresql+psycopg2://me@{}/db"])
def test_a_catalog_that_does_not_answer_is_named(silent: str, uri: str) -> None:
    store = TableStore(CatalogPreset("lake", {"uri": uri.format(silent), "warehouse": "file:///x"}))

    with pytest.raises(CatalogUnavailableError, match="does not answer") as probed:
        store.probe()
    with pytest.raises(CatalogUnavailableError, match="does not answer"):
        store.find("lake.t")

    assert "see its log" in probed.value.next_step


@pytest.mark.parametrize("error", [NoSuchIcebergTableError, NoSuchPropertyException])
def test_a_table_of_another_format_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    store = TableStore(CatalogPreset("lake", {"uri": f"sqlite:///{tmp_path}/c.db"}))

    def refuse(_: object) -> None:
        raise error("Property table_type is DELTA, expected iceberg: a.b")

    monkeypatch.setattr(store.catalog, "load_table", refuse)

    with pytest.raises(IncompatibleTableError, match="of catalog lake is not an Iceberg table"):
        store.find("a.b")


def test_what_a_request_raises_is_raised() -> None:
    with pytest.raises(KeyError):
        wait_for_answer("asking", lambda: {}["x"])
    assert wait_for_answer("asking", lambda: None) is None
