"""Staging branches: `frazil_<stream>_<epoch>_[beside_]<born><random>`; the name tells their birth.

A branch's age limits follow its snapshot's age in Iceberg, so a fresh branch on an old head would
expire at once; the name tells the true age instead.
"""

import re
import secrets
import time
from dataclasses import dataclass

from frazil.errors import CatalogUnavailableError
from frazil.iceberg import commits
from frazil.iceberg.catalog import TableStore, translated_errors
from frazil.iceberg.commit_retry import commit_once, retry_commit
from frazil.iceberg.table_view import TableView, iterate_views

PREFIX = "frazil_"
_NAME = re.compile(
    r"frazil_(?P<stream>[a-z0-9_]+)_(?P<epoch>\d+)_"
    r"(?P<beside>beside_)?(?P<born>[0-9a-f]{11})[0-9a-f]{8}\Z"
)


def name_branch(stream: str, epoch: int, *, beside: bool = False) -> str:
    """Name a new attempt's branch; no two attempts share one.

    `beside` says that it is not the next batch: a replay, a backfill, letters that come back.
    """
    born_ms = int(time.time() * 1000)
    kind = "beside_" if beside else ""
    return f"{PREFIX}{stream}_{epoch}_{kind}{born_ms:011x}{secrets.token_hex(4)}"


@dataclass(frozen=True)
class StagingBranch:
    """What the name of a staging branch says."""

    name: str
    stream: str
    epoch: int
    is_beside: bool
    age_ms: int


def parse_branch(name: str, now_ms: int) -> StagingBranch | None:
    """Read a staging branch's name; None for anybody else's branch."""
    match = _NAME.match(name)
    if match is None:
        return None
    age_ms = now_ms - int(match["born"], 16)
    return StagingBranch(name, match["stream"], int(match["epoch"]), bool(match["beside"]), age_ms)


def create_branch(store: TableStore, table_name: str, branch: str) -> int:
    """Create the branch at main's head and give that head.

    PyIceberg would begin a parentless branch where none exists, and some catalogs accept a branch
    and ignore it: it is created first, and then looked for.

    Raises:
        CatalogUnavailableError: the catalog does not keep branches.
    """
    created = create_branch_on(TableView(store, table_name), branch)
    return created.table.metadata.refs[branch].snapshot_id


def create_branch_on(view: TableView, branch: str) -> TableView:
    """Create the branch at the view's head, and return the view in which it was found again.

    Raises:
        CatalogUnavailableError: the catalog does not keep branches.
    """
    views = iterate_views(view)
    head = retry_commit(f"creating branch {branch}", lambda: _try_create(next(views), branch))
    created = view.reload()
    ref = created.table.metadata.refs.get(branch)
    if ref is None or ref.snapshot_id != head:
        raise CatalogUnavailableError(
            f"catalog {view.store.preset.name} accepted branch {branch} of {view.name} and does "
            "not have it: it ignores branches, and a staged append would replace main",
            "use a catalog that keeps branches: SQL, or the reference REST catalog",
        )
    return created


def drop_staging_branch(store: TableStore, table_name: str, branch: str) -> None:
    """Drop the branch of an attempt that is given up; what is gone already is fine.

    Raises:
        CatalogUnavailableError: the catalog did not answer; maintenance removes the branch later.
    """
    table = store.find(table_name)
    ref = table.metadata.refs.get(branch) if table else None
    if table is not None and ref is not None:
        with translated_errors(f"dropping branch {branch} of {table_name}"):
            commits.commit(
                store.catalog,
                table,
                commits.require_head(table, branch, ref.snapshot_id),
                commits.drop_branch(branch),
            )


def _try_create(view: TableView, branch: str) -> int:
    table = view.table
    landed = table.metadata.refs.get(branch)
    if landed is not None:  # by an earlier turn whose answer was lost: nobody else has this name
        return landed.snapshot_id
    head = table.current_snapshot()
    if head is None:
        raise CatalogUnavailableError(
            f"table {view.name} has no snapshot to start a branch from",
            "run again: the first task of the run bootstraps the table",
        )
    commit_once(view.store, table, {branch: None}, [commits.set_branch(branch, head.snapshot_id)])
    return head.snapshot_id


def drop_abandoned_branch(store: TableStore, table_name: str, branch: str) -> None:
    """Drop a branch that nobody will publish; one that is gone already is fine."""
    retry_commit(
        f"dropping branch {branch}", lambda: _try_drop_abandoned(store, table_name, branch)
    )


def _try_drop_abandoned(store: TableStore, table_name: str, branch: str) -> None:
    table = store.load(table_name)
    ref = table.metadata.refs.get(branch)
    if ref is not None:
        commit_once(store, table, {branch: ref.snapshot_id}, commits.drop_branch(branch))
