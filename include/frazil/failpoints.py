"""Named lines at which a test can kill the process, like a power cut.

If `FRAZIL_FAILPOINT` names one of `FAILPOINTS`, the process ends by SIGKILL when it reaches that
line, without running `finally` blocks or flushing buffers.
"""

import os
import signal
from collections.abc import Iterator
from typing import NamedTuple

VARIABLE = "FRAZIL_FAILPOINT"
RECORDS_VARIABLE = "FRAZIL_FAILPOINT_RECORDS"
"""Records whose decoding fails: `throw:topic:partition:offset`, or `kill:…`, which ends Spark's
JVM; separated by commas."""

FAILPOINTS: tuple[str, ...] = (
    "plan.before-create-table",
    "plan.before-evolution",
    "plan.after-evolution",
    "plan.before-bootstrap",
    "plan.after-bootstrap",
    "plan.before-return",
    "stage.before-branch",
    "stage.after-branch",
    "stage.before-write",
    "stage.after-write",
    "stage.after-dead-letters",
    "stage.before-files",
    "stage.before-return",
    "check.before-verdict",
    "check.before-block",
    "check.after-block",
    "publish.before-dead-letters",
    "publish.after-dead-letters",
    "publish.before-commit",
    "publish.after-commit",
    "publish.after-archive",
    "redrive.before-branch",
    "redrive.after-branch",
    "redrive.before-write",
    "redrive.after-write",
    "redrive.before-commit",
    "redrive.after-commit",
    "redrive.before-mark",
    "redrive.after-mark",
    "merge.after-branch",
    "merge.after-memory",
    "merge.after-write",
    "merge.after-stage",
    "seal.before-commit",
    "seal.after-commit",
    "decide.before-commit",
    "decide.after-commit",
    "rollback.before-commit",
    "rollback.after-commit",
    "replay.after-stage",
    "replay.before-commit",
    "replay.after-commit",
    "delete.before-commit",
    "delete.after-commit",
    "trim.before-newest",
    "trim.after-changes",
    "state.before-commit",
    "state.after-commit",
    "remove.before-commit",
    "remove.after-commit",
    "erase.before-letters",
    "erase.after-letters",
    "erase.before-manifests",
    "erase.after-state",
    "expire.after-carry",
    "expire.before-job",
    "expire.after-job",
    "orphans.before-delete",
)


def reach_failpoint(name: str) -> None:
    """Kill this process if `FRAZIL_FAILPOINT` is `name`.

    Raises:
        LookupError: `name` is not in `FAILPOINTS`, which is a programming error.
    """
    if name not in FAILPOINTS:
        message = f"unknown failpoint {name!r}"
        raise LookupError(message)
    if os.environ.get(VARIABLE) == name:
        os.kill(os.getpid(), signal.SIGKILL)


class FailingRecord(NamedTuple):
    """A record whose decoding fails in a test; `kills` if it ends Spark's JVM."""

    kills: bool
    topic: str
    partition: int
    offset: int


def list_failing_records() -> Iterator[FailingRecord]:
    """Yield the records that `FRAZIL_FAILPOINT_RECORDS` names."""
    for text in filter(None, os.environ.get(RECORDS_VARIABLE, "").split(",")):
        kind, topic, partition, offset = text.split(":")
        yield FailingRecord(kind == "kill", topic, int(partition), int(offset))
