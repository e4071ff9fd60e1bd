"""`make bench-steps`: what the parts of the product cost, each beside its floor or limit; JSON.

It starts a stack of its own and runs the benches below one after the other, each in a process of
its own. RECORDS (1,000,000) and ROUNDS (5) set the size; it ends with 1 where a limit is missed.
"""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from run_bench import HERE, ask, find_figure, started_stack

RECORDS = os.environ.get("RECORDS", "1000000")
ROUNDS = os.environ.get("ROUNDS", "5")
MANY_SMALL = str(3 * int(RECORDS))
"""Of the small events as many as are of the size of a batch; a million is mostly fixed seconds."""
PATTERNS = "event_id ^[0-9a-f]{24}$; session ^[0-9a-f]{16}$; currency ^[A-Z]{3}$; ua ^Mozilla/"
BENCHES: Mapping[str, tuple[tuple[str, ...], dict[str, str]]] = {
    "formats": (("formats.py", RECORDS, ROUNDS), {}),
    "flat": (("throughput.py", MANY_SMALL, ROUNDS), {"EVENTS": "readings"}),
    "partitioned": (("throughput.py", RECORDS, ROUNDS), {"PARTITION_BY": "day(ts)"}),
    "patterns": (("throughput.py", RECORDS, ROUNDS), {"PATTERNS": PATTERNS}),
    "means": (("throughput.py", RECORDS, ROUNDS), {"MEANS": "amount; order_id"}),
    "fifty": (("throughput.py", RECORDS, ROUNDS), {"EXPECTATIONS": "50"}),
    "bad": (("all_bad.py", RECORDS), {}),
    "letters": (("redrive.py",), {}),
    "replay": (("replay.py", "--records", RECORDS), {}),
    "recover": (("recover.py",), {}),
}
AT_LEAST = {
    "formats.raw.speed_beside_json": 1.5,
    "formats.avro.speed_beside_json": 1.3,
    "formats.protobuf.speed_beside_json": 0.8,
}
AT_MOST = {
    "flat.time_ratio_median": round(1 / 1.05, 3),
    "partitioned.time_ratio_median": 1.0,
    "patterns.time_ratio_median": 1.0,
    "means.time_ratio_median": 1.0,
    "fifty.time_ratio_same_settings": 1.25,
    "bad.1.driver_growth_mib": 200,
    "letters.seconds.replay.clock": 15,
    "replay.total_seconds": 30,
    "recover.seconds": 5,
}


def run(environment: Mapping[str, str], words: tuple[str, ...], given: Mapping[str, str]) -> Any:
    """Run one bench; what it says on the way goes to standard error."""
    print(f"# {' '.join(words)} {dict(given) or ''}", file=sys.stderr)
    done = subprocess.run(
        [sys.executable, str(HERE / words[0]), *words[1:]],
        env={**environment, **given},
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    return json.loads(done.stdout)


def main(names: list[str]) -> dict[str, Any]:
    """Run the named benches, all without names; `missed` are the limits that do not hold."""
    figures: dict[str, Any] = {}
    with started_stack("--only", "kafka,spark", "--with", "registry") as found:
        pid = str(ask(found, "stack", "status")["parts"]["spark_connect"]["pid"])
        environment = {**found, "FRAZIL_SPARK_PID": pid}
        for name in names or BENCHES:
            figures[name] = run(environment, *BENCHES[name])
    figures["missed"] = [
        f"{path}: {value}, limit {limit}"
        for limits, sign in ((AT_MOST, 1), (AT_LEAST, -1))
        for path, limit in limits.items()
        if path.partition(".")[0] in figures
        and sign * (value := find_figure(figures, path)) > sign * limit
    ]
    return figures


if __name__ == "__main__":
    result = main(sys.argv[1:])
    print(json.dumps(result, indent=2))
    sys.exit(1 if result["missed"] else 0)
