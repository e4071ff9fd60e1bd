"""The table as an Airflow asset: who waits for it may start when a batch is visible.

An event tells; it never decides. Airflow may lose one, so no plan ever comes from an event.
"""

from airflow.sdk import Asset, Context
from pydantic import JsonValue

from frazil.ingest.messages import Published
from frazil.streams.models import Stream

GROUP = "frazil"


def table_asset(stream: Stream) -> Asset:
    """Describe the stream's table: `iceberg://<catalog connection>/<namespace>.<table>`."""
    return Asset(
        name=stream.table.name,
        uri=f"iceberg://{stream.table.connection}/{stream.table.name}",
        group=GROUP,
        extra={"stream": stream.stream, "owner": stream.owner},
    )


def announce_snapshot(published: Published, context: Context) -> None:
    """Attach the new snapshot to the task's asset event, or take the event back.

    A batch that was on main already is no news: a task that is run again must change nothing.
    Airflow sends an event for every outlet that the task has when it ends well.
    """
    task = context["task"]
    if published.outcome == "ALREADY":
        task.outlets = []
    for outlet in task.outlets:
        context["outlet_events"][outlet].extra = describe_snapshot(published)


def describe_snapshot(published: Published) -> dict[str, JsonValue]:
    """Give what an event carries: ids, offsets and counts, never values of records.

    The id stands there twice: Airflow's pages round numbers as long as these, texts they leave.
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
