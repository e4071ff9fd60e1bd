"""The preview of a merge tells what would be folded, and writes nothing."""

from pathlib import Path

import pytest
from support.lake import Lake, make_stream
from support.state_lake import Change, StateLake, make_state_lake

from frazil.errors import IncompatibleTableError, MissingTableError
from frazil.state_tables.merge import preview_merge
from frazil.state_tables.messages import MergeCounts
from frazil.workspace import Workspace

COUNTS = MergeCounts(**dict.fromkeys(MergeCounts.model_fields, 0))


def work_of(lake: Lake) -> Workspace:
    work = Workspace(lake.stream, lake.folder, "test")
    vars(work)["store"] = lake.store
    return work


@pytest.fixture
def lake(tmp_path: Path) -> StateLake:
    """Publish three changes."""
    lake = make_state_lake(StateLake, tmp_path, "orders")
    lake.produce(0, Change(1, "c", 1, "one"), Change(2, "c", 1, "two"))
    lake.produce(1, Change(3, "c", 1, "three"))
    lake.ingest_all()
    return lake


def test_a_first_merge_folds_all_changes_and_its_preview_creates_nothing(lake: StateLake) -> None:
    preview = preview_merge(work_of(lake))

    assert preview.text == "states.orders: a merge folds all changes: first merge"
    assert preview.ends_run
    assert lake.store.find(lake.state_name) is None
    assert not preview_merge(work_of(lake), dry_run=False).ends_run


def test_a_later_merge_folds_what_was_added_or_all_on_request(lake: StateLake) -> None:
    lake.put_state([], lake.position(COUNTS))
    merged = preview_merge(work_of(lake), dry_run=False)
    lake.produce(0, Change(1, "u", 2, "uno"), Change(1, "u", 3, "eins"))
    lake.ingest_all()
    added, rebuilt = (preview_merge(work_of(lake), rebuild=each) for each in (False, True))

    assert (merged.text, merged.ends_run) == ("states.orders: nothing to merge", True)
    assert added.text == "states.orders: a merge folds the changes at 2 offsets"
    assert rebuilt.text == "states.orders: a merge folds all changes: by request"


def test_a_stream_without_a_state_table_and_one_that_has_not_begun_are_refused(
    tmp_path: Path,
) -> None:
    with pytest.raises(IncompatibleTableError, match="and no state table"):
        preview_merge(work_of(Lake(tmp_path, make_stream())))
    upsert = {"name": "shop.orders", "mode": "upsert", "id_columns": ["id"]}
    value = {"columns": {"id": "long!"}}
    with pytest.raises(MissingTableError):
        preview_merge(work_of(Lake(tmp_path, make_stream("orders", table=upsert, value=value))))
