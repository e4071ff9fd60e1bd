"""Others who change rows: noticed always, refused where the stream file says so."""

from dataclasses import replace

import pytest
from support.lake import Lake, make_stream

from frazil.errors import WriterActiveError
from frazil.ledger import keys
from frazil.ledger.foreign_snapshots import (
    count_foreign_snapshots,
    describe_kind,
    name_kind,
    require_sole_writer,
)


@pytest.mark.parametrize(
    ("summary", "kind", "text"),
    [
        ({"operation": "append", keys.KIND: "ingest"}, "ingest", "ingest"),
        ({"operation": "append"}, "foreign append", "append by another writer"),
        ({"operation": "replace"}, "compaction", "compaction"),
        ({}, "foreign change", "change by another writer"),
    ],
)
def test_a_snapshot_has_a_kind_and_words_for_it(
    summary: dict[str, str], kind: str, text: str
) -> None:
    assert name_kind(summary) == kind
    assert describe_kind(kind) == text


def test_rows_of_others_halt_a_stream_that_allows_none(lake: Lake) -> None:
    lake.ingest(2, 0)
    carrier = lake.history.head
    lake.append_foreign(1, 2)

    require_sole_writer(lake.history, "orders", "allow")
    with pytest.raises(WriterActiveError, match=rf"since snapshot {carrier}: \d+ \(append\)") as no:
        require_sole_writer(lake.history, "orders", "refuse")

    assert f"--to-snapshot {carrier}" in no.value.next_step
    assert count_foreign_snapshots(lake.history) == 1


def test_what_was_there_before_the_newest_batch_was_allowed_then(lake: Lake) -> None:
    lake.append_foreign(1)
    plan = lake.plan(2, 0)
    lake.publish(plan, lake.stage(plan))
    after = lake.plan(3, 0).model_copy(update={"other_writers": "refuse"})

    lake.publish(after, lake.stage(after))

    assert lake.coordinates() == [(0, 0), (0, 1), (0, 2)]
    assert count_foreign_snapshots(lake.history) == 1


def test_a_writer_between_stage_and_commit_is_met_by_the_commit(lake: Lake) -> None:
    plan = lake.plan(2, 0).model_copy(update={"other_writers": "refuse"})
    staged = lake.stage(plan)
    lake.append_foreign(1)

    with pytest.raises(WriterActiveError):
        lake.publish(plan, staged)

    assert lake.coordinates() == []


def test_the_stream_file_s_word_reaches_the_plan_and_decides_about_no_row(lake: Lake) -> None:
    named = {"name": lake.stream.table.name}
    strict = make_stream(table={**named, "other_writers": "refuse"})

    assert replace(lake, stream=strict).plan(2, 0).other_writers == "refuse"
    assert strict.content_hash == make_stream(table=named).content_hash
