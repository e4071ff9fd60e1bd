"""What a drill does to a catalog meets the one commit that it is about, and nothing else."""

from collections.abc import Callable, Iterator

import pytest
from pyiceberg.exceptions import ForbiddenError
from requests.exceptions import ReadTimeout
from support.lake import Lake

from frazil.connections.clients import find_catalog
from frazil.connections.lookup import Connection, connection_from_environment
from frazil.iceberg import commits
from frazil.iceberg.branches import create_branch, name_branch
from frazil.iceberg.catalog import TableStore
from frazil_stack.drills.faulty_catalog import (
    Open,
    forbid_commits,
    lose_first_answer,
    write_connection,
)

Spoil = Callable[[Open], TableStore]


@pytest.fixture(params=["sql", "an implementation of its own"])
def spoil(
    request: pytest.FixtureRequest, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Spoil]:
    """Open the lake's catalog by a function that spoils it, by both words that say which it is."""
    extra = dict(lake.store.preset.properties)
    if request.param == "sql":
        del extra["py-catalog-impl"]
        extra["type"] = "sql"
    opened = []

    def spoiled(opened_by: Open) -> TableStore:
        text = write_connection(Connection("iceberg_default", extra=extra), opened_by)
        monkeypatch.setenv("AIRFLOW_CONN_ICEBERG_DEFAULT", text)
        opened.append(TableStore(find_catalog("iceberg_default")))
        return opened[-1]

    yield spoiled
    for store in opened:
        store.catalog.close()


def commit_to_main(store: TableStore) -> None:
    table = store.load("demo.orders")
    head = table.current_snapshot()
    assert head is not None
    added = commits.build_append(table, {})
    moved = commits.set_branch(commits.MAIN, added.snapshot.snapshot_id)
    required = commits.require_head(table, commits.MAIN, head.snapshot_id)
    commits.commit(store.catalog, table, required, [added, moved])


def test_the_first_answer_is_lost_and_its_commit_is_there(lake: Lake, spoil: Spoil) -> None:
    before, store = lake.history.head, spoil(lose_first_answer)

    with pytest.raises(ReadTimeout, match="response to a commit was lost"):
        commit_to_main(store)

    assert lake.history.entries[lake.history.head or 0].parent_id == before
    commit_to_main(store)


def test_no_commit_is_granted_but_reads_and_branches_are(lake: Lake, spoil: Spoil) -> None:
    before, store = lake.history.head, spoil(forbid_commits)

    create_branch(store, "demo.orders", name_branch("orders", 0))
    with pytest.raises(ForbiddenError, match="this commit is forbidden"):
        commit_to_main(store)

    assert lake.history.head == before


@pytest.mark.parametrize("kind", ["sql", "rest", "glue"])
def test_spark_sees_the_catalog_that_is_wrapped(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    addresses = {"sql": "postgresql://h/db", "rest": "http://c:8181"}
    uri = {"uri": addresses[kind]} if kind in addresses else {}
    login = "me" if uri else None
    extra = {"type": kind, **uri, "warehouse": "file:///x/w"}
    plain = Connection("iceberg_default", login=login, extra=extra)
    monkeypatch.setenv("AIRFLOW_CONN_PLAIN", plain.to_json())
    monkeypatch.setenv("AIRFLOW_CONN_SPOILED", write_connection(plain, forbid_commits))

    assert find_catalog("spoiled").spark_conf() == find_catalog("plain").spark_conf()
    found = connection_from_environment("spoiled")
    assert found
    assert found.login == login
