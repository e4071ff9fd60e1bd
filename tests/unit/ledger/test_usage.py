"""What a step used is counted once, by whoever did it, and travels in the batch's summary."""

import os
import time

from support.lake import Lake, passed

from frazil.ledger.recovery_point import keys
from frazil.ledger.usage import (
    Usage,
    count_job,
    count_request,
    encode_usage,
    parse_usage,
    read_and_reset_usage,
)


def spend_cpu(seconds: float) -> None:
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass


def test_cpu_and_requests_are_told_once() -> None:
    read_and_reset_usage()
    spend_cpu(0.05)
    count_request("kafka", 2)
    count_job(700, 1300)
    count_job(300, None)

    told, after = read_and_reset_usage(), read_and_reset_usage()

    assert 1050 <= told.cpu_ms < 3000
    assert (told.spark_cpu_ms, told.kafka, told.catalog) == (1300, 2, 0)
    assert after.cpu_ms < 50
    assert (after.spark_cpu_ms, after.kafka) == (None, 0)


def test_a_fork_begins_at_nothing() -> None:
    spend_cpu(0.2)
    count_request("kafka")
    reader, writer = os.pipe()

    child = os.fork()
    if child == 0:
        used = read_and_reset_usage()
        os.write(writer, f"{used.cpu_ms < 100} {used.kafka}".encode())
        os._exit(0)
    os.waitpid(child, 0)

    assert os.read(reader, 100) == b"True 0"


def test_usage_is_read_back_by_step_and_an_older_summary_has_none() -> None:
    steps = {"stage": Usage.model_validate({"cpu-ms": 5, "spark-cpu-ms": 9, "files": 2})}

    assert parse_usage({keys.USAGE: encode_usage({**steps, "plan": None})}) == steps
    assert parse_usage({}) == {}


def test_a_published_batch_carries_what_each_step_used(lake: Lake) -> None:
    plan = lake.plan(3, 3)
    staged = lake.stage(plan).model_copy(update={"used": read_and_reset_usage()})

    landed = lake.publish(plan, staged)

    told = parse_usage(landed.entry.summary)
    assert set(told) == {"stage", "publish"}
    assert told["stage"].catalog > 0
    assert told["stage"].files > 0
    assert told["publish"].catalog > 0
    assert told["publish"].cpu_ms > 0
    assert passed(plan, staged).used is None
