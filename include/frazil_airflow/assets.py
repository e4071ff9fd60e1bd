"""The table as an Airflow asset: DAGs scheduled on it start when a batch is visible.

Events only notify. Airflow may lose one, so Frazil plans from Kafka and the table, never from them.
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
    """Attach the new snapshot to the task's asset event; send no event for an older batch.

    Airflow sends an event for every outlet that a successful task has. A repeated task that finds
    its batch published must not trigger other DAGs again, so its outlets are removed.
    """
    task = context["task"]
    if published.outcome == "ALREADY":
        task.outlets = []
    for outlet in task.outlets:
        context["outlet_events"][outlet].extra = describe_snapshot(published)


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
