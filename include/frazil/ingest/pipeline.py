"""The steps PLAN and PUBLISH with all that they read and write; see `staging` and `checking`."""

import time
from collections.abc import Sequence

from frazil.errors import (
    CatalogUnavailableError,
    FrazilError,
    OffsetsWentBackError,
    SupersededError,
)
from frazil.failpoints import reach_failpoint
from frazil.iceberg.branches import drop_staging_branch
from frazil.iceberg.ledger_archive import archive_new_entries, require_not_dropped
from frazil.iceberg.table_view import TableView
from frazil.ingest.batch_schemas import find_latest_schema_ids
from frazil.ingest.blocked_batches import (
    BlockedBatch,
    RulesFingerprint,
    explain_block,
    read_blocked,
    read_rules_fingerprint,
    still_applies,
)
from frazil.ingest.bootstrap import (
    PreparedTable,
    ensure_table,
    initial_state,
    require_sole_owner,
    require_unchanged_route,
)
from frazil.ingest.dead_letters import publish_dead_letters
from frazil.ingest.messages import BatchPlan, NothingToRead, Published, Staged, Verdict
from frazil.ingest.planning import PlanInput, TableFacts, plan_batch
from frazil.ingest.publishing import (
    find_published,
    publish_batch,
    require_complete_stage,
)
from frazil.ingest.snapshot_summaries import find_newest
from frazil.kafka.cluster import TopicFacts
from frazil.kafka.monitoring_group import commit_progress
from frazil.ledger import keys
from frazil.ledger.foreign_snapshots import require_sole_writer
from frazil.ledger.offsets import parse_ranges, plain_ranges
from frazil.ledger.recovery_point import (
    History,
    PublishedBatch,
    RecoveryPoint,
    find_recovery_point,
)
from frazil.ledger.state import parse_state
from frazil.ledger.usage import read_and_reset_usage
from frazil.schemas.inferred_columns import with_columns, with_newest_columns
from frazil.schemas.review import read_quarantined
from frazil.workspace import Workspace


