"""Dead letters that come back, warm: RECORDS letters (100,000), every second record of a topic.

FRAZIL_HOME names a running stack. Prints seconds of a dry run and of the replay, as JSON: by the
clock, and of processors, those of the Spark server included where FRAZIL_SPARK_PID names it.
"""

import json
import os
import secrets
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import orders
import psutil
import yaml
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from frazil.connections.clients import find_kafka_config
from frazil.ingest.messages import NothingToRead
from frazil.recovery.messages import DeadLetterChoice, RedriveReport
from frazil.recovery.redrive import redrive_dead_letters
from frazil.workspace import open_workspace
from frazil_cli.steps import run_one_batch


def iterate_values(count: int) -> Iterator[bytes]:
    """Yield events; in each partition every second one lacks its channel."""
    for index, value in enumerate(orders.iterate_values(count)):
        has_channel = index // orders.PARTITIONS % 2 == 0
        yield value[:-1] + b',"channel":"web"}' if has_channel else value


def fill_topic(bootstrap: str, topic: str, count: int) -> None:
    """Create the topic and send the events."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(topic, orders.PARTITIONS, 1)])[topic].result(60)
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 50})
    for index, value in enumerate(iterate_values(count)):
        producer.produce(topic, value=value, partition=index % orders.PARTITIONS)
        if index % 10_000 == 0:
            producer.flush(60)
    producer.flush(120)


def write_stream(folder: Path, stream: str, channel: str) -> None:
    """Write the stream file; `channel` is the type of the column that may be required."""
    document = orders.write_document(stream, f"bench.{stream}", 10**6)
    document["value"] = {"convert": "json", "columns": {**orders.COLUMNS, "channel": channel}}
    document["errors"] = {"max_bad_ratio": 1.0}
    (folder / f"{stream}.yaml").write_text(yaml.safe_dump(document))


def replay(stream: str, *, dry_run: bool, offsets: tuple[str, ...] = ()) -> RedriveReport:
    """Bring letters back as the command does."""
    choice = DeadLetterChoice(stream=stream, dry_run=dry_run, offsets=offsets)
    return redrive_dead_letters(open_workspace(stream, "bench"), choice)


def main(letters: int) -> dict[str, object]:
    """Quarantine, mend, bring a few back to warm up, then measure the rest."""
    stream = f"bench{secrets.token_hex(3)}"
    folder = Path(os.environ["FRAZIL_HOME"]) / "bench" / stream
    (folder / "expectations").mkdir(parents=True)
    suite = {"name": stream, "expectations": orders.EXPECTATIONS}
    (folder / "expectations" / f"{stream}.json").write_text(json.dumps(suite))
    os.environ["FRAZIL_STREAMS"] = str(folder)
    fill_topic(find_kafka_config("kafka_default")["bootstrap.servers"], stream, 2 * letters)
    write_stream(folder, stream, "string")
    run_empty(folder, stream)
    while not isinstance(run_one_batch(stream), NothingToRead):
        pass
    write_stream(folder, stream, "string")
    replay(stream, dry_run=False, offsets=(f"{stream}:0:0-200",))
    seconds: dict[str, dict[str, float]] = {}
    for name, dry_run in (("dry_run", True), ("replay", False)):
        before, started = read_cpu(), time.monotonic()
        answer = replay(stream, dry_run=dry_run)
        clock, cpu = time.monotonic() - started, read_cpu() - before
        seconds[name] = {"clock": round(clock, 2), "cpu": round(cpu, 2)}
    assert answer.dead_letters == answer.rows == answer.marked > 0, answer.text
    return {
        "letters": answer.dead_letters,
        "rows": answer.rows,
        "snapshots": len(answer.redrives),
        "marked": answer.marked,
        "seconds": seconds,
        "load": psutil.getloadavg(),
    }


def read_cpu() -> float:
    """Sum the CPU seconds of this process, its ended children and the Spark server."""
    server = os.environ.get("FRAZIL_SPARK_PID")
    pids = [os.getpid(), *([int(server)] if server else [])]
    return sum(sum(psutil.Process(pid).cpu_times()[:4]) for pid in pids)


def run_empty(folder: Path, stream: str) -> None:
    """Create the table with an optional column, then require it: a table keeps what it allows."""
    from frazil.ingest.pipeline import plan_next_batch  # noqa: PLC0415 - the plan alone creates the table

    plan_next_batch(open_workspace(stream, "bench"))
    write_stream(folder, stream, "string!")


if __name__ == "__main__":
    print(json.dumps(main(int(sys.argv[1]) if len(sys.argv) > 1 else 100_000), indent=2))
