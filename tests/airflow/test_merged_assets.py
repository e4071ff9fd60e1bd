"""The asset of a state table: announced by the merge that committed, and by no other."""

from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest
from airflow.sdk import DAG, Asset, AssetAlias, Context
from airflow.sdk.execution_time.context import OutletEventAccessors

from frazil.state_tables.messages import MergeCounts, Merged
from frazil.streams.loading import load_streams_of
from frazil_airflow.assets import MERGED, state_assets
from frazil_airflow.tasks import FrazilTask, frazil_task

pytestmark = pytest.mark.airflow

COUNTS = dict.fromkeys(MergeCounts.model_fields, 0) | {"changes": 3, "inserted": 2, "updated": 1}
DONE = Merged(
    stream="orders",
    table="shop.orders",
    outcome="MERGED",
    snapshot_id=2**62 + 1,
    change_snapshot=7,
    counts=MergeCounts(**COUNTS),
)
TOLD = {
    "stream": "orders",
    "table": "shop.orders",
    "snapshot_id": 2**62 + 1,
    "change_snapshot": 7,
    "counts": COUNTS,
    "rebuilt": "",
    "read_as": "shop.orders VERSION AS OF 4611686018427387905",
}


@pytest.fixture
def asset(write_stream: Callable[..., Path]) -> Asset:
    path = write_stream("orders")
    upsert = "{name: shop.orders, mode: upsert, id_columns: [id]}"
    path.write_text(path.read_text().replace("{name: shop.orders}", upsert))
    (found,) = state_assets(load_streams_of(path)[0])
    return found


def run(merged: Merged, outlet: Asset | AssetAlias) -> tuple[FrazilTask, OutletEventAccessors]:
    """Run a task with this result as Airflow's runner does, without its supervisor."""
    with DAG("test", schedule=None):
        made = frazil_task(lambda: merged).override(task_id="merge", outlets=[outlet])()
    ((task, _),) = made.iter_references()
    events = OutletEventAccessors()
    context = {"outlet_events": events, "task": task, "params": {}, "run_id": "manual__1"}
    task.execute(cast("Context", context))
    return cast("FrazilTask", task), events


def test_a_merge_is_announced_with_its_snapshots_and_counts(asset: Asset) -> None:
    task, events = run(DONE, asset)

    assert (asset.name, asset.uri) == ("shop.orders", "iceberg://iceberg_default/shop.orders")
    assert task.outlets == [asset]
    assert events[asset].extra == TOLD


def test_a_merge_of_any_stream_names_the_asset_of_its_state_table(asset: Asset) -> None:
    _, events = run(DONE, MERGED)

    (event,) = events[MERGED].asset_alias_events
    assert (event.dest_asset_key.name, event.dest_asset_key.uri) == (asset.name, asset.uri)
    assert event.extra == TOLD


def test_a_merge_that_had_nothing_to_do_is_not_announced(asset: Asset) -> None:
    nothing = Merged(stream="orders", table="shop.orders", outcome="NOTHING")

    for outlet in (asset, MERGED):
        task, events = run(nothing, outlet)

        assert (task.outlets, len(events)) == ([], 0)