def plan_next_batch(work: Workspace) -> BatchPlan | NothingToRead:
    """Create what the first batch needs, then plan the next batch.

    Raises:
        SourceError, TableError, UnavailableError: nothing was planned.
        BatchBlockedError: an earlier batch failed its check, and the stream waits.
    """
    began_at_ms = time.time_ns() // 1_000_000
    try:
        plan = _settle_and_plan(work)
    except OffsetsWentBackError:
        # Another run may have published after Kafka's offsets were read and before the table was.
        plan = _settle_and_plan(work)
    reach_failpoint("plan.before-return")
    if not isinstance(plan, BatchPlan):
        return plan
    clock = {"began_at_ms": began_at_ms, "ended_at_ms": time.time_ns() // 1_000_000}
    return plan.model_copy(update={"used": read_and_reset_usage(), **clock})


def _settle_and_plan(work: Workspace) -> BatchPlan | NothingToRead:
    """Apply schema changes, then plan up to the end offsets that Kafka had before.

    Kafka's end offsets are read first, so that no planned record has a schema that was registered
    after the newest schema was compared with the table.
    """
    topics = work.kafka.fetch_topics(work.stream.source.names, work.stream.source.isolation)
    view = TableView(work.store, work.stream.table.name)
    newest = with_newest_columns(work, view)
    rules = read_rules_fingerprint(newest)
    prepared = ensure_table(newest, topics, view)
    if newest is not work:  # plan with the table's columns: a change may still wait for a review
        work = with_columns(work, prepared.view)
        quarantined = {"quarantined_columns": prepared.quarantined_columns}
        rules = read_rules_fingerprint(work).model_copy(update=quarantined)
    return _plan_on(work, topics, prepared, rules, newest)


def preview_next_batch(work: Workspace, view: TableView | None = None) -> BatchPlan | NothingToRead:
    """Plan the next batch without writing anything, even if the table does not exist yet."""
    view = view or TableView(work.store, work.stream.table.name)
    newest = with_newest_columns(work, view)
    topics = work.kafka.fetch_topics(work.stream.source.names, work.stream.source.isolation)
    if view.found is None:
        require_not_dropped(work.store, work.stream.table.name, work.stream.stream)
        require_sole_owner(work, None)
        work, rules = newest, read_rules_fingerprint(newest)
        state = initial_state(work.stream, topics, work.kafka)
        absent = TableFacts("not created yet", 0, 0)
        latest = find_latest_schema_ids(work)
        return plan_batch(PlanInput(work.stream, state, topics, absent, rules.suite_hash, latest))
    quarantined = read_quarantined(view.table, newest)
    work = with_columns(work, view) if quarantined else newest
    rules = read_rules_fingerprint(work).model_copy(update={"quarantined_columns": quarantined})
    require_unchanged_route(view.table, work.stream)
    point = view.find_point(work.stream.stream)
    if point is None:
        require_sole_owner(work, view.history)
        point = RecoveryPoint(initial_state(work.stream, topics, work.kafka), 0)
    return _plan_on(work, topics, PreparedTable(view, point), rules, newest)


def has_begun(view: TableView, stream: str) -> bool:
    """Return whether a stream has a recovery point in its table.

    Raises:
        TableError: the table's ledger cannot be trusted; a person decides.
    """
    return view.found is not None and view.find_point(stream) is not None


def _plan_on(
    work: Workspace,
    topics: Sequence[TopicFacts],
    prepared: PreparedTable,
    rules: RulesFingerprint,
    newest: Workspace,
) -> BatchPlan | NothingToRead:
    """Plan from the recovery point, unless a blocked batch has to be decided first.

    `newest` knows which registered schemas were the newest ones when the table was compared.
    """
    table, history, point = prepared.view.table, prepared.view.history, prepared.point
    require_sole_writer(history, work.stream.stream, work.stream.table.other_writers)
    blocked = read_blocked(table.properties, work.stream.stream, history.table)
    facts = TableFacts(
        uuid=str(table.metadata.table_uuid),
        schema_id=table.metadata.current_schema_id,
        spec_id=table.metadata.default_spec_id,
    )
    limit = work.stream.batch.max_records
    if blocked is not None and still_applies(blocked, point, rules, limit):
        return _resume_blocked(blocked, facts)
    latest = find_latest_schema_ids(newest)
    return plan_batch(
        PlanInput(
            work.stream,
            point.state,
            topics,
            facts,
            rules.suite_hash,
            latest,
            rules.quarantined_columns,
            find_newest(history, work.stream.stream),
        )
    )


def _resume_blocked(blocked: BlockedBatch, table: TableFacts) -> BatchPlan:
    """Return the waived plan unchanged: more records would lower its ratio of bad records.

    Only schema id and spec id become the table's current ones, because the rows are staged again.
    """
    if blocked.waiver is None:
        raise explain_block(blocked)
    waiver = blocked.waiver
    waived = f"{waiver.by}: {waiver.reason}"
    layout = {"schema_id": table.schema_id, "spec_id": table.spec_id}
    return blocked.plan.model_copy(update={"waived": waived, **layout})


def publish_staged(work: Workspace, plan: BatchPlan, staged: Staged, verdict: Verdict) -> Published:
    """Publish dead letters, then rows and offsets in one commit, then archive the ledger entry.

    Raises:
        SupersededError: another run published first; the branch is dropped, nothing was written.
    """
    reach_failpoint("publish.before-dead-letters")
    view = TableView(work.store, plan.table)
    try:
        landed = _publish_once(work, view, plan, staged, verdict)
    except SupersededError:
        drop_staging_branch(work.store, plan.table, staged.attempt)
        raise
    # Loaded again, as a commit's response is no proof: some catalogs let a later writer win (A13).
    history = view.reload().history
    _require_on_main(history, plan, landed)
    archive_new_entries(work.store, history)
    reach_failpoint("publish.after-archive")
    published = describe_published(plan, landed)
    return published.model_copy(update={"warning": _show_progress(work, history)})


def _show_progress(work: Workspace, history: History) -> str | None:
    """Commit the table's offsets in the stream's monitoring group; return what prevents it."""
    group, name = work.stream.source.monitoring_group, work.stream.stream
    if group is None:
        return None
    try:
        point = find_recovery_point(history, name)
        if point is not None:
            commit_progress(work.kafka, group, name, point.state.offsets)
    except FrazilError as error:
        return str(error)
    return None


def _require_on_main(history: History, plan: BatchPlan, landed: PublishedBatch) -> None:
    """Require the batch on main: some catalogs let a later writer overwrite a commit."""
    if find_published(history, plan) is None:
        raise CatalogUnavailableError(
            f"stream {plan.stream}: batch {plan.batch_id} was committed to {plan.table} as "
            f"snapshot {landed.entry.snapshot_id}, but main does not have it: the catalog let "
            "another writer overwrite it, or the table was rolled back at this moment",
            "run again: the missing records are read again; use a catalog with compare-and-swap "
            "commits, and let every writer commit through it",
        )


def _publish_once(
    work: Workspace, view: TableView, plan: BatchPlan, staged: Staged, verdict: Verdict
) -> PublishedBatch:
    found = find_published(view.history, plan)
    if found is not None:
        return PublishedBatch(found, already_published=True)
    require_complete_stage(plan, staged, verdict)
    if staged.dead_letters_snapshot_id is not None:
        publish_dead_letters(work.store, plan, staged)
    reach_failpoint("publish.after-dead-letters")
    return publish_batch(work.store, plan, staged, verdict, work.run_id, view)


def describe_published(plan: BatchPlan, landed: PublishedBatch) -> Published:
    """Describe the published batch from its snapshot's summary."""
    summary = landed.entry.summary
    text = summary.get(keys.state_key(plan.stream))
    return Published(
        stream=plan.stream,
        table=plan.table,
        batch_id=plan.batch_id,
        outcome="ALREADY" if landed.already_published else "PUBLISHED",
        snapshot_id=landed.entry.snapshot_id,
        epoch=parse_state(text).epoch if text else None,
        rows_written=int(summary[keys.ROWS_WRITTEN]),
        rows_quarantined=int(summary[keys.ROWS_QUARANTINED]),
        rows_skipped=int(summary[keys.ROWS_SKIPPED]),
        ranges=plain_ranges(parse_ranges(summary[keys.RANGES])),
    )
