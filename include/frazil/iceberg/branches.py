"""Staging branches: `frazil_<stream>_<epoch>_[beside_]<creation time><random>`.

Iceberg measures the age of a branch by its snapshot, so a new branch on an old head would expire at
once. Therefore the name holds the creation time (ms, hexadecimal).
"""

import re
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass

from pyiceberg.table import Table
from pyiceberg.table.refs import SnapshotRef
from pyiceberg.table.update import TableUpdate

from frazil.errors import CatalogUnavailableError
from frazil.iceberg import commits
from frazil.iceberg.catalog import TableStore
from frazil.iceberg.commit_retry import commit_once, retry_commit
from frazil.iceberg.table_view import TableView, iterate_views
from frazil.messages import count_noun

PREFIX = "frazil_"
_NAME = re.compile(
    r"frazil_(?P<stream>[a-z0-9_]+)_(?P<epoch>\d+)_"
    r"(?P<beside>beside_)?(?P<born>[0-9a-f]{11})[0-9a-f]{8}\Z"
)


def name_branch(stream: str, epoch: int, *, beside: bool = False) -> str:
    """Return a unique name for the staging branch of a new attempt.

    `beside` marks attempts other than the next batch: a replay, a backfill, a redrive.
    """
    born_ms = int(time.time() * 1000)
    kind = "beside_" if beside else ""
    return f"{PREFIX}{stream}_{epoch}_{kind}{born_ms:011x}{secrets.token_hex(4)}"


@dataclass(frozen=True)
class StagingBranch:
    """The parts of a staging branch's name; `is_beside` if it does not stage the next batch."""

    name: str
    stream: str
    epoch: int
    is_beside: bool
    age_ms: int


def parse_branch(name: str, now_ms: int) -> StagingBranch | None:
    """Parse a staging branch's name; None for a branch of another kind."""
    match = _NAME.match(name)
    if match is None:
        return None
    age_ms = now_ms - int(match["born"], 16)
    return StagingBranch(name, match["stream"], int(match["epoch"]), bool(match["beside"]), age_ms)


def create_branch(store: TableStore, table_name: str, branch: str) -> int:
    """Create the branch at main's head and return the id of that head.

    The branch must exist before rows are appended: otherwise PyIceberg starts one without a parent.

    Raises:
        CatalogUnavailableError: the catalog does not support branches.
    """
    created = create_branch_on(TableView(store, table_name), branch)
    return created.table.metadata.refs[branch].snapshot_id


def create_branch_on(view: TableView, branch: str) -> TableView:
    """Create the branch at the head of the view's main; return the view after that commit.

    Some catalogs accept a branch and ignore it, so it must be in their response.

    Raises:
        CatalogUnavailableError: the catalog does not support branches.
    """
    views = iterate_views(view)
    created = retry_commit(f"creating branch {branch}", lambda: _try_create(next(views), branch))
    if branch not in created.table.metadata.refs:
        raise CatalogUnavailableError(
            f"catalog {view.store.preset.name} accepted branch {branch} of {view.name} but did "
            "not store it: it ignores branches, and a staged append would replace main",
            "use a catalog that supports branches, such as SQL or the reference REST catalog",
        )
    return created


def reset_branch(table: Table, branch: str, head: int) -> Table:
    """Return the loaded table with its branch at another snapshot; nothing is committed."""
    begun: SnapshotRef = table.metadata.refs[branch].model_copy(update={"snapshot_id": head})
    refs = {**table.metadata.refs, branch: begun}
    metadata = table.metadata.model_copy(update={"refs": refs})
    return Table(table.name(), metadata, table.metadata_location, table.io, table.catalog)


def has_earlier_attempt(table: Table, stream: str, epoch: int, *, beside: bool) -> bool:
    """Return whether the table has the branch of an earlier attempt at this epoch."""
    found = (parse_branch(name, 0) for name in table.metadata.refs)
    wanted = (stream, epoch, beside)
    return any(each and (each.stream, each.epoch, each.is_beside) == wanted for each in found)


def create_branches(store: TableStore, table_name: str, branches: Sequence[str]) -> int:
    """Create several branches at main's head in one commit; return the id of that head."""
    created = create_branch_on(TableView(store, table_name), branches[0])
    head = created.table.metadata.refs[branches[0]].snapshot_id
    views = iterate_views(created)

    def attempt() -> None:
        table = next(views).table
        missing = [name for name in branches[1:] if name not in table.metadata.refs]
        updates: list[TableUpdate] = [commits.set_branch(name, head) for name in missing]
        if updates:
            commit_once(store, table, dict.fromkeys(missing), updates)

    retry_commit(f"creating {len(branches)} branches", attempt)
    return head


def drop_branches(view: TableView, branches: Sequence[str]) -> TableView:
    """Drop those of the branches that exist in one commit; return the view after it."""
    views = iterate_views(view)

    def attempt() -> TableView:
        seen = next(views)
        refs = seen.found.metadata.refs if seen.found else {}
        heads = {name: refs[name].snapshot_id for name in branches if name in refs}
        if not heads:
            return seen
        updates = [update for name in heads for update in commits.drop_branch(name)]
        return seen.with_table(commit_once(seen.store, seen.table, heads, updates))

    return retry_commit(f"dropping {count_noun(len(branches), 'branch', 'branches')}", attempt)


def drop_staging_branch(store: TableStore, table_name: str, branch: str) -> None:
    """Drop the branch of an abandoned attempt, once; a branch that has moved stays.

    Raises:
        CatalogUnavailableError: the branch stays; maintenance removes it later.
    """
    table = store.find(table_name)
    ref = table.metadata.refs.get(branch) if table else None
    if table is None or ref is None:
        return
    head = commits.require_head(table, branch, ref.snapshot_id)
    try:
        commits.commit(store.catalog, table, head, commits.drop_branch(branch))
    except Exception as error:
        if not commits.is_definite_conflict(error):
            raise CatalogUnavailableError(
                f"dropping branch {branch} of {table_name}: {type(error).__name__}",
                "no data is affected: maintenance removes the branch later",
            ) from error


def _try_create(view: TableView, branch: str) -> TableView:
    table = view.table
    if branch in table.metadata.refs:  # an earlier attempt created it, but its response was lost
        return view
    head = table.current_snapshot()
    if head is None:
        raise CatalogUnavailableError(
            f"table {view.name} has no snapshot to create a branch from",
            "run the stream again: the plan step bootstraps the table",
        )
    update = commits.set_branch(branch, head.snapshot_id)
    return view.with_table(commit_once(view.store, table, {branch: None}, [update]))
