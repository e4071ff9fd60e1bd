"""The record of a blocked batch: what failed, and what unblocks the stream (protocol.md, CHECK)."""

import hashlib
import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Self

from frazil.errors import BatchBlockedError, BatchError, RecordsNotIsolatedError, StageStaleError
from frazil.iceberg import commits
from frazil.iceberg.commit_retry import commit_once, retry_commit
from frazil.iceberg.table_view import TableView
from frazil.ingest.messages import BatchPlan
from frazil.ingest.planning import transform_version
from frazil.ledger import keys
from frazil.ledger.offsets import count_offsets
from frazil.ledger.recovery_point import RecoveryPoint
from frazil.ledger.stored_properties import ANY_TABLE, read_property
from frazil.messages import MessagePart, Report
from frazil.quality.event_rows import EVENT_ROWS_CODE
from frazil.quality.suite_files import check_suite_fits, load_suite
from frazil.workspace import Workspace

NOT_ISOLATED = RecordsNotIsolatedError("", "").code
NOT_WAIVABLE = "no waiver is possible: some of them may be rows of other tables of the route"
"""Text of a block whose failing records were not all found, if the stream has a route."""


class Waiver(MessagePart):
    """A person's permission to publish a blocked batch, with the reason."""

    by: str
    reason: str
    at: str


class StoredWaiver(Waiver):
    """A waiver with the batch and the rules that it is for.

    It has a table property of its own: Iceberg's commits cannot require that a property is
    unchanged, so a run that records the block again would overwrite a waiver inside of it.
    """

    batch_id: str
    suite_hash: str
    stream_hash: str

    def approves(self, plan: BatchPlan) -> bool:
        """Return whether the waiver is for this plan: same batch, same rules."""
        return (self.batch_id, self.suite_hash, self.stream_hash) == (
            plan.batch_id,
            plan.suite_hash,
            plan.stream_hash,
        )


class BlockedBatch(MessagePart):
    """The plan whose check failed, the reasons, and the waiver if there is one."""

    plan: BatchPlan
    error: str
    failures: tuple[str, ...]
    branch: str
    blocked_at: str
    waiver: Waiver | None = None


class RulesFingerprint(Report):
    """Hashes of the rules a batch is judged by; if one changes, a blocked stream may plan again."""

    suite_hash: str
    stream_hash: str
    transform_version: str
    quarantined_columns: tuple[str, ...] = ()

    @classmethod
    def of(cls, plan: BatchPlan) -> Self:
        """Return the rules that a plan was made with."""
        return cls(
            suite_hash=plan.suite_hash,
            stream_hash=plan.stream_hash,
            transform_version=plan.transform_version,
            quarantined_columns=plan.quarantined_columns,
        )


def read_blocked(
    properties: Mapping[str, str], stream: str, table: str = ANY_TABLE
) -> BlockedBatch | None:
    """Return the stream's record, whether it still applies or not; None if there is none.

    Raises:
        UnknownStateError: this release cannot read the record or its waiver; the error names
            `table`.
    """
    parse, without = BlockedBatch.model_validate_json, "the batch is planned and checked again"
    blocked = read_property(properties, keys.blocked_key(stream), parse, without, table)
    if blocked is None:
        return None
    read, without = StoredWaiver.model_validate_json, "the batch stays blocked until it is waived"
    waiver = read_property(properties, keys.waiver_key(stream), read, without, table)
    if waiver is None or not waiver.approves(blocked.plan):
        return blocked
    own = Waiver(by=waiver.by, reason=waiver.reason, at=waiver.at)
    return blocked.model_copy(update={"waiver": own})


def encode_blocked(blocked: BlockedBatch) -> dict[str, str]:
    """Return the record as a table property."""
    return {keys.blocked_key(blocked.plan.stream): json.dumps(blocked.model_dump(mode="json"))}


def encode_waiver(plan: BatchPlan, waiver: Waiver) -> dict[str, str]:
    """Return a waiver of this plan as a table property."""
    stored = StoredWaiver(
        **waiver.model_dump(),
        batch_id=plan.batch_id,
        suite_hash=plan.suite_hash,
        stream_hash=plan.stream_hash,
    )
    return {keys.waiver_key(plan.stream): stored.model_dump_json()}


