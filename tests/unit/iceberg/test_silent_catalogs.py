"""A catalog that accepts connections and does not answer ends a step with an error."""

import socket
from collections.abc import Iterator

import pytest

from frazil.connections.clients import CatalogPreset
from frazil.errors import CatalogUnavailableError
from frazil.iceberg import catalog
from frazil.iceberg.catalog import TableStore, wait_for_answer


@pytest.fixture
def silent(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Give the address of a server that accepts connections and is silent."""
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


def test_what_a_request_raises_is_raised() -> None:
    with pytest.raises(KeyError):
        wait_for_answer("asking", lambda: {}["x"])
    assert wait_for_answer("asking", lambda: None) is None
