"""An erasure that freezes (SIGSTOP) once its commit on the state table has landed.

Standard input: one JSON object with `folder`, `stream` and `request`. Whoever started it wakes it
with SIGCONT.
"""

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import CommitTableResponse, Table
from pyiceberg.table.update import TableRequirement, TableUpdate

from frazil.maintenance.erasure import erase, plan_erasure
from frazil.maintenance.messages import ErasureRequest
from frazil.streams.models import Stream
from frazil.workspace import Workspace

Requirements, Updates = tuple[TableRequirement, ...], tuple[TableUpdate, ...]
Commit = Callable[[SqlCatalog, Table, Requirements, Updates], CommitTableResponse]


def commit_then(name: str, action: Callable[[], object]) -> Commit:
    """Return a catalog's commit that acts once, after the first one on a table has landed."""
    commit, actions = SqlCatalog.commit_table, [action]

    def commit_and_act(
        catalog: SqlCatalog, table: Table, requirements: Requirements, updates: Updates
    ) -> CommitTableResponse:
        answer = commit(catalog, table, requirements, updates)
        if ".".join(table.name()) == name and actions:
            actions.pop()()
        return answer

    return commit_and_act


def main() -> None:
    """Erase, and freeze once on the way."""
    given = json.load(sys.stdin)
    stream = Stream.model_validate(given["stream"])
    request = ErasureRequest.model_validate(given["request"])
    assert stream.table.state is not None
    act = commit_then(stream.table.state.name, lambda: os.kill(os.getpid(), signal.SIGSTOP))
    SqlCatalog.commit_table = act  # type: ignore[method-assign]
    work = Workspace(stream, Path(given["folder"]), "frozen")
    erase(work, plan_erasure(work, request), request)


if __name__ == "__main__":
    main()
