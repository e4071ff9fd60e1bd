"""Drills that need a second broker: a mirror that is promoted, a broker that dies."""

import time

from confluent_kafka import Message

from frazil.errors import DrillError
from frazil.kafka.cluster import KafkaLog
from frazil.kafka.consumer import OffsetConsumer
from frazil.ledger.offsets import OffsetRange
from frazil_stack.drills.scratch_broker import Broker
from frazil_stack.drills.scratch_stream import AUTHOR, Answer, Scratch

_WINDOW = 10
_PATIENCE_SECONDS = 240


def promote_mirror(scratch: Scratch) -> float:
    """Go on with a copy of the topic on the second cluster, and come back."""
    first, second = scratch.cluster, _own(scratch).cluster
    scratch.produce(50)
    scratch.cluster = second
    scratch.create_topic()
    scratch.produce(7)
    scratch.delete_records(7)
    _copy(scratch, first, 0)
    refusal = scratch.type_in("run").err
    scratch.expect("the run was refused", "ClusterChanged" in refusal, wanted=True)
    began = time.monotonic()
    scratch.must_do("move-cluster", *AUTHOR)
    scratch.must_do("run")
    seconds = time.monotonic() - began
    scratch.expect("rows", scratch.count_rows(), 150)
    promoted = _end_of(scratch)
    scratch.produce(20)
    scratch.must_do("run")
    scratch.must_do("audit")
    scratch.cluster = first
    _copy(scratch, second, promoted)
    scratch.must_do("move-cluster", *AUTHOR)
    scratch.produce(10)
    scratch.must_do("run")
    scratch.expect("rows", scratch.count_rows(), 180)
    return seconds


def restart_broker(scratch: Scratch) -> float:
    """Kill the broker while a backfill goes from window to window."""
    words = ("backfill", "--window-records", str(_WINDOW), "--no-dry-run")
    scratch.expect("rows of the live stream", scratch.count_rows(), 20)
    process = scratch.start(*words)
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while scratch.count_rows() < 20 + _WINDOW:
        if process.poll() is not None or time.monotonic() > deadline:
            answer = scratch.finish(process, *words)
            raise DrillError(
                f"the backfill filled no window: {answer.err.strip()[-300:]}", "run the drill again"
            )
        time.sleep(0.2)
    _own(scratch).kill()
    scratch.expect("the backfill was still at work", process.poll() is None, wanted=True)
    answer = scratch.finish(process, *words)
    scratch.expect("it ended well, or with a next step", _is_told(answer), wanted=True)
    _own(scratch).wait()
    began = time.monotonic()
    scratch.must_do(*words)
    scratch.expect("rows", scratch.count_rows(), 100)
    return time.monotonic() - began


def _is_told(answer: Answer) -> bool:
    """Say whether the restart was bridged, or the command ended with what to do next."""
    return answer.code == 0 or "Next:" in answer.err


def _own(scratch: Scratch) -> Broker:
    if scratch.broker is None:
        raise DrillError("this drill has no broker of its own", "run it by its name")
    return scratch.broker


def _end_of(scratch: Scratch) -> int:
    return KafkaLog(scratch.cluster).fetch_topic(scratch.name).partitions[0].end


def _copy(scratch: Scratch, source: dict[str, str], start: int) -> None:
    """Copy records to the stream's cluster as a mirror does: all of them but their offsets."""
    found: list[Message] = []
    log = KafkaLog(source)
    end = log.fetch_topic(scratch.name).partitions[0].end
    OffsetConsumer(log, source).fetch_delivered(
        scratch.name, {0: OffsetRange(start, end)}, "read_committed", found.append
    )
    producer = scratch.open_producer()
    for message in found:
        producer.produce(
            scratch.name,
            value=message.value(),
            key=message.key(),
            partition=0,
            timestamp=message.timestamp()[1],
        )
    scratch.flush(producer, len(found))
