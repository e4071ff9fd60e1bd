"""Steps that tests of PUBLISH share."""

from support.lake import Lake

from frazil.ingest.messages import BatchPlan, Staged

FIVE = [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1)]


def put(lake: Lake, properties: dict[str, str]) -> None:
    """Set table properties through a transaction of its own, as a person would."""
    with lake.table.transaction() as transaction:
        transaction.set_properties(properties)


def empty_stage(plan: BatchPlan, branch: str, head: int) -> Staged:
    """Stage a batch of offsets that hold no record."""
    return Staged(
        stream=plan.stream,
        batch_id=plan.batch_id,
        attempt=branch,
        snapshot_id=None,
        base_head=head,
        rows_read=0,
        rows_written=0,
        rows_quarantined=0,
        rows_skipped=0,
        partitions=(),
    )


def roll_back(lake: Lake, snapshot_id: int | None) -> None:
    """Move main back, as another tool would."""
    lake.table.manage_snapshots().rollback_to_snapshot(snapshot_id or 0).commit()
