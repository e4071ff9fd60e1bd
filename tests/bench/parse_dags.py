"""Measure how long Airflow needs to parse the DAG files of many streams.

    python tests/bench/parse_dags.py --streams 100 [--one-file]

With `--one-file` the streams are the topics of one file's `topic_pattern`, with the same options.

Prints JSON: seconds of processor time per DAG file (the first one pays for Frazil's own imports),
their sum, and the seconds of one task's own parse. Processor time, because what else the machine
does must not count; nor does importing Airflow itself. Exit 1 above the limit: a second for up to a
hundred streams, five for up to a thousand.
"""

import argparse
import json
import logging
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from airflow.dag_processing.dagbag import DagBag

PROJECT = Path(__file__).parents[2]
FACTORIES = ("ingest_dag.py", "maintain_dag.py")
LIMITS_SECONDS = {100: 1.0, 1000: 5.0}
CONTEXT = "_AIRFLOW_PARSING_CONTEXT_DAG_ID"
STREAM = """\
stream: s{number:03}
owner: data-platform@example.org
source: {{connection: kafka_default, topic: t{number:03}, start: earliest}}
value:
  convert: json
  columns: {{flight_id: long!, carrier: string!, dep_delay: double, time_hour: timestamp!}}
table: {{name: bench.s{number:03}, partition_by: ["day(time_hour)", "bucket(carrier, 4)"]}}
batch: {{schedule: "*/5 * * * *", max_records: 1000000}}
errors: {{tolerance: quarantine, max_bad_ratio: 0.05}}
freshness: {{warn_seconds: 180, fail_seconds: 600}}
maintenance: {{schedule: "{minute} * * * *", compact_target_mb: 128, expire_hours: 72}}
"""


def measure(streams: int, folder: Path, *, is_one_file: bool = False) -> dict[str, object]:
    """Parse every DAG file once in this process, as the DAG processor would."""
    os.environ |= {"FRAZIL_STREAMS": str(folder), "AIRFLOW_HOME": str(folder / "airflow")}
    os.environ["FRAZIL_HOME"] = str(folder / "home")
    if is_one_file:
        write_pattern(streams, folder)
    for number in () if is_one_file else range(streams):
        text = STREAM.format(number=number, minute=number % 60)
        (folder / f"s{number:03}.yaml").write_text(text)
    os.environ["AIRFLOW__CORE__LOAD_EXAMPLES"] = "False"
    from airflow.dag_processing.dagbag import DagBag  # noqa: PLC0415 - after its environment

    logging.disable()
    bag = DagBag(PROJECT / "dags", collect_dags=False)
    names = sorted((PROJECT / "dags").glob("*_dag.py"), key=lambda p: p.name not in FACTORIES)
    started = time.monotonic()
    seconds = {path.name: parse(bag, path) for path in names}
    clock = time.monotonic() - started
    os.environ[CONTEXT] = "ingest__s__t000" if is_one_file else "ingest__s000"
    one_task = parse(bag, PROJECT / "dags" / FACTORIES[0])
    total = sum(seconds.values())
    limit = next(limit for most, limit in LIMITS_SECONDS.items() if streams <= most)
    return {
        "streams": streams,
        "one_file": is_one_file,
        "dags": len(bag.dags),
        "import_errors": len(bag.import_errors),
        "seconds": {name: round(value, 3) for name, value in seconds.items()},
        "total_seconds": round(total, 3),
        "total_seconds_by_the_clock": round(clock, 3),
        "one_task_seconds": round(one_task, 3),
        "limit_seconds": limit,
        "is_within_limit": total <= limit,
    }


def write_pattern(streams: int, folder: Path) -> None:
    """Write one file with a topic pattern, and the list of its topics."""
    text = STREAM.format(number=0, minute=0).replace("s000", "s", 1)
    text = text.replace("topic: t000", "topic_pattern: 't.*'").replace(
        "bench.s000", '"bench.{topic}"'
    )
    (folder / "s.yaml").write_text(text)
    topics = {f"t{number:03}": {} for number in range(streams)}
    (folder / "home" / "topics").mkdir(parents=True)
    listed = {"stream": "s", "refreshed_at": "2026-01-01T00:00:00Z", "topics": topics}
    (folder / "home" / "topics" / "s.json").write_text(json.dumps(listed))


def parse(bag: "DagBag", path: Path) -> float:
    """Parse one file and give its seconds of processor time."""
    started = time.process_time()
    bag.process_file(str(path), only_if_updated=False)  # type: ignore[no-untyped-call]
    return time.process_time() - started


def main() -> int:
    """Measure, print, compare with the limit."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--streams", type=int, default=100, help="at most 1000")
    arguments.add_argument("--one-file", action="store_true", help="one file with a topic pattern")
    given = arguments.parse_args()
    with tempfile.TemporaryDirectory(prefix="frazil-parse-") as folder:
        answer = measure(given.streams, Path(folder), is_one_file=given.one_file)
    sys.stdout.write(json.dumps(answer, indent=2) + "\n")
    return 0 if answer["is_within_limit"] else 1


if __name__ == "__main__":
    sys.exit(main())
