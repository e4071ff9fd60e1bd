"""`make conformance`: play the scenario in each cell, resume where the last run broke off."""

import json
import os
import secrets
import shutil
import sys
import time
import traceback
from contextlib import ExitStack
from pathlib import Path
from unittest.mock import patch

from conftest import Lab, Stack

from conformance.alerts import describe_connection, keep_mails, raise_alert
from conformance.cells import BYSTANDERS, CELLS, Cell, encode
from conformance.planted import find_in_files, find_in_traces, watch_processes
from conformance.scenario import LAST_ID, make_values, play
from conformance.servers import MissingPartError, Servers
from frazil.environment import home_dir


def run_cell(cell: Cell, servers: Servers, base: Path) -> None:
    """Play the scenario in one cell, in a new folder of its name."""
    folder = base / cell.name
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "streams").mkdir(parents=True)
    setup = cell.prepare(servers, folder)
    stream = f"{cell.name}_{secrets.token_hex(3)}"
    stack = Stack(folder, {"kafka": {"bootstrap": servers.broker.address("PLAINTEXT")}})
    lab = Lab(stack, folder / "streams", stream)
    lab.write_stream(
        stream=stream,
        owner="conformance@example.org",
        source={"topic": stream},
        table={"name": lab.table, "partition_by": ["bucket(id, 2)"]},
        batch={"engine": setup.engine},
        errors={"max_bad_ratio": 0.5},
    )
    mailbox = servers.mailbox
    mailbox.mails.clear()
    connections = {"smtp_default": describe_connection(mailbox.port), **setup.connections}
    environment = {
        "FRAZIL_HOME": str(folder),
        "FRAZIL_FORK_SERVER": str(servers.clients),
        **(setup.environment or {}),
        **encode({**BYSTANDERS, **connections}),
    }
    with patch.dict(os.environ, environment), watch_processes() as seen:
        play(lab, setup.data)
        if cell.has_alert:
            lab.produce(make_values(1, LAST_ID + 1))
            raise_alert(lab)
            assert lab.stream in keep_mails(mailbox, folder), "no alert was mailed"
    found = seen | find_in_files(folder)
    for server in servers.traces:
        found |= find_in_traces(server.read_traces())
    if setup.data and setup.data != folder:
        found |= find_in_files(setup.data)
    assert not found, f"secrets are in {sorted(found)}"


def judge(cell: Cell, servers: Servers, base: Path) -> dict[str, object]:
    """Run a cell; return its outcome and seconds."""
    started = time.monotonic()
    try:
        run_cell(cell, servers, base)
        outcome = "passed"
    except MissingPartError as missing:
        outcome = f"not run: {missing}"
    except Exception:  # noqa: BLE001 - the other cells go on
        traceback.print_exc()
        outcome = "FAILED"
    return {"outcome": outcome, "seconds": round(time.monotonic() - started)}


def main(only: str) -> int:
    """Run the cells that have not passed yet; print the table."""
    base = home_dir() / "conformance"
    base.mkdir(parents=True, exist_ok=True)
    path = base / "results.json"
    results = json.loads(path.read_text()) if path.is_file() else {}
    names = only.replace(",", " ").split() or [cell.name for cell in CELLS]
    chosen = [cell for cell in CELLS if cell.name in names]
    if len(chosen) < len(names):
        sys.exit(f"no such cell: {only}\nNext: some of {', '.join(c.name for c in CELLS)}")
    if only:
        results = {name: found for name, found in results.items() if name not in names}
    elif all(c.name in results and results[c.name]["outcome"] != "FAILED" for c in CELLS):
        results = {}  # the last run is complete
    shutil.rmtree(base / "servers", ignore_errors=True)
    with ExitStack() as stack:
        servers = Servers(base / "servers", stack)
        for cell in chosen:
            if results.get(cell.name, {}).get("outcome", "FAILED") != "FAILED":
                continue
            results[cell.name] = judge(cell, servers, base)
            path.write_text(json.dumps(results, indent=1))
            print(f"{cell.name}: {results[cell.name]}", flush=True)
    print_table(results)
    return int(any(r["outcome"] == "FAILED" for r in results.values()))


def print_table(results: dict[str, dict[str, object]]) -> None:
    """Print one line for each cell."""
    print(f"{'cell':18}{'Kafka':26}{'catalog':12}{'storage':9}{'Spark':15}{'s':>5}  outcome")
    for cell in CELLS:
        found = results.get(cell.name, {"seconds": "", "outcome": "not run yet"})
        print(
            f"{cell.name:18}{cell.kafka:26}{cell.catalog:12}{cell.storage:9}{cell.spark:15}"
            f"{found['seconds']:>5}  {found['outcome']}"
        )
    total = sum(int(str(r["seconds"])) for r in results.values())
    print(f"{len(results)} of {len(CELLS)} cells, {total} s")


if __name__ == "__main__":
    sys.exit(main(os.environ.get("CELL", "")))
