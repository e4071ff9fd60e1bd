"""What release 0.1 left behind goes on under this code, and what this code writes 0.1 can read.

`support/record_release.py` recorded it in a checkout of that release.
"""

import json
import tarfile
from importlib import import_module
from pathlib import Path
from typing import cast

import pytest
from support.lake import Lake
from support.record_release import PLACE, PlainLake, relocate

from frazil.errors import UnknownStateError
from frazil.ingest import messages as ingest
from frazil.ingest.blocked_batches import (
    BlockedBatch,
    RulesFingerprint,
    read_blocked,
    still_applies,
)
from frazil.ingest.messages import BatchPlan, Staged, Verdict
from frazil.ingest.pipeline import publish_staged
from frazil.ingest.planning import transform_version
from frazil.ledger import keys
from frazil.ledger.state import encode_state, parse_state
from frazil.maintenance import messages as maintenance
from frazil.messages import Message
from frazil.migration import messages as migration
from frazil.observability.status import list_snapshots, locate_offset
from frazil.recovery import messages as recovery
from frazil.streams.models import Stream
from frazil.workspace import Workspace

RELEASE = Path(__file__).parent / "releases" / "0.1.tar.gz"
MODULES = (ingest, maintenance, migration, recovery)


class Release:
    """A recorded release, unpacked into a folder of the test's own."""

    def __init__(self, folder: Path) -> None:
        """Unpack, and give the tables their new place."""
        with tarfile.open(RELEASE) as archive:
            archive.extractall(folder, filter="data")
        relocate(folder, PLACE, str(folder))
        self.folder = folder

    def read(self, name: str) -> str:
        return (self.folder / f"{name}.json").read_text()

    def lake(self, stream: str) -> Lake:
        return PlainLake(self.folder, Stream.model_validate_json(self.read(stream)))

    def work(self, stream: str) -> Workspace:
        lake = self.lake(stream)
        work = Workspace(lake.stream, self.folder, "upgraded")
        vars(work)["store"] = lake.store
        return work


@pytest.fixture
def release(tmp_path: Path) -> Release:
    return Release(tmp_path)


def test_a_stream_of_0_1_goes_on_where_it_was(release: Release) -> None:
    lake = release.lake("orders")

    assert lake.point is not None
    assert (lake.point.state.epoch, lake.point.state.offsets) == (2, {"orders": (5, 4)})
    assert lake.plan(7, 6).batch_id == BatchPlan.parse(release.read("plan")).batch_id
    assert [s.kind for s in list_snapshots(release.work("orders"))][-1] == "bootstrap"
    assert locate_offset(release.work("orders"), "orders", 0, 4).found


def test_a_batch_that_0_1_has_staged_is_published(release: Release) -> None:
    steps = [BatchPlan.parse(release.read("plan")), Staged.parse(release.read("staged"))]
    verdict = Verdict.parse(release.read("verdict"))

    published = publish_staged(release.work("orders"), *steps, verdict)

    assert (published.outcome, published.epoch) == ("PUBLISHED", 3)
    expected = [(p, offset) for p, end in ((0, 7), (1, 6)) for offset in range(end)]
    assert release.lake("orders").coordinates() == expected


def test_a_block_and_its_waiver_outlive_the_upgrade(release: Release) -> None:
    lake = release.lake("returns")
    blocked, point = read_blocked(lake.table.properties, "returns"), lake.point

    assert blocked is not None
    assert point is not None
    assert blocked.waiver is not None
    now = RulesFingerprint(
        suite_hash="",
        stream_hash=lake.stream.content_hash,
        transform_version=transform_version(lake.stream),
    )
    assert now == RulesFingerprint.of(blocked.plan)
    assert still_applies(blocked, point, now)


def test_options_that_came_later_do_not_change_what_a_stream_file_means(release: Release) -> None:
    hashes = json.loads(release.read("hashes"))

    assert {name: release.lake(name).stream.content_hash for name in hashes} == hashes


def recorded_messages() -> dict[str, object]:
    with tarfile.open(RELEASE) as archive:
        file = archive.extractfile("./messages.json")
        assert file is not None
        return cast("dict[str, object]", json.load(file))


@pytest.mark.parametrize("name", recorded_messages())
def test_a_message_that_waits_between_tasks_is_read(name: str) -> None:
    kinds = [getattr(module, name) for module in MODULES if hasattr(module, name)]
    kind = cast("type[Message]", kinds[0])

    given = recorded_messages()[name]

    assert given.items() <= json.loads(kind.parse(json.dumps(given)).encode()).items()


def test_a_trigger_that_waits_in_airflows_database_is_found(release: Release) -> None:
    path, arguments = json.loads(release.read("trigger"))
    module, _, name = path.rpartition(".")

    trigger = getattr(import_module(module), name)(**arguments)

    assert trigger.serialize() == (path, arguments)


def fields_of(plain: object) -> set[str]:
    """List the fields of a JSON value of a recorded or present message, at its top level."""
    return set(cast("dict[str, object]", plain))


def test_what_is_stored_in_tables_has_the_fields_that_0_1_knows(release: Release) -> None:
    recorded = release.lake("returns").table.properties[keys.blocked_key("returns")]
    plain = json.loads(recorded)
    state = release.lake("orders").point
    assert state is not None

    written = BlockedBatch.model_validate(plain).model_dump(mode="json")

    assert fields_of(written) == fields_of(plain)
    assert fields_of(written["plan"]) == fields_of(plain["plan"])
    known = {"v", "epoch", "batch", "offsets", "topic-ids", "cluster-id"}
    assert fields_of(json.loads(encode_state(state.state))) == known


def test_a_state_of_a_newer_format_is_refused(release: Release) -> None:
    point = release.lake("orders").point
    assert point is not None
    newer = encode_state(point.state).replace('"v":1', '"v":2')

    with pytest.raises(UnknownStateError, match="version 2, this release reads 1") as refused:
        parse_state(newer)
    assert "run the newer release" in refused.value.next_step


@pytest.mark.parametrize("name", ["plan", "staged", "verdict"])
def test_a_message_of_a_newer_format_is_refused(release: Release, name: str) -> None:
    kind = {"plan": BatchPlan, "staged": Staged, "verdict": Verdict}[name]
    plain = json.loads(release.read(name))

    for newer in ({**plain, "v": 2}, {**plain, "added_later": 1}):
        with pytest.raises(ValueError, match=r"v\n|added_later"):
            kind.parse(json.dumps(newer))
