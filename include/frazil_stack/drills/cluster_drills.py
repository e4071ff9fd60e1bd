"""Drills that need a second broker: a promoted mirror, a killed broker."""

import time

from confluent_kafka import Message

from frazil.errors import DrillError
from frazil.kafka.cluster import KafkaLog
from frazil.kafka.consumer import OffsetConsumer
from frazil.ledger.offsets import OffsetRange
from frazil_stack.drills.scratch_broker import Broker
from frazil_stack.drills.scratch_stream import AUTHOR, CommandResult, Scratch

_WINDOW = 10
_TIMEOUT_SECONDS = 240


def promote_mirror(scratch: Scratch) -> float:
    """Move to a copy of the topic on the second cluster, and back."""
    first, second = scratch.cluster, _require_broker(scratch).cluster
    scratch.produce(50)
    scratch.cluster = second
    scratch.create_topic()
    scratch.produce(7)
    scratch.delete_records(7)
    _copy(scratch, first, 0)
    refusal = scratch.run_command("run").err
    scratch.expect("the run was refused", "ClusterChanged" in refusal, wanted=True)
    began = time.monotonic()
    scratch.must_succeed("move-cluster", *AUTHOR)
    scratch.must_succeed("run")
    seconds = time.monotonic() - began
    scratch.expect("rows", scratch.count_rows(), 150)
    promoted = _end_of(scratch)
    scratch.produce(20)
    scratch.must_succeed("run")
    scratch.must_succeed("audit")
    scratch.cluster = first
    _copy(scratch, second, promoted)
    scratch.must_succeed("move-cluster", *AUTHOR)
    scratch.produce(10)
    scratch.must_succeed("run")
    scratch.expect("rows", scratch.count_rows(), 180)
    return seconds


def restart_broker(scratch: Scratch) -> float:
    """Kill the broker between two windows of a backfill."""
    arguments = ("backfill", "--window-records", str(_WINDOW), "--no-dry-run")
    scratch.expect("rows of the live stream", scratch.count_rows(), 20)
    process = scratch.start(*arguments)
    deadline = time.monotonic() + _TIMEOUT_SECONDS
    while scratch.count_rows() < 20 + _WINDOW:
        if process.poll() is not None or time.monotonic() > deadline:
            answer = scratch.finish(process, *arguments)
            raise DrillError(
                f"the backfill filled no window: {answer.err.strip()[-300:]}", "run the drill again"
            )
        time.sleep(0.2)
    _require_broker(scratch).kill()
    scratch.expect("the backfill was still running", process.poll() is None, wanted=True)
    answer = scratch.finish(process, *arguments)
    scratch.expect("it succeeded, or failed with a next step", _is_expected(answer), wanted=True)
    _require_broker(scratch).wait()
    began = time.monotonic()
    scratch.must_succeed(*arguments)
    scratch.expect("rows", scratch.count_rows(), 100)
    return time.monotonic() - began


def _is_expected(answer: CommandResult) -> bool:
    """Return whether the command survived the restart, or failed with a next step."""
    return answer.code == 0 or "Next:" in answer.err


def _require_broker(scratch: Scratch) -> Broker:
    if scratch.broker is None:
        raise DrillError("this drill has no second broker", "run it with `frazil drill`")
    return scratch.broker


def _end_of(scratch: Scratch) -> int:
    return KafkaLog(scratch.cluster).fetch_topic(scratch.name).partitions[0].end


def _copy(scratch: Scratch, source: dict[str, str], start: int) -> None:
    """Copy records to the stream's cluster as a mirror does, at other offsets."""
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
