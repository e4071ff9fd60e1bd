"""A wrapper of a stream's catalog that injects a fault into commits of one command.

PyIceberg loads it by `py-catalog-impl` in the process of the command, for any type of catalog. Only
a commit that moves `main` fails; reads, staging branches and Spark's commits succeed.
"""

from collections.abc import Callable
from dataclasses import replace

from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import ForbiddenError
from pyiceberg.table import CommitTableResponse, Table
from pyiceberg.table.update import SetSnapshotRefUpdate, TableRequirement, TableUpdate
from requests.exceptions import ReadTimeout

from frazil.connections.catalog_settings import WRAPPED
from frazil.connections.lookup import Connection
from frazil.iceberg.commits import MAIN

LOST = "drill: the catalog's response to a commit was lost"
FORBIDDEN = "drill: 403, this commit is forbidden"
_RENAMED = frozenset({"type", "py-catalog-impl"})
"""Properties that choose the catalog: the wrapper gets the original ones with a prefix."""

Open = Callable[..., Catalog]
Land = Callable[[], CommitTableResponse]
Answer = Callable[[Land], CommitTableResponse]


def lose_first_answer(name: str, **properties: str) -> Catalog:
    """Open a catalog that executes the first commit to `main` and then raises a timeout."""
    lost: list[CommitTableResponse] = []

    def answer(land: Land) -> CommitTableResponse:
        landed = land()
        if lost:
            return landed
        lost.append(landed)
        raise ReadTimeout(LOST)

    return _open(name, properties, answer)


def forbid_commits(name: str, **properties: str) -> Catalog:
    """Open a catalog that refuses every commit to `main`, as one whose grant was taken away."""

    def answer(_: Land) -> CommitTableResponse:
        raise ForbiddenError(FORBIDDEN)

    return _open(name, properties, answer)


def write_connection(given: Connection, opened_by: Open) -> str:
    """Write a copy of a catalog connection that a function of this module opens."""
    kept = {WRAPPED + key if key in _RENAMED else key: text for key, text in given.extra.items()}
    extra = {**kept, "py-catalog-impl": f"{__name__}.{opened_by.__name__}"}
    return replace(given, extra=extra).to_json()


def _open(name: str, properties: dict[str, str], answer: Answer) -> Catalog:
    del properties["py-catalog-impl"]
    catalog = load_catalog(name, **{k.removeprefix(WRAPPED): v for k, v in properties.items()})
    commit = catalog.commit_table

    def commit_table(
        table: Table,
        requirements: tuple[TableRequirement, ...],
        updates: tuple[TableUpdate, ...],
    ) -> CommitTableResponse:
        def land() -> CommitTableResponse:
            return commit(table, requirements, updates)

        moved = {each.ref_name for each in updates if isinstance(each, SetSnapshotRefUpdate)}
        return answer(land) if MAIN in moved else land()

    vars(catalog)["commit_table"] = commit_table
    return catalog
