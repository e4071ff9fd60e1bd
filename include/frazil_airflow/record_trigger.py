"""Wait for new records without a worker: the first task of a continuous stream's run.

Airflow's triggerer asks Kafka each second; the task starts and ends there. A wake-up may be lost,
as with the triggerer's process, so a run also goes on after some minutes without one: it plans,
finds nothing and ends. The triggerer keeps this module's imports: restart it after an upgrade.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

from airflow.sdk import BaseOperator
from airflow.triggers.base import BaseTrigger, StartTriggerArgs, TaskSuccessEvent, TriggerEvent

from frazil.errors import FrazilError
from frazil.ingest.messages import NothingToRead
from frazil_airflow.connections import use_airflow_connections

POLL_SECONDS = 1.0
HEARTBEAT_SECONDS = 300.0
LOOK_AGAIN_SECONDS = 30.0
"""So soon a rollback is noticed, which no record tells."""

TROUBLE_SECONDS = 60.0
"""What stands in the way of the next batch is told by a failing run, but not every second."""

FIRST_PAUSE_SECONDS = 5.0

BEGINNING = "the beginning"
"""Where a stream stands that has not begun."""

log = logging.getLogger(__name__)


class WaitForRecords(BaseOperator):
    """Wait in the triggerer until a stream has something to read."""

    start_from_trigger = True

    def __init__(self, *, stream: str, **settings: Any) -> None:  # noqa: ANN401 - BaseOperator's
        """Name the trigger that the scheduler starts; no worker takes part."""
        super().__init__(**settings)
        self.start_trigger_args = StartTriggerArgs(
            trigger_cls=f"{NewRecordsTrigger.__module__}.{NewRecordsTrigger.__qualname__}",
            trigger_kwargs={"stream": stream},
            next_method="execute",
        )

    def execute(self, context: object) -> None:
        """Go on; the trigger ends the task, so nobody comes here unless somebody clears it."""


class NewRecordsTrigger(BaseTrigger):
    """End a task when Kafka has records that the table has not, or after a while."""

    def __init__(self, stream: str) -> None:
        """Keep the stream's name; its file is read when the wait begins."""
        super().__init__()  # type: ignore[no-untyped-call]
        self.stream = stream

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Give what Airflow keeps in its database."""
        return f"{type(self).__module__}.{type(self).__qualname__}", {"stream": self.stream}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Ask until there is something to do."""
        loop = asyncio.get_running_loop()
        until = loop.time() + HEARTBEAT_SECONDS
        try:
            watch = await asyncio.to_thread(watch_records, self.stream)
            again = loop.time() + LOOK_AGAIN_SECONDS
            for _ in range(round(HEARTBEAT_SECONDS / POLL_SECONDS)):
                if await asyncio.to_thread(watch.has_records) or loop.time() > until:
                    break
                await asyncio.sleep(POLL_SECONDS)
                if loop.time() > again:
                    watch = await asyncio.to_thread(watch_records, self.stream)
                    again = loop.time() + LOOK_AGAIN_SECONDS
            await asyncio.sleep(choose_pause(count_wakes(self.stream, watch.stands_at)))
        except FrazilError as error:
            log.warning("%s: %s", error.code, error)
            await asyncio.sleep(TROUBLE_SECONDS)
        except Exception:
            log.exception(
                "stream %s: nobody can say whether there is something to read", self.stream
            )
            await asyncio.sleep(TROUBLE_SECONDS)
        yield TaskSuccessEvent()


@dataclass(frozen=True)
class Watch:
    """What a stream waits for; where it stands, if a batch can be planned from there already."""

    has_records: Callable[[], bool]
    stands_at: str | None = None


_woken: dict[str, tuple[str, int]] = {}


def count_wakes(stream: str, stands_at: str | None) -> int:
    """Count the earlier wake-ups that left the stream where it stands: their runs failed.

    Not by the batch's id: with each record that comes the next batch is another.
    """
    if stands_at is None:
        return 0
    place, count = _woken.get(stream, ("", 0))
    count = count + 1 if place == stands_at else 0
    _woken[stream] = stands_at, count
    return count


def choose_pause(failed: int) -> float:
    """Choose the seconds before a run that has failed so often: what soon passes waits little."""
    steps = min(failed, 9)  # a number with an end: a stream may fail for weeks
    return min(FIRST_PAUSE_SECONDS * 3 ** (steps - 1), TROUBLE_SECONDS) if failed else 0.0


def watch_records(stream: str) -> Watch:
    """Plan once without writing, and give a question that only Kafka answers.

    A stream that has not begun goes on at once: its first plan decides where it begins.

    Raises:
        FrazilError: the next plan would fail with it.
    """
    from frazil.ingest.pipeline import has_begun, preview_next_batch  # noqa: PLC0415 - heavy at parse
    from frazil.workspace import open_workspace  # noqa: PLC0415 - heavy at parse

    use_airflow_connections()
    work = open_workspace(stream, "wait")
    if not has_begun(work):
        return Watch(lambda: True, BEGINNING)
    preview = preview_next_batch(work)
    if not isinstance(preview, NothingToRead):
        return Watch(lambda: True, f"{preview.base_epoch} {preview.base_batch}")
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

    return Watch(has_records)
