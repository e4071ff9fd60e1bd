"""The operator's page is typed in as it stands, on real parts: each command does what it says."""

import re
import shlex
from datetime import UTC, datetime, timedelta

import pytest
from conftest import REPO, Lab, good_values
from faults.auditor import audit_table

pytestmark = pytest.mark.stack
PAGE = (REPO / "docs" / "operate.md").read_text()
ELSEWHERE = (
    "frazil stack",
    "frazil doctor",
    "frazil drill ",
    "frazil compare ",
    "frazil adopt ",
    "kafka_old",
    " orders",
    " events",
)
"""Commands with tests of their own: they start stacks, or speak of other streams."""
NOTHING_TO_DO = {
    "waive": "no batch is blocked",
    "accept-gap": "Kafka still has everything",
    "move-cluster": "which the ledger reads already",
    "--reingest": "there is nothing to recover from",
    "--skip": "there is nothing to recover from",
    "--new-table": "there is nothing to recover from",
    "--accept": "agrees with the stream file",
    "--stop": "agrees with the stream file",
}
"""Answers to questions that a sound stream does not ask: refused, and nothing is written."""


def read_commands() -> list[str]:
    """List the commands of the page's blocks, in their order."""
    blocks = re.findall(r"```(?:bash|sh)\n(.*?)```", PAGE, re.DOTALL)
    lines = [line.partition("  #")[0].strip() for block in blocks for line in block.splitlines()]
    wanted = [line for line in lines if line.startswith("frazil ")]
    return [line for line in wanted if not any(word in line for word in ELSEWHERE)]


def fill_in(command: str, lab: Lab, snapshot: str, between: datetime) -> list[str]:
    """Put the lab's stream, a snapshot and a time of it in the place of the page's examples."""
    text = command.replace("--to-snapshot 4711", f"--to-snapshot {snapshot}")
    text = text.replace("4711", "30").replace("100-200", "10-20").replace("flights", lab.stream)
    text = text.replace("1f2e…", "1f2e")
    now = datetime.now(UTC)
    times = iter([now - timedelta(hours=1), now] if "--until" in text else [between])
    return shlex.split(re.sub(r"2026-01-31T\d\d:00:00Z", lambda _: next(times).isoformat(), text))


def test_every_command_of_the_page_does_what_it_says(lab: Lab) -> None:
    lab.create_topic()
    lab.produce([*good_values(150), b"no json"])
    lab.drain()
    snapshot = lab.frazil("snapshots", lab.stream, "--json").json[0]["snapshot_id"]  # type: ignore[index]
    between = datetime.now(UTC)
    lab.produce(good_values(40, start=150))
    lab.drain()
    commands = read_commands()

    wrong = []
    for command in commands:
        done = lab.frazil(*fill_in(command, lab, str(snapshot), between)[1:])
        refusal = next((text for word, text in NOTHING_TO_DO.items() if word in command), None)
        as_said = done.code == 0 if refusal is None else done.code == 1 and refusal in done.err
        if not as_said:
            wrong.append((command, done.code, done.out[-300:], done.err[-500:]))

    assert wrong == []
    assert len(commands) > 30
    lab.drain()
    report = audit_table(
        lab.stack.catalog_properties, "lake", lab.table, lab.stack.bootstrap, lab.stream
    )
    assert report.findings == ()
