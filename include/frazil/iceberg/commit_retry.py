"""The commit retry loop: each attempt reloads the table, decides, and commits once."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeVar

import stamina
from pyiceberg.exceptions import ForbiddenError, UnauthorizedError
from pyiceberg.table import Table
from pyiceberg.table.update import AddSnapshotUpdate, SetSnapshotRefUpdate, TableUpdate

from frazil.errors import (
    ClockBehindError,
    CommitContentionError,
    KafkaUnavailableError,
    RegistryUnavailableError,
    UnavailableError,
    hide_literals,
)
from frazil.iceberg import commits
from frazil.iceberg.catalog import (
    TableStore,
    snapshot_summary,
    storage_error,
    translated_errors,
)
from frazil.iceberg.table_compatibility import require_writable_table
from frazil.ledger.state import change_hints

MAX_ATTEMPTS = 12

Result = TypeVar("Result")


class CommitConflictError(Exception):
    """Commit conflict or unknown outcome; reload the table and try again."""


def retry_commit(doing: str, attempt_once: Callable[[], Result]) -> Result:
    """Call `attempt_once` until it succeeds, with growing waits and jitter.

    Raises:
        CommitContentionError: every attempt met a conflict or an unknown outcome.
        UnavailableError: the catalog or the warehouse failed in every attempt.
    """
    try:
        for attempt in stamina.retry_context(
            on=_may_pass,
            attempts=MAX_ATTEMPTS,
            timeout=90.0,
            wait_initial=0.05,
            wait_max=2.0,
            wait_jitter=0.2,
        ):
            with attempt:
                try:
                    return attempt_once()
                except OSError as error:  # such as keys that ended since the table was loaded
                    raise storage_error(doing, error) from error
    except CommitConflictError as error:
        raise CommitContentionError(
            f"{doing}: no commit succeeded in {MAX_ATTEMPTS} attempts; the last failed with: "
            f"{error}",
            "run again: the step first checks whether an earlier attempt was committed",
        ) from error
    message = "stamina leaves its loop only by a result or an error"
    raise AssertionError(message)


def _may_pass(error: Exception) -> bool:
    """Return whether a further attempt may succeed; clients of Kafka and registries retry alone."""
    if isinstance(error, KafkaUnavailableError | RegistryUnavailableError):
        return False
    return isinstance(error, CommitConflictError | UnavailableError)


def raise_on_conflict(doing: Callable[[], Result]) -> Result:
    """Call `doing`; translate a commit conflict, pass any other error on.

    Raises:
        CommitConflictError: another writer was faster.
    """
    try:
        return doing()
    except Exception as error:
        if commits.is_definite_conflict(error):
            raise CommitConflictError(hide_literals(str(error)[:200])) from error
        raise


def _name_changes(table: Table, updates: Sequence[TableUpdate]) -> Iterator[dict[str, str]]:
    """Yield the hints that name the snapshots of these updates which change rows on main."""
    heads = {
        update.snapshot_id
        for update in updates
        if isinstance(update, SetSnapshotRefUpdate) and update.ref_name == commits.MAIN
    }
    for update in updates:
        if isinstance(update, AddSnapshotUpdate) and update.snapshot.snapshot_id in heads:
            summary = snapshot_summary(update.snapshot.summary)
            hints = change_hints(table.properties, summary, update.snapshot.snapshot_id)
            if hints:
                yield hints


def commit_once(
    store: TableStore, table: Table, ref_heads: Mapping[str, int | None], updates: list[TableUpdate]
) -> Table:
    """Commit if the table's uuid, schema, partition spec and the named refs are unchanged.

    A snapshot that changes rows without a state is named in the streams' hints, so that a rollback
    over it is noticed. Return the table as the catalog's response has it.

    Raises:
        CommitConflictError: a conflict, or an unknown outcome; reload the table to find out.
        StorageError, CatalogUnavailableError: the warehouse or catalog refused the commit.
        ClockBehindError: nothing was written.
        IncompatibleTableError: another engine changed the table; nothing was written.
    """
    require_writable_table(table)
    requirements = commits.require_uuid(table) + commits.require_layout(table)
    for ref, snapshot_id in ref_heads.items():
        requirements += commits.require_head(table, ref, snapshot_id)[1:]
    hints = [commits.set_properties(names) for names in _name_changes(table, updates)]
    try:
        return commits.commit(store.catalog, table, requirements, [*updates, *hints])
    except ClockBehindError:
        raise
    except (OSError, ForbiddenError, UnauthorizedError):
        # Retried too, but after the last attempt this error is shown instead of a conflict.
        with translated_errors(f"committing to {'.'.join(table.name())}"):
            raise
    except Exception as error:
        kind = "conflict" if commits.is_definite_conflict(error) else "unknown outcome"
        said = hide_literals(str(error)[:200])
        raise CommitConflictError(f"{kind}: {type(error).__name__}: {said}") from error
