"""Turns of a compare-and-set loop: look afresh, decide, commit once, or lose the turn."""

from collections.abc import Callable, Mapping
from typing import TypeVar

import stamina
from pyiceberg.exceptions import ForbiddenError, UnauthorizedError
from pyiceberg.table import Table
from pyiceberg.table.update import TableUpdate

from frazil.errors import ClockBehindError, CommitContentionError, UnavailableError
from frazil.iceberg import commits
from frazil.iceberg.catalog import TableStore, translated_errors

MAX_ATTEMPTS = 12


Result = TypeVar("Result")


class CommitConflictError(Exception):
    """This turn did not decide anything; look again."""


def retry_commit(doing: str, turn: Callable[[], Result]) -> Result:
    """Run turns with jitter until one decides.

    Raises:
        CommitContentionError: other writers won every turn.
        UnavailableError: the catalog failed in every turn.
    """
    try:
        for attempt in stamina.retry_context(
            on=(CommitConflictError, UnavailableError),
            attempts=MAX_ATTEMPTS,
            timeout=90.0,
            wait_initial=0.05,
            wait_max=2.0,
            wait_jitter=0.2,
        ):
            with attempt:
                return turn()
    except CommitConflictError as error:
        raise CommitContentionError(
            f"{doing}: other writers or an unsure catalog won {MAX_ATTEMPTS} turns; the last said: "
            f"{error}",
            "run again: the step first looks whether its commit landed",
        ) from error
    message = "stamina leaves its loop only by a result or an error"
    raise AssertionError(message)


def raise_on_conflict(doing: Callable[[], Result]) -> Result:
    """Do it; a lost race ends the turn, anything else is an error.

    Raises:
        LostTurnError: another writer was faster.
    """
    try:
        return doing()
    except Exception as error:
        if commits.is_definite_conflict(error):
            raise CommitConflictError(str(error)[:200]) from error
        raise


def commit_once(
    store: TableStore, table: Table, ref_heads: Mapping[str, int | None], updates: list[TableUpdate]
) -> None:
    """Commit once; a conflict or an unknown outcome ends the turn.

    Raises:
        LostTurnError: look again; only a fresh load knows what happened.
        ClockBehindError: nothing was written.
    """
    requirements = commits.require_uuid(table) + commits.require_layout(table)
    for ref, snapshot_id in ref_heads.items():
        requirements += commits.require_head(table, ref, snapshot_id)[1:]
    try:
        commits.commit(store.catalog, table, requirements, updates)
    except ClockBehindError:
        raise
    except (OSError, ForbiddenError, UnauthorizedError):
        # Full, forbidden or gone: the next turn still looks first, but it ends with this cause.
        with translated_errors(f"committing to {'.'.join(table.name())}"):
            raise
    except Exception as error:
        kind = "conflict" if commits.is_definite_conflict(error) else "unknown outcome"
        raise CommitConflictError(f"{kind}: {type(error).__name__}: {str(error)[:200]}") from error
