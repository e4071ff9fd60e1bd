"""Stage, check and publish given ranges without moving offsets, for replays and backfills.

One commit replaces the rows of the ranges that are in the table (decision record 14).
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np
import pyarrow as pa
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table
from pyiceberg.table.update import TableUpdate

from frazil.errors import (
    BudgetExceededError,
    IncompatibleTableError,
    NotReplayableError,
    QualityFailedError,
    StageStaleError,
    TableRecreatedError,
)
from frazil.failpoints import reach_failpoint
from frazil.iceberg import commits
from frazil.iceberg.branches import drop_staging_branch
from frazil.iceberg.catalog import translated_errors
from frazil.iceberg.commit_retry import commit_once, retry_commit
from frazil.iceberg.data_files import COORDINATE, read_coordinates
from frazil.iceberg.ledger_archive import archive_new_entries
from frazil.iceberg.live_files import Flags
from frazil.iceberg.row_changes import (
    ChangedFile,
    RowSearch,
    RowsToDelete,
    collect_offsets,
    count_rows,
)
from frazil.iceberg.table_schema import list_schema_differences
from frazil.iceberg.table_view import TableView, iterate_views
from frazil.ingest.batch_schemas import find_latest_schema_ids, read_seen_schema_ids
from frazil.ingest.blocked_batches import read_rules_fingerprint
from frazil.ingest.checking import judge_batch
from frazil.ingest.dead_letters import ensure_dead_letters_table, publish_dead_letters
from frazil.ingest.isolation import suspected_records
from frazil.ingest.messages import BatchPlan, Staged, Verdict
from frazil.ingest.planning import name_rules, require_same_source
from frazil.ingest.publishing import (
    require_complete_stage,
    require_staging_branch,
)
from frazil.ingest.snapshot_summaries import summarize_ranges
from frazil.ingest.staging import fill_branch
from frazil.kafka.consumer import OffsetConsumer
from frazil.ledger import keys
from frazil.ledger.coordinates import NO_OFFSETS, Offsets, Partition
from frazil.ledger.history import Step, is_history_truncated, trace_steps
from frazil.ledger.offsets import (
    OffsetRange,
    Ranges,
    describe_partition,
    iterate_ranges,
    plain_offsets,
    plain_ranges,
)
from frazil.ledger.recovery_point import (
    History,
    LedgerEntry,
    PublishedBatch,
    RecoveryPoint,
    find_batch,
    find_recovery_point,
    require_recovery_point,
)
from frazil.messages import count_noun, name_field
from frazil.recovery.backfill_rules import require_not_filled
from frazil.recovery.replay_rules import (
    list_erased_offsets,
    replay_id,
    require_below_recovery_point,
    require_not_rolled_back,
    require_nothing_erased_since,
    require_one_incarnation,
    require_retained,
    require_same_topics,
)
from frazil.schemas.inferred_columns import with_columns
from frazil.schemas.review import open_with_settled_schema
from frazil.workspace import Workspace


def open_ledger(
    work: Workspace, *, settled: bool = False
) -> tuple[Workspace, TableView, RecoveryPoint]:
    """Return a begun stream with its table's columns, the table and the recovery point.

    Raises:
        MissingTableError: the stream has not begun.
        IncompatibleTableError: the stream file does not fit the table.
        SchemaChangeError: a schema change is pending, and `settled` requires that none is.
    """
    name = work.stream.stream
    view = TableView(work.store, work.stream.table.name)
    work = open_with_settled_schema(work, view) if settled else with_columns(work, view)
    point = require_recovery_point(view.history, name)
    differences = list_schema_differences(view.table.schema(), work.stream.parsed_columns)
    if differences:
        raise IncompatibleTableError(
            f"stream {name}: table {work.stream.table.name} does not fit the stream file: "
            f"{'; '.join(differences)}",
            "change value.columns in the stream file",
        )
    return work, view, point


def plan_ranges(
    work: Workspace, view: TableView, point: RecoveryPoint, ranges: Ranges, run_id: str
) -> BatchPlan:
    """Return the plan of given ranges; `run_id` makes plans of the same ranges distinct."""
    table, history, rules = view.table, view.history, read_rules_fingerprint(work)
    state, latest = point.state, find_latest_schema_ids(work)
    return BatchPlan(
        stream=work.stream.stream,
        table=work.stream.table.name,
        table_uuid=history.table_uuid,
        base_epoch=state.epoch,
        base_batch=state.batch,
        batch_id=replay_id(
            history.table_uuid,
            work.stream.stream,
            ranges,
            name_rules(rules.transform_version, latest),
            run_id,
        ),
        ranges=plain_ranges(ranges),
        topic_ids=dict(state.topic_ids),
        cluster_id=state.cluster_id,
        next_offsets=plain_offsets(state.offsets),
        schema_id=table.metadata.current_schema_id,
        spec_id=table.metadata.default_spec_id,
        suite_hash=rules.suite_hash,
        stream_hash=rules.stream_hash,
        transform_version=rules.transform_version,
        latest_schemas=latest,
        left_out=list_erased_offsets(trace_steps(history, work.stream.stream), ranges),
    )


def require_retained_ranges(
    work: Workspace, ranges: Ranges, point: RecoveryPoint, *, compacted: bool = False
) -> None:
    """Require that Kafka delivers the ranges completely.

    `compacted` allows compacted topics, for backfills, which replace no rows.
    """
    for topic in ranges:
        facts = work.kafka.fetch_topic(topic, work.stream.source.isolation)
        require_same_source(work.stream.stream, point.state, [facts])
        policy = work.kafka.fetch_topic_settings(topic).get("cleanup.policy", "delete")
        require_retained(
            work.stream.stream, ranges, facts, point.state, "" if compacted else policy
        )


def overwrite_ranges(
    work: Workspace,
    view: TableView,
    batch: BatchPlan,
    point: RecoveryPoint,
    kind: str,
    next_step: str,
) -> PublishedBatch:
    """Stage, check and publish given ranges; a repetition finds them published.

    `view` is the table for which the batch was planned.

    Raises:
        BudgetExceededError, QualityFailedError: nothing was written, and no stream is blocked;
            `next_step` is the error's next step.
        StageStaleError, StageLostError, NotReplayableError, TableError: nothing was written.
        CommitContentionError, JobFailedError, UnavailableError: run again.
    """
    found = find_batch(view.history, batch.batch_id)
    if found is not None:
        return PublishedBatch(found, already_published=True)
    is_new = kind == keys.BACKFILL
    require_source = partial(
        require_retained_ranges, work, batch.offset_ranges, point, compacted=is_new
    )
    require_source()
    if work.stream.errors.tolerance == "quarantine":
        ensure_dead_letters_table(work.store, batch.table)
    seen = read_seen_schema_ids(view.history, batch.stream)
    staged = fill_branch(work, batch, require_source, seen, beside=True, view=view)
    reach_failpoint("replay.after-stage")
    verdict = _judge(work, batch, staged, next_step)
    view = view.reload()
    require_nothing_erased_since(trace_steps(view.history, batch.stream), batch)
    publish_dead_letters(work.store, batch, staged)
    landed = publish_replacement(work, batch, staged, verdict, kind, view)
    reach_failpoint("replay.after-commit")
    archive_new_entries(work.store, view.reload().history)
    return landed


def _judge(work: Workspace, batch: BatchPlan, staged: Staged, next_step: str) -> Verdict:
    """Check a stage; one that fails is dropped, and its error has the next step of a replay."""
    try:
        verdict = judge_batch(work, batch, staged)
    except (BudgetExceededError, QualityFailedError) as error:
        drop_staging_branch(work.store, batch.table, staged.attempt)
        raise type(error)(error.facts, next_step) from error
    require_complete_stage(batch, staged, verdict)
    return verdict


def publish_replacement(
    work: Workspace,
    plan: BatchPlan,
    staged: Staged,
    verdict: Verdict,
    kind: str = keys.REPLAY,
    view: TableView | None = None,
) -> PublishedBatch:
    """Publish staged and checked ranges; a repetition finds them published.

    `view` is the table after the stage; it is loaded here otherwise.

    Raises:
        TargetError: a range ends above the recovery point now.
        NotReplayableError: rows would be deleted that Kafka no longer delivers.
        StageLostError, StageStaleError: nothing was written.
        TableError: the stream is halted.
    """
    summary = summarize_ranges(kind, plan, staged, verdict, work.run_id)
    doing = f"publishing {kind} {plan.batch_id} of stream {plan.stream}"
    first = view or TableView(work.store, plan.table)
    overwrite = _Overwrite(work, plan, staged, summary, first)
    # Before the attempts, whose time is limited: a first search may take minutes.
    retry_commit(doing, overwrite.prepare)
    views = iterate_views(first)
    return retry_commit(doing, lambda: overwrite.try_publish(next(views)))


@dataclass(frozen=True)
class _Overwrite:
    """The commit of a replay or backfill; further attempts reuse what earlier ones have read."""

    work: Workspace
    plan: BatchPlan
    staged: Staged
    summary: Mapping[str, str]
    first: TableView
    """The table after the stage."""

    @cached_property
    def search(self) -> RowSearch:
        """Return the search for the rows to replace."""
        return RowSearch(select_ranges(self.plan.offset_ranges))

    @cached_property
    def staged_files(self) -> list[DataFile]:
        """Return the data files of the stage."""
        if self.staged.snapshot_id is None:
            return []
        return commits.read_added_files(self.first.table, self.staged.snapshot_id)

    @cached_property
    def _known(self) -> dict[Partition, Offsets]:
        """Return the offsets that Kafka is known to deliver: staged, or checked since then."""
        if self.staged.snapshot_id is None:
            return {}
        return {**read_coordinates(self.first.table, self.staged.snapshot_id)}

    def prepare(self) -> None:
        """Search the head and copy rows that stay, so that an attempt has little left to do."""
        table, history = self.first.table, self.first.history
        if find_batch(history, self.plan.batch_id) is None:
            self.search.replace(table, self._find_rows(table, history))

    def _find_rows(self, table: Table, history: History) -> tuple[ChangedFile, ...]:
        """Return the files with rows of the ranges.

        A backfilled window has no rows yet by the ledger, unless a part of the ledger is lost.
        """
        is_new = self.summary[keys.KIND] == keys.BACKFILL
        if is_new and not is_history_truncated(trace_steps(history, self.plan.stream)):
            return ()
        return tuple(self.search.find(table))

    def try_publish(self, view: TableView) -> PublishedBatch:
        """Try one commit, unless the ledger shows that an earlier attempt landed."""
        plan, staged = self.plan, self.staged
        table, history = view.table, view.history
        found = find_batch(history, plan.batch_id)
        if found is not None:
            return PublishedBatch(found, already_published=True)
        _require_same_table(history, plan)
        _require_current_stage(history, plan, self.summary[keys.KIND])
        require_staging_branch(table, plan, staged)
        affected = self._find_rows(table, history)
        self._require_delivered(affected)
        summary = {**self.summary, keys.ROWS_DELETED: str(count_rows(affected))}
        replaced = self.search.replace(table, affected)
        replaced = replace(replaced, added=[*self.staged_files, *replaced.added])
        doing = f"writing the manifests of replay {plan.batch_id}"
        with suspected_records(doing, StageStaleError), translated_errors(doing):
            added = commits.build_overwrite(table, summary, replaced)
        updates: list[TableUpdate] = [
            *commits.move_main(added),
            *commits.drop_branch(staged.attempt, staged.snapshot_id),
        ]
        heads = {commits.MAIN: history.head, staged.attempt: staged.snapshot_id or staged.base_head}
        reach_failpoint("replay.before-commit")
        commit_once(self.work.store, table, heads, updates)
        snapshot = added.snapshot
        entry = LedgerEntry(snapshot.snapshot_id, history.head, snapshot.timestamp_ms, summary)
        return PublishedBatch(entry, already_published=False)

    def _require_delivered(self, affected: tuple[ChangedFile, ...]) -> None:
        """Check that Kafka delivers each record whose row is removed: it is bad now, not lost."""
        for partition, offsets in collect_offsets(affected).items():
            known = self._known.get(partition, NO_OFFSETS)
            removed = np.setdiff1d(offsets, known)
            if len(removed):
                _require_delivered(self.work, self.plan, partition, removed)
                self._known[partition] = np.union1d(known, removed)


def _require_same_table(history: History, plan: BatchPlan) -> None:
    if history.table_uuid != plan.table_uuid:
        raise TableRecreatedError(
            f"table {plan.table} has uuid {history.table_uuid}, batch {plan.batch_id} was planned "
            f"for uuid {plan.table_uuid}",
            "run the command again: it plans for the present table",
        )


def _require_current_stage(history: History, plan: BatchPlan, kind: str) -> tuple[Step, ...]:
    """Check that the ledger still allows the stage; return the ledger's steps."""
    point, steps = find_recovery_point(history, plan.stream), trace_steps(history, plan.stream)
    require_not_rolled_back(plan, steps)
    if point is not None:
        require_below_recovery_point(plan.stream, plan.offset_ranges, point.state)
        require_same_topics(plan, point.state)
    require_one_incarnation(plan.stream, plan.offset_ranges, steps)
    require_nothing_erased_since(steps, plan)
    if kind == keys.BACKFILL:
        require_not_filled(plan.stream, plan.offset_ranges, steps)
    return steps


