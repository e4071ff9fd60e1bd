"""Wait for new records without a worker: the first task of a continuous stream's run.

The trigger polls Kafka every second in Airflow's triggerer, where the task starts and ends. It also
ends after five minutes without new records, because an event may be lost: that run plans, finds
nothing and ends. The triggerer never reloads modules: restart it after an upgrade.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

from airflow.sdk import BaseOperator
from airflow.triggers.base import BaseTrigger, StartTriggerArgs, TaskSuccessEvent, TriggerEvent

from frazil.errors import FrazilError, hide_message
from frazil.ingest.messages import NothingToRead
from frazil_airflow.connections import use_airflow_connections

POLL_SECONDS = 1.0
HEARTBEAT_SECONDS = 300.0
REPLAN_SECONDS = 30.0
"""How often the table is read again: a rollback changes the next offsets without a new record."""

ERROR_PAUSE_SECONDS = 60.0
"""The pause before a run that will fail, so that it does not fail every second."""

FIRST_PAUSE_SECONDS = 5.0

BEGINNING = "the beginning"
"""The position of a stream without a batch."""

log = logging.getLogger(__name__)
_last_positions: dict[str, tuple[str, int]] = {}


class WaitForRecords(BaseOperator):
    """Wait in the triggerer until a stream has new records."""

    start_from_trigger = True

    def __init__(self, *, stream: str, **settings: Any) -> None:  # noqa: ANN401 - BaseOperator's
        """Store the trigger that the scheduler starts without a worker."""
        super().__init__(**settings)
        self.start_trigger_args = StartTriggerArgs(
            trigger_cls=f"{NewRecordsTrigger.__module__}.{NewRecordsTrigger.__qualname__}",
            trigger_kwargs={"stream": stream},
            next_method="execute",
        )

    def execute(self, context: object) -> None:
        """Succeed at once; only a cleared task gets here, since the trigger ends the task."""


class NewRecordsTrigger(BaseTrigger):
    """End a task when Kafka has records that the table has not, or after five minutes."""

    def __init__(self, stream: str) -> None:
        """Store the stream's name; its file is read when the wait begins."""
        super().__init__()  # type: ignore[no-untyped-call]
        self.stream = stream

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class path and the arguments, which Airflow stores in its database."""
        return f"{type(self).__module__}.{type(self).__qualname__}", {"stream": self.stream}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Poll Kafka until there are new records, then end the task."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + HEARTBEAT_SECONDS
        try:
            watch = await asyncio.to_thread(watch_records, self.stream)
            replan_at = loop.time() + REPLAN_SECONDS
            for _ in range(round(HEARTBEAT_SECONDS / POLL_SECONDS)):
                if await asyncio.to_thread(watch.has_records) or loop.time() > deadline:
                    break
                await asyncio.sleep(POLL_SECONDS)
                if loop.time() > replan_at:
                    watch = await asyncio.to_thread(watch_records, self.stream)
                    replan_at = loop.time() + REPLAN_SECONDS
            await asyncio.sleep(choose_pause(count_failed_runs(self.stream, watch.position)))
        except FrazilError as error:
            log.warning("%s: %s", error.code, error)
            await asyncio.sleep(ERROR_PAUSE_SECONDS)
        except Exception as error:  # noqa: BLE001 - the wait goes on
            failure = hide_message(error)
            log.warning("stream %s: cannot check Kafka for records: %s", self.stream, failure)
            await asyncio.sleep(ERROR_PAUSE_SECONDS)
        yield TaskSuccessEvent()


@dataclass(frozen=True)
class RecordWatch:
    """A check for new records, and the stream's position if a batch can be planned already."""

    has_records: Callable[[], bool]
    position: str | None = None


def count_failed_runs(stream: str, position: str | None) -> int:
    """Return the number of consecutive runs that left the stream at this position: they failed.

    Batch ids are not compared, because every new record gives the next batch another id.
    """
    if position is None:
        return 0
    last, count = _last_positions.get(stream, ("", 0))
    count = count + 1 if last == position else 0
    _last_positions[stream] = position, count
    return count


def choose_pause(failed: int) -> float:
    """Return the seconds before the next run after failed ones: 5, 15, 45, then 60."""
    steps = min(failed, 9)  # keeps the power small: a stream may fail for weeks
    return min(FIRST_PAUSE_SECONDS * 3 ** (steps - 1), ERROR_PAUSE_SECONDS) if failed else 0.0


def watch_records(stream: str) -> RecordWatch:
    """Plan once without writing, and return a check that reads only Kafka.

    A stream without a batch has records at once: its first plan decides where it begins.

    Raises:
        FrazilError: the next plan would fail with the same error.
    """
    from frazil.iceberg.table_view import TableView  # noqa: PLC0415 - heavy at parse
    from frazil.ingest.pipeline import has_begun, preview_next_batch  # noqa: PLC0415 - heavy at parse
    from frazil.workspace import open_workspace  # noqa: PLC0415 - heavy at parse

    use_airflow_connections()
    work = open_workspace(stream, "wait")
    view = TableView(work.store, work.stream.table.name)
    if not has_begun(view, stream):
        return RecordWatch(lambda: True, BEGINNING)
    preview = preview_next_batch(work, view)
    if not isinstance(preview, NothingToRead):
        return RecordWatch(lambda: True, f"{preview.base_epoch} {preview.base_batch}")
    source = work.stream.source
    known = {
        (topic, partition): offset
        for topic, offsets in preview.next_offsets.items()
        for partition, offset in enumerate(offsets)
    }

    def has_records() -> bool:
        return any(
            offsets.end != known.get((topic.topic, partition), 0)
            for topic in work.kafka.fetch_topics(source.names, source.isolation)
            for partition, offsets in enumerate(topic.partitions)
        )

    return RecordWatch(has_records)
