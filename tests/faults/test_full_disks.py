"""Spark's own disk is full in the middle of a batch (docs/faults.md, J6)."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import Lab, good_values

from faults.batches import Batches
from frazil.errors import StorageError
from frazil.ingest.staging import stage_batch

pytestmark = pytest.mark.stack
RECORDS = 20_000
SUBFOLDERS = 64


@pytest.fixture
def scratch(lab: Lab, batches: Batches, tmp_path: Path) -> Iterator[Path]:
    """Lay a small file system over the folder where the running Spark server shuffles."""
    lab.write_stream(batch={"max_records": RECORDS})
    lab.create_topic()
    lab.produce(good_values(100))
    batches.publish()
    small = tmp_path / "small"
    small.mkdir()
    # With room enough for the whole batch, so that the second run can only fail for its own sake.
    size = ["-t", "tmpfs", "-o", "size=32m", "tmpfs"]
    if subprocess.run(["mount", *size, str(small)], check=False).returncode != 0:
        # A full disk cannot be made without a small file system, and only root may mount one.
        pytest.skip("only root may mount the small file system that this test fills")  # not root
    # A server that was killed leaves its folder behind: which one is alive cannot be seen.
    folders = list((lab.stack.home / "spark").glob("blockmgr-*"))
    # Spark remembers the folders that it has made: they have to be in the small file system too,
    # and what it makes there has to be in its own folder when that is seen again.
    for folder in (small, *folders):
        for number in range(SUBFOLDERS):
            (folder / f"{number:02x}").mkdir(exist_ok=True)
    for folder in folders:
        subprocess.run(["mount", "--bind", str(small), str(folder)], check=True)
    yield small
    subprocess.run(["umount", "-l", *map(str, folders), str(small)], check=True)


def test_j6_a_full_disk_in_the_shuffle_aborts_the_run_and_the_next_one_reads_the_same_range(
    lab: Lab, batches: Batches, scratch: Path
) -> None:
    lab.produce(good_values(RECORDS))
    plan, head = batches.plan(), batches.table.current_snapshot()
    filler = scratch / "filler"
    filler.write_bytes(os.urandom(shutil.disk_usage(scratch).free))

    with pytest.raises(StorageError, match="No space left on device"):
        stage_batch(batches.open(), plan)

    assert batches.table.current_snapshot() == head
    filler.unlink()
    assert batches.publish().ranges == plan.ranges
    assert batches.faults() == ()
