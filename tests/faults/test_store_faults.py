"""The object store refuses or tears a write in the middle of a publish (docs/faults.md, J3)."""

from collections.abc import Iterator
from functools import cached_property
from pathlib import Path

import pytest
import stamina
from support.lake import Lake, make_stream
from support.scripted_store import ScriptedStore

from faults.imagined_kafka import find_faults
from frazil.connections.clients import CatalogPreset
from frazil.errors import StorageError
from frazil.iceberg.catalog import TableStore
from frazil.iceberg.commit_retry import MAX_ATTEMPTS

SLOW_DOWN = "AWS Error SLOW_DOWN during PutObject: 503 Slow Down"
WRITES = ("manifest", "manifest list", "metadata")


class StoreLake(Lake):
    """A lake on a store whose writes can be scripted."""

    @cached_property
    def store(self) -> TableStore:
        """Open the catalog with the scripted store behind it."""
        preset = Lake(self.folder, self.stream).store.preset
        scripted = {"py-io-impl": "support.scripted_store.ScriptedStore"}
        return TableStore(CatalogPreset(preset.name, {**preset.properties, **scripted}))


@pytest.fixture
def store_lake(tmp_path: Path) -> Iterator[StoreLake]:
    """Return a lake with a first batch."""
    lake = StoreLake(tmp_path, make_stream())
    lake.begin()
    lake.ingest(3, 2)
    with stamina.set_testing(True, attempts=MAX_ATTEMPTS, cap=True):
        yield lake
    ScriptedStore.failures.clear()
    lake.catalog.close()


@pytest.mark.storm(1)
@pytest.mark.parametrize("position", range(len(WRITES)), ids=WRITES)
def test_j3_a_write_that_the_store_tears_once_is_done_again_and_lands_once(
    store_lake: StoreLake, position: int
) -> None:
    lake = store_lake
    plan = lake.plan(5, 5)
    staged = lake.stage(plan)
    ScriptedStore.failures[:] = [*[None] * position, OSError(SLOW_DOWN)]

    landed = lake.publish(plan, staged)

    assert ScriptedStore.failures == []
    assert landed.already_published is False
    assert find_faults(lake, 5, 5) == ()


@pytest.mark.storm(1)
@pytest.mark.parametrize("position", range(len(WRITES)), ids=WRITES)
def test_j3_a_store_that_refuses_every_write_fails_the_publish_and_the_next_one_lands(
    store_lake: StoreLake, position: int
) -> None:
    lake = store_lake
    plan = lake.plan(5, 5)
    staged = lake.stage(plan)
    before = lake.table.metadata_location
    ScriptedStore.failures[:] = [*[None] * position, OSError(SLOW_DOWN)] * MAX_ATTEMPTS

    with pytest.raises(StorageError, match="503 Slow Down"):
        lake.publish(plan, staged)

    ScriptedStore.failures.clear()
    assert lake.table.metadata_location == before
    assert find_faults(lake, 3, 2) == ()
    lake.publish(plan, staged)
    assert find_faults(lake, 5, 5) == ()
