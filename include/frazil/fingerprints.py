"""What a batch is planned, staged and judged with: today's suite, stream file and transform."""

from frazil.blocking import Fingerprint
from frazil.contracts import BatchPlan
from frazil.errors import StageStaleError
from frazil.planning import transform_version
from frazil.quality import check_suite_fits, load_suite
from frazil.workspace import Workspace


def read_fingerprint(work: Workspace) -> Fingerprint:
    """Read the rules as they stand now.

    Raises:
        SuiteError: the suite cannot be read, or does not fit the columns.
    """
    return Fingerprint(
        suite_hash=_load_suite_hash(work),
        stream_hash=work.stream.content_hash,
        transform_version=transform_version(work.stream),
    )


def _load_suite_hash(work: Workspace) -> str:
    """Load the suite, see that it fits the columns, and give its hash."""
    if work.suite_file is None:
        return ""
    suite = load_suite(work.suite_file)
    check_suite_fits(suite, work.stream.typed_columns)
    return suite.hash


def refuse_other_rules(work: Workspace, plan: BatchPlan) -> None:
    """See that a step works by the rules that the plan was made with.

    Each task opens the files afresh, and the snapshot is signed with the plan's hashes: a file that
    changed in between would be judged by one rule and signed with another.

    Raises:
        StageStaleError: the stream file, the suite or the transform changed since the plan.
    """
    now = read_fingerprint(work)
    pairs = {
        "the stream file": (plan.stream_hash, now.stream_hash),
        "the suite": (plan.suite_hash, now.suite_hash),
        "the transform": (plan.transform_version, now.transform_version),
    }
    changed = [name for name, (planned, today) in pairs.items() if planned != today]
    if changed:
        raise StageStaleError(
            f"stream {plan.stream}: {', '.join(changed)} changed since batch {plan.batch_id} was "
            "planned; nothing of it is visible",
            "run again: the next run plans and stages by today's files",
        )
