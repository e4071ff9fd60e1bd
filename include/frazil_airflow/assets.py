"""A stream's tables as Airflow assets: DAGs scheduled on it start when a batch is visible.

Events only notify. Airflow may lose one, so Frazil plans from Kafka and the table, never from them.
"""

from airflow.sdk import Asset, AssetAlias, Context
from pydantic import JsonValue

from frazil.environment import streams_dir
from frazil.ingest.messages import Published
from frazil.state_tables.messages import Merged
from frazil.streams.loading import load_stream
from frazil.streams.models import Stream

GROUP = "frazil"
MERGED = AssetAlias(name="frazil_merged", group=GROUP)
"""Outlet of a task that may merge any stream; its event is one of the state table's asset."""


def table_asset(stream: Stream) -> Asset:
    """Describe the stream's table: `iceberg://<catalog connection>/<namespace>.<table>`."""
    return _describe_table(stream, stream.table.name)


def state_assets(stream: Stream) -> list[Asset]:
    """Describe the stream's state table in the same way; an empty list if it has none."""
    state = stream.table.state
    return [] if state is None else [_describe_table(stream, state.name)]


def _describe_table(stream: Stream, name: str) -> Asset:
    return Asset(
        name=name,
        uri=f"iceberg://{stream.table.connection}/{name}",
        group=GROUP,
        extra={"stream": stream.stream, "owner": stream.owner},
    )


def announce_snapshot(done: Published | Merged, context: Context) -> None:
    """Attach the new snapshot to the task's asset event; send no event where there is none.

    Airflow sends an event for every outlet that a successful task has. A repeated task that finds
    its batch published, or nothing to merge, must not trigger other DAGs again, so its outlets are
    removed.
    """
    task, events = context["task"], context["outlet_events"]
    if done.outcome in {"ALREADY", "NOTHING"}:
        task.outlets = []
    extra = describe_snapshot(done) if isinstance(done, Published) else describe_merge(done)
    for outlet in task.outlets:
        if isinstance(outlet, AssetAlias):
            for asset in state_assets(load_stream(streams_dir(), done.stream)):
                events[outlet].add(asset, extra=extra)
        else:
            events[outlet].extra = extra


def describe_merge(merged: Merged) -> dict[str, JsonValue]:
    """Return the content of a state table's event, as that of `describe_snapshot`.

    `change_snapshot` is the snapshot of the change table up to which the state is folded.
    """
    return {
        "stream": merged.stream,
        "table": merged.table,
        "snapshot_id": merged.snapshot_id,
        "change_snapshot": merged.change_snapshot,
        "counts": merged.counts.model_dump(mode="json") if merged.counts else None,
        "rebuilt": merged.rebuilt,
        "read_as": f"{merged.table} VERSION AS OF {merged.snapshot_id}",
    }


def describe_snapshot(published: Published) -> dict[str, JsonValue]:
    """Return the event's content: ids, offsets and counts, never values of records.

    The snapshot id is there twice, also as text, because Airflow's pages round long numbers.
    """
    return {
        "stream": published.stream,
        "table": published.table,
        "snapshot_id": published.snapshot_id,
        "epoch": published.epoch,
        "batch_id": published.batch_id,
        "ranges": published.model_dump(mode="json")["ranges"],
        "rows": published.rows_written,
        "read_as": f"{published.table} VERSION AS OF {published.snapshot_id}",
    }
