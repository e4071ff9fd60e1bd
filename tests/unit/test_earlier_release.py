"""Release 0.1's own code on what this release wrote: it goes on, or refuses by a sentence.

`releases/0.1-code.tar.gz` has the modules of commit 0204679, the last one of 0.1.0, that a batch
without Spark and Kafka loads, and that commit's `tests/support/lake.py`.
"""

import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from conftest import REPO
from support.lake import Lake, Molds, make_state, passed
from support.operated_lake import (
    AHEAD_SECONDS,
    JANE,
    STREAM,
    Site,
    compact,
    erase_keys,
    expire,
    expire_old,
    lose,
    open_site,
    redrive,
    roll_back,
)
from support.record_release import SECTIONS, record_messages

from frazil.iceberg import commits
from frazil.iceberg.commit_retry import commit_once
from frazil.ingest.blocked_batches import BlockedBatch, encode_blocked, read_blocked
from frazil.ingest.pipeline import describe_published
from frazil.ledger.state import encode_state
from frazil.recovery.decisions import waive_batch
from frazil.workspace import Workspace
from frazil_airflow.record_trigger import NewRecordsTrigger

pytestmark = pytest.mark.slow

CODE = Path(__file__).parent / "releases" / "0.1-code.tar.gz"
DOCUMENT = STREAM.model_dump(mode="json", by_alias=True, exclude_defaults=True)


@dataclass(frozen=True)
class Earlier:
    """A process of release 0.1 that answers questions."""

    process: "subprocess.Popen[str]"

    def ask(self, question: str, /, **given: object) -> dict[str, object]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps([question, given]) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())


@pytest.fixture(scope="module")
def earlier(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Earlier]:
    folder = tmp_path_factory.mktemp("release")
    with tarfile.open(CODE) as archive:
        archive.extractall(folder, filter="data")
    path = os.pathsep.join(str(folder / name) for name in ("include", "tests"))
    program = str(REPO / "tests" / "support" / "earlier_release.py")
    command = [sys.executable, "-P", program, str(AHEAD_SECONDS)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with (folder / "log").open("w") as log:
        environment = {**os.environ, "PYTHONPATH": path, "FRAZIL_HOME": str(folder)}
        with subprocess.Popen(command, env=environment, stderr=log, **pipes) as process:
            yield Earlier(process)
            process.kill()


@pytest.fixture
def lake(molds: Molds) -> Iterator[Lake]:
    with molds.begin(STREAM) as lake:
        yield lake


@pytest.fixture
def site(lake: Lake, molds: Molds, work: Workspace, monkeypatch: pytest.MonkeyPatch) -> Site:
    return open_site(lake, molds, work, monkeypatch)


@pytest.mark.parametrize(
    "operation", [compact, expire, expire_old, erase_keys, roll_back, redrive, lose]
)
def test_0_1_goes_on_with_a_table_of_this_release_and_this_one_goes_on_with_its(
    site: Site, earlier: Earlier, operation: Callable[[Site], None]
) -> None:
    operation(site)
    lake, point, before = site.lake, site.lake.point, site.lake.coordinates()
    assert point is not None
    [start, other] = point.state.offsets["orders"]

    answer = earlier.ask("go_on", folder=str(lake.folder), stream=DOCUMENT, ends=[start + 3, other])
    lake.ingest(start + 5, other)

    offsets = {topic: list(values) for topic, values in point.state.offsets.items()}
    assert answer == {"did": {"epoch": point.state.epoch, "offsets": offsets}}
    assert lake.coordinates() == sorted([*before, *((0, start + i) for i in range(5))])
    assert lake.point is not None
    assert lake.point.state.epoch == point.state.epoch + 2


def test_0_1_keeps_a_block_and_its_waiver(site: Site, earlier: Earlier) -> None:
    lake = site.lake
    plan = lake.plan(15, 0)
    blocked = BlockedBatch(
        plan=plan,
        error="QualityFailed",
        failures=("2 of 3 values are missing",),
        branch="frazil_orders_0_x",
        blocked_at="2026-11-25T00:00:00+00:00",
    )
    updates = [commits.set_properties(encode_blocked(blocked))]
    commit_once(lake.store, lake.table, {}, updates)
    given = {"folder": str(lake.folder), "stream": DOCUMENT}

    refused = earlier.ask("go_on", ends=[15, 0], **given)
    waive_batch(site.open(), plan.batch_id, JANE)
    read = earlier.ask("read_block", **given)

    assert str(refused["refused"]).startswith("BatchBlockedError: ")
    expected = read_blocked(lake.table.properties, "orders")
    assert expected is not None
    assert read == {"did": expected.model_dump(mode="json")}


def test_0_1_reads_a_message_in_flight_as_it_is_or_refuses_it(lake: Lake, earlier: Earlier) -> None:
    plan = lake.plan(3, 2)
    staged = lake.stage(plan)
    published = describe_published(plan, lake.publish(plan, staged))
    messages = [plan, staged, passed(plan, staged), *record_messages(plan, published)]
    wrong = {}
    for message in messages:
        name, text = type(message).__name__, message.encode()
        answer = earlier.ask("read_message", name=name, text=text)
        is_refused = "Extra inputs are not permitted" in str(answer.get("refused"))
        if not is_refused and answer.get("did") != json.loads(text):
            wrong[name] = answer

    assert wrong == {}


def test_0_1_resumes_a_waiting_trigger(earlier: Earlier) -> None:
    path, arguments = NewRecordsTrigger("orders").serialize()

    answer = earlier.ask("resume_trigger", path=path, arguments=arguments)

    assert answer == {"did": [path, arguments]}


def test_0_1_refuses_a_state_of_a_newer_format(earlier: Earlier) -> None:
    newer = encode_state(make_state()).replace('"v":1', '"v":2')

    answer = earlier.ask("read_state", text=newer)

    assert "version 2, this release reads 1" in str(answer["refused"])
    assert "run the newer release that wrote it" in str(answer["refused"])


@pytest.mark.parametrize(
    ("section", "option"),
    [
        ({"mode": "upsert"}, "mode"),
        ({"batch": {"max_bytes_per_second": 10_000}}, "max_bytes_per_second"),
        ({"source": {"topic_pattern": "a.*"}}, "topic_pattern"),
    ],
    ids=["a state table", "a throttle", "a pattern of topics"],
)
def test_0_1_refuses_a_stream_file_with_an_option_that_came_later_and_names_it(
    earlier: Earlier, section: dict[str, object], option: str
) -> None:
    answer = earlier.ask("read_stream", document={**DOCUMENT, **SECTIONS, **section})

    assert option in str(answer["refused"])
    assert "Extra inputs are not permitted" in str(answer["refused"])