def record_block(work: Workspace, plan: BatchPlan, branch: str, error: BatchError) -> None:
    """Store the blocked plan and the reasons as a table property, which PLAN reads.

    `branch` holds the staged rows; it is empty if none were staged.
    """
    blocked = BlockedBatch(
        plan=plan,
        error=error.code,
        failures=(error.facts,),
        branch=branch,
        blocked_at=datetime.now(UTC).isoformat(timespec="seconds"),
    )

    def attempt() -> None:
        table = TableView(work.store, plan.table).table
        stored = read_blocked(table.properties, plan.stream, plan.table)
        # A waiver inside the record, as earlier releases stored it, is kept for the same batch.
        waiver = stored.waiver if stored and _is_same(stored.plan, plan) else None
        record = encode_blocked(blocked.model_copy(update={"waiver": waiver}))
        commit_once(work.store, table, {}, [commits.set_properties(record)])

    retry_commit(f"recording that batch {plan.batch_id} is blocked", attempt)


def _is_same(first: BatchPlan, second: BatchPlan) -> bool:
    rules = RulesFingerprint.of(first) == RulesFingerprint.of(second)
    return rules and first.batch_id == second.batch_id


def still_applies(
    blocked: BlockedBatch,
    point: RecoveryPoint,
    rules: RulesFingerprint,
    max_records: int | None = None,
) -> bool:
    """Return whether the record applies to the next batch: same base, same rules.

    A batch whose failing records were not found is planned again if it is larger than `max_records`
    now: its error asks for smaller batches.
    """
    plan = blocked.plan
    same_base = (plan.base_epoch, plan.base_batch) == (point.state.epoch, point.state.batch)
    is_smaller_now = (
        blocked.error == NOT_ISOLATED
        and max_records is not None
        and count_offsets(plan.offset_ranges) > max_records
    )
    return same_base and rules == RulesFingerprint.of(plan) and not is_smaller_now


def explain_block(blocked: BlockedBatch) -> BatchBlockedError:
    """Build the error with which every run fails until the block is resolved."""
    plan = blocked.plan
    reasons = "; ".join(blocked.failures) or blocked.error
    rows = f"; its rows wait on branch {blocked.branch} of {plan.table}" if blocked.branch else ""
    look = f"look at the rows (query {plan.table} VERSION AS OF '{blocked.branch}'), then "
    size = count_offsets(plan.offset_ranges)
    smaller = f"set batch.max_records below {size:,}, which makes the next run plan again, or "
    command = f"frazil waive {plan.stream} --batch {plan.batch_id}"
    waive = f", or `{command} --by YOU --reason WHY --no-dry-run`"
    is_waivable = not any(NOT_WAIVABLE in failure for failure in blocked.failures)
    next_step = (
        f"{look if blocked.branch else ''}{smaller if blocked.error == NOT_ISOLATED else ''}"
        f"correct the rules (suite or stream file) or the producer{waive if is_waivable else ''}"
    )
    return BatchBlockedError(
        f"stream {plan.stream}: batch {plan.batch_id} has been blocked since {blocked.blocked_at}: "
        f"{reasons}{rows}",
        next_step,
    )


def read_rules_fingerprint(work: Workspace) -> RulesFingerprint:
    """Return the current rules of the stream file, the suite and the code.

    Raises:
        SuiteError: the suite cannot be read, or does not fit the columns.
    """
    return RulesFingerprint(
        suite_hash=_load_suite_hash(work),
        stream_hash=work.stream.content_hash,
        transform_version=transform_version(work.stream),
    )


def _load_suite_hash(work: Workspace) -> str:
    """Load the suite, validate it against the columns, and return its hash; empty without one.

    For change events the hash also covers the rules that select the checked rows.
    """
    if work.suite_file is None:
        return ""
    suite = load_suite(work.suite_file)
    check_suite_fits(suite, work.stream.typed_columns)
    if work.stream.value.change_events is None:
        return suite.hash
    return hashlib.sha256(f"{suite.hash} {EVENT_ROWS_CODE}".encode()).hexdigest()[:16]


def require_same_rules(work: Workspace, plan: BatchPlan) -> None:
    """Require that the current rules are those that the plan was made with.

    Each task reads the files again, and the snapshot's summary carries the plan's hashes: rows
    judged by a file that changed in between would carry the hash of the old one.

    Raises:
        StageStaleError: the stream file, the suite or the transform changed since the plan.
    """
    now = read_rules_fingerprint(work)
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
            "run again: the next run plans and stages with the current files",
        )
