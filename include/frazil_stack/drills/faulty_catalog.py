"""A stream's own catalog, whose commits go wrong in the one way that a drill wants.

PyIceberg opens it by `py-catalog-impl` in the process of one command, whatever the catalog's type.
Reads, staging branches and Spark's commits go through; only a commit that would move `main` meets
the fault.
"""

import json
from collections.abc import Callable
from dataclasses import replace

from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import ForbiddenError
from pyiceberg.table import CommitTableResponse, Table
from pyiceberg.table.update import SetSnapshotRefUpdate, TableRequirement, TableUpdate
from requests.exceptions import ReadTimeout

from frazil.connections import WRAPPED, Connection
from frazil.iceberg.commits import MAIN

LOST = "the catalog's answer to a commit was lost on the way, as the drill wants it"
FORBIDDEN = "403, this commit is no longer granted, as the drill wants it"
_OWN_WORDS = frozenset({"type", "py-catalog-impl"})
"""PyIceberg takes one of both; what the connection says waits under another name."""

Open = Callable[..., Catalog]
Land = Callable[[], CommitTableResponse]
Answer = Callable[[Land], CommitTableResponse]


def lose_first_answer(name: str, **properties: str) -> Catalog:
    """Open a catalog that does the first commit to `main` and does not come to say so."""
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
    """Write a catalog connection that is the given one, but opened by a function of this module."""
    kept = {WRAPPED + key if key in _OWN_WORDS else key: text for key, text in given.extra.items()}
    extra = {**kept, "py-catalog-impl": f"{__name__}.{opened_by.__name__}"}
    return json.dumps(vars(replace(given, extra=extra)))


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