def _require_delivered(
    work: Workspace, plan: BatchPlan, partition: Partition, removed: Offsets
) -> None:
    topic, number = partition
    spans = {number: OffsetRange(int(removed.min()), int(removed.max()) + 1)}
    log = OffsetConsumer(work.kafka, work.kafka_config)
    delivered = log.fetch_delivered(topic, spans, work.stream.source.isolation)[number]
    lost = np.setdiff1d(removed, delivered)
    if len(lost):
        raise NotReplayableError(
            f"stream {plan.stream}: {plan.table} has {count_noun(len(lost), 'row')} of "
            f"{describe_partition(topic, number)} that Kafka no longer delivers, the first at "
            f"offset {lost[0]}; they would be deleted for good",
            f"leave these offsets out of {name_field('offsets')}; nothing was written",
        )


def select_ranges(ranges: Ranges) -> RowsToDelete:
    """Select the rows of the ranges; the condition prunes files by their column bounds."""
    topic, partition, offset = COORDINATE
    condition = " or ".join(
        f"({topic} = '{name}' and {partition} = {number} "
        f"and {offset} >= {span.start} and {offset} < {span.end})"
        for name, number, span in iterate_ranges(ranges)
    )
    return RowsToDelete(condition, (), partial(_flag_ranges, ranges))


def _flag_ranges(ranges: Ranges, rows: pa.Table) -> Flags:
    kafka = rows[keys.KAFKA_COLUMN].combine_chunks()
    topics = kafka.field("topic").dictionary_encode()
    codes = topics.indices.to_numpy(zero_copy_only=False)
    names = {name: code for code, name in enumerate(topics.dictionary.to_pylist())}
    numbers = kafka.field("partition").to_numpy(zero_copy_only=False)
    offsets = kafka.field("offset").to_numpy(zero_copy_only=False)
    is_inside = np.zeros(len(rows), dtype=np.bool_)
    for topic, partition, span in iterate_ranges(ranges):
        own = (codes == names.get(topic, -1)) & (numbers == partition)
        is_inside |= own & (offsets >= span.start) & (offsets < span.end)
    return is_inside
