"""`make conformance`: play the scenario in each cell, resume where the last run broke off."""

import json
import os
import secrets
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from unittest.mock import patch

from conftest import Lab, Stack

from conformance.alerts import describe_connection, keep_mails, raise_alert
from conformance.callers import Caller, CommandLine
from conformance.cells import BYSTANDERS, CELLS, Cell, encode
from conformance.packages import CLIENTS, ensure_packages
from conformance.planted import Search
from conformance.scenario import LAST_ID, make_values, play, write_stream
from conformance.servers import MissingPartError, Servers
from conformance.sites import NEVER, run_site
from frazil.environment import home_dir


def run_cell(cell: Cell, servers: Servers, base: Path) -> Search:
    """Play the scenario in one cell, in a new folder of its name; return what was searched."""
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
        batch={"engine": setup.engine, "schedule": NEVER},
        errors={"max_bad_ratio": 0.5},
    )
    write_stream(lab)
    lab.create_topic()
    mailbox = servers.mailbox
    mailbox.mails.clear()
    connections = {"smtp_default": describe_connection(mailbox.port), **setup.connections}
    environment = {
        "FRAZIL_HOME": str(folder),
        "FRAZIL_FORK_SERVER": str(servers.clients),
        **(setup.environment or {}),
        **encode({**BYSTANDERS, **connections}),
    }
    search = Search()
    with patch.dict(os.environ, environment), search.watch_processes():
        with open_caller(cell, servers, lab) as caller:
            play(lab, setup.data, caller)
        if cell.has_alert:
            lab.produce(make_values(1, LAST_ID + 1))
            raise_alert(lab)
            assert lab.stream in keep_mails(mailbox, folder), "no alert was mailed"
    for each in {folder, setup.data or folder}:
        search.read_files(each)
    for server in servers.traces:
        search.read_traces(server.read_traces())
    assert not search.found, f"secrets are in {sorted(search.found)}"
    return search


@contextmanager
def open_caller(cell: Cell, servers: Servers, lab: Lab) -> Iterator[Caller]:
    """Return the one who runs the steps of the cell's stream."""
    if not cell.executor:
        yield CommandLine(lab)
        return
    with run_site(lab, cell.executor, servers) as dags:
        yield dags


def use_clients(cells: Iterable[Cell]) -> None:
    """Let this process and those that it starts import the clients of Hive and Glue."""
    if {"hive", "glue"}.isdisjoint(cell.catalog for cell in cells):
        return
    folder = str(ensure_packages("clients", CLIENTS))
    sys.path.append(folder)
    os.environ["PYTHONPATH"] += f"{os.pathsep}{folder}"


def judge(cell: Cell, servers: Servers, base: Path) -> dict[str, object]:
    """Run a cell; return its outcome and seconds."""
    started, searched = time.monotonic(), ""
    try:
        searched = str(run_cell(cell, servers, base))
        outcome = "passed"
    except MissingPartError as missing:
        outcome = f"not run: {missing}"
    except Exception:  # noqa: BLE001 - the other cells go on
        traceback.print_exc()
        outcome = "FAILED"
    seconds = round(time.monotonic() - started)
    return {"outcome": outcome, "seconds": seconds, "searched": searched}


def main(only: str) -> int:
    """Run the cells that have not passed yet; print the table.

    Returns 1 if one failed, or was not run because this machine lacks its server.
    """
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
    elif all(results.get(cell.name, {}).get("outcome") == "passed" for cell in CELLS):
        results = {}  # the last run is complete
    use_clients(chosen)
    shutil.rmtree(base / "servers", ignore_errors=True)
    with ExitStack() as stack:
        servers = Servers(base / "servers", stack)
        for cell in chosen:
            if results.get(cell.name, {}).get("outcome") == "passed":
                continue
            results[cell.name] = judge(cell, servers, base)
            path.write_text(json.dumps(results, indent=1))
            print(f"{cell.name}: {results[cell.name]}", flush=True)
    print_table(results)
    return int(any(results[cell.name]["outcome"] != "passed" for cell in chosen))


def print_table(results: dict[str, dict[str, object]]) -> None:
    """Print one line for each cell."""
    print(
        f"{'cell':18}{'Kafka':26}{'catalog':10}{'storage':9}{'Spark':15}{'Airflow':16}{'s':>5}"
        "  outcome"
    )
    for cell in CELLS:
        found = results.get(cell.name, {"seconds": "", "outcome": "not run yet"})
        print(
            f"{cell.name:18}{cell.kafka:26}{cell.catalog:10}{cell.storage:9}{cell.spark:15}"
            f"{cell.executor:16}{found['seconds']:>5}  {found['outcome']}"
        )
    total = sum(int(str(r["seconds"])) for r in results.values())
    print(f"{len(results)} of {len(CELLS)} cells, {total} s")


if __name__ == "__main__":
    # As an exception it leaves the `with` blocks, which stop the servers.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    sys.exit(main(os.environ.get("CELL", "")))
