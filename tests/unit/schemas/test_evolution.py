"""A table follows its stream file by policy or by a person's answer, in one commit of its own."""

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import IntegerType, LongType
from requests.exceptions import ReadTimeout
from support.lake import Lake, make_stream
from support.scripted_catalog import landed_then, overtaken_by

from frazil.errors import NothingToDecideError, SchemaRefusedError, SchemaReviewError
from frazil.ingest.bootstrap import new_table
from frazil.ledger.authors import Author
from frazil.ledger.recovery_point import keys
from frazil.observability.timeline import derive_events
from frazil.schemas.evolution import accept_schema, quarantine_schema, settle_schema, stop_schema
from frazil.schemas.review import review_table, show_schema_review
from frazil.workspace import Workspace

JANE = Author("jane@example.org", "new feed")
COLUMNS = {"id": "int!", "name": "string"}
SHOP = {"shop": "string"}
"""What the table is partitioned by."""


@pytest.fixture
def begun(tmp_path: Path) -> Lake:
    """Return a lake whose stream has begun with an id and a name, partitioned by the shop."""
    stream = make_stream(
        value={"columns": COLUMNS | SHOP},
        table={"name": "demo.orders", "partition_by": ["bucket(shop, 4)"]},
    )
    lake = Lake(tmp_path, stream)
    lake.begin()
    return lake


def edit(lake: Lake, columns: Mapping[str, str], *partition_by: str, **policy: str) -> Workspace:
    """Open the stream as if its file had been edited."""
    stream = make_stream(
        value={"columns": {**columns, **({} if "Shop" in columns else SHOP), **columns}},
        table={"name": "demo.orders", "partition_by": partition_by},
        schema=policy,
    )
    work = Workspace(stream, lake.folder, "test")
    work.__dict__["store"] = lake.store
    return work


def names(lake: Lake) -> list[str]:
    return [field.name for field in lake.table.schema().fields if field.name != "shop"]


def records(lake: Lake) -> list[dict[str, object]]:
    found = sorted(
        (key, value)
        for key, value in lake.table.properties.items()
        if key.startswith(keys.SCHEMA_CHANGE_PREFIX)
    )
    return [json.loads(value) for _, value in found]


def test_what_policy_calls_auto_is_one_commit_that_says_so(begun: Lake) -> None:
    commits = begun.catalog.commits_asked
    work = edit(begun, {"id": "long", "name": "string", "city": "string"})

    settle_schema(work)

    assert begun.catalog.commits_asked == commits + 1
    assert names(begun) == ["id", "name", "city", "_kafka"]
    assert begun.table.schema().find_type("id") == LongType()
    assert not begun.table.schema().find_field("id").required
    assert [(r["by"], r["changes"], r["schema-id"]) for r in records(begun)] == [
        (
            "policy",
            ["relax id: int! to long", "widen id: int to long", "add_column city: string"],
            1,
        )
    ]
    assert review_table(begun.table, work) is None


def test_settling_again_commits_nothing(begun: Lake) -> None:
    work = edit(begun, COLUMNS | {"city": "string"})
    settle_schema(work)
    commits = begun.catalog.commits_asked

    settle_schema(work)

    assert begun.catalog.commits_asked == commits


def test_an_answer_that_is_lost_adds_no_second_column(begun: Lake) -> None:
    work = edit(begun, COLUMNS | {"city": "string"})
    begun.catalog.script = [landed_then(ReadTimeout())]

    settle_schema(work)

    assert names(begun) == ["id", "name", "city", "_kafka"]
    assert len(records(begun)) == 1


def test_of_two_that_evolve_at_once_one_does(begun: Lake) -> None:
    work = edit(begun, COLUMNS | {"city": "string"})
    begun.catalog.script = [overtaken_by(lambda: settle_schema(work))]

    settle_schema(work)

    assert names(begun) == ["id", "name", "city", "_kafka"]
    assert len(records(begun)) == 1
    ids = [field.field_id for field in begun.table.schema().fields]
    assert len(set(ids)) == len(ids)


def test_an_alter_by_somebody_else_in_between_is_seen(begun: Lake) -> None:
    def alter() -> None:
        with begun.table.update_schema() as update:
            update.add_column("city", IntegerType())

    begun.catalog.script = [overtaken_by(alter)]

    with pytest.raises(SchemaReviewError, match="change_type city: int to string"):
        settle_schema(edit(begun, COLUMNS | {"city": "string"}))

    assert not records(begun)


@pytest.mark.parametrize(
    ("columns", "text"),
    [
        ({"id": "int!"}, "drop name: string"),
        ({"id": "int!", "label": "string"}, "rename name to label"),
        ({"id": "string!", "name": "string"}, "change_type id: int to string"),
        (COLUMNS | {"city": "string!"}, "add_required city: string!"),
        ({"Id": "int!", "name": "string"}, "rename id to Id"),
    ],
)
def test_everything_else_waits_for_a_person(
    begun: Lake, columns: dict[str, str], text: str
) -> None:
    work = edit(begun, columns)
    commits = begun.catalog.commits_asked

    with pytest.raises(SchemaReviewError) as waiting:
        settle_schema(work)

    assert text in str(waiting.value)
    assert "frazil review-schema orders --accept" in waiting.value.next_step
    assert begun.catalog.commits_asked == commits
    shown = show_schema_review(work)
    assert shown.facts["review"] == waiting.value.review_id
    assert shown.facts["next_offsets"] == {"orders": (0, 0)}

    accept_schema(work, JANE, waiting.value.review_id)

    settle_schema(work)
    assert records(begun)[-1]["by"] == "jane@example.org"
    assert records(begun)[-1]["reason"] == "new feed"
    assert not show_schema_review(work).facts


def test_a_column_that_is_dropped_keeps_its_values_and_is_asked_for_once(begun: Lake) -> None:
    work = edit(begun, {"id": "int!"})
    accept_schema(work, JANE)

    assert names(begun) == ["id", "name", "_kafka"]
    settle_schema(work)


def test_a_name_that_comes_back_with_another_type_is_a_new_column(begun: Lake) -> None:
    old_id = begun.table.schema().find_field("id").field_id
    accept_schema(edit(begun, {"id": "string", "name": "string"}), JANE)

    schema = begun.table.schema()
    assert names(begun) == ["id", "id_v0", "name", "_kafka"]
    assert schema.find_field("id_v0").field_id == old_id
    assert not schema.find_field("id_v0").required


def test_a_no_is_kept_until_the_file_changes_or_somebody_accepts(begun: Lake) -> None:
    work = edit(begun, {"id": "int!"})
    stop_schema(work, Author("joe@example.org", "not before May"))

    with pytest.raises(SchemaReviewError, match=r"joe@example.org stopped the stream .* May"):
        settle_schema(work)
    with pytest.raises(SchemaReviewError, match="waits for a person's decision"):
        settle_schema(edit(begun, {"id": "int!", "label": "string"}))
    settle_schema(edit(begun, COLUMNS))
    accept_schema(work, JANE)
    settle_schema(work)
    assert keys.schema_answer_key("orders") not in begun.table.properties


def test_a_no_is_in_the_history_once_however_often_it_is_given(begun: Lake) -> None:
    work = edit(begun, {"id": "int!"})

    for _ in range(2):
        stop_schema(work, JANE)

    [record] = records(begun)
    assert (record["answer"], record["by"], record["changes"]) == (
        "stop",
        "jane@example.org",
        ["drop name: string"],
    )
    [event] = [e for e in derive_events(begun.history, "orders") if e.kind == "schema_change"]
    assert event.text == "stop: drop name: string, jane@example.org: new feed"


def test_no_record_is_at_fault_where_a_person_edited_the_columns(begun: Lake) -> None:
    work = edit(begun, {"id": "int!", "label": "string"})

    with pytest.raises(SchemaRefusedError, match="does not take its schema from a registry"):
        quarantine_schema(work, JANE)

    assert records(begun) == []
    assert "Quarantine is unavailable" in show_schema_review(work).text


def test_what_policy_does_by_itself_is_put_aside_by_nobody(begun: Lake) -> None:
    work = edit(begun, COLUMNS | {"city": "string"})

    with pytest.raises(NothingToDecideError, match="policy applies this change by itself"):
        quarantine_schema(work, JANE)

    assert records(begun) == []


def test_an_answer_to_what_was_not_seen_is_refused(begun: Lake) -> None:
    seen = show_schema_review(edit(begun, {"id": "int!"})).facts["review"]
    work = edit(begun, {"id": "int!", "label": "string"})

    for decide in (accept_schema, stop_schema, quarantine_schema):
        with pytest.raises(NothingToDecideError, match="is closed"):
            decide(work, JANE, str(seen))
    with pytest.raises(NothingToDecideError, match="matches the stream file"):
        accept_schema(edit(begun, COLUMNS), JANE)


@pytest.mark.parametrize("policy", ["fail", "quarantine"])
def test_a_policy_that_forbids_is_no_question(begun: Lake, policy: str) -> None:
    work = edit(begun, COLUMNS | {"city": "string"}, add_column=policy)

    with pytest.raises(SchemaRefusedError, match=f"the policy is {policy}"):
        settle_schema(work)


def test_review_may_be_asked_for_what_is_auto_elsewhere(begun: Lake) -> None:
    work = edit(begun, COLUMNS | {"city": "string"}, add_column="review")

    with pytest.raises(SchemaReviewError):
        settle_schema(work)


@pytest.mark.parametrize(
    "columns",
    [{"shop": "long"}, {"Shop": "long"}, {"shop_bucket": "int"}, {"shop_bucket": "string"}],
)
def test_what_no_table_can_follow_is_refused_and_never_accepted(
    begun: Lake, columns: dict[str, str]
) -> None:
    work = edit(begun, COLUMNS | columns)

    for attempt in (settle_schema, lambda w: accept_schema(w, JANE)):
        with pytest.raises(SchemaRefusedError, match="not possible in place"):
            attempt(work)
    assert not records(begun)


def test_a_table_that_the_stream_has_not_begun_is_never_changed(tmp_path: Path) -> None:
    lake = Lake(tmp_path, make_stream(value={"columns": COLUMNS}))
    lake.store.create("demo.orders", new_table(lake.stream))

    with pytest.raises(NothingToDecideError):
        accept_schema(edit(lake, COLUMNS | {"city": "string"}), JANE)


def test_going_back_takes_the_old_schema_again(begun: Lake) -> None:
    settle_schema(edit(begun, COLUMNS | {"city": "string"}))
    schema_ids = [schema.schema_id for schema in begun.table.metadata.schemas]
    accept_schema(edit(begun, COLUMNS), JANE)  # a drop: the column stays

    assert [schema.schema_id for schema in begun.table.metadata.schemas] == schema_ids
    assert names(begun) == ["id", "name", "city", "_kafka"]


def test_a_rename_and_back_takes_the_old_schema_again(begun: Lake) -> None:
    accept_schema(edit(begun, {"id": "int!", "label": "string"}), JANE)
    accept_schema(edit(begun, COLUMNS), JANE)

    metadata = begun.table.metadata
    assert (len(metadata.schemas), metadata.current_schema_id) == (2, 0)
    assert names(begun) == ["id", "name", "_kafka"]


def test_a_name_that_comes_again_after_a_rename_is_a_column_of_its_own(begun: Lake) -> None:
    old = begun.table.schema().find_field("name").field_id
    accept_schema(edit(begun, {"id": "int!", "label": "string"}), JANE)
    settle_schema(edit(begun, {"id": "int!", "label": "string", "name": "string"}))

    schema = begun.table.schema()
    assert schema.find_field("label").field_id == old
    assert schema.find_field("name").field_id > begun.table.metadata.schemas[0].highest_field_id


def test_an_accepted_change_whose_answer_is_lost_is_told_as_made(begun: Lake) -> None:
    work = edit(begun, {"id": "int!", "label": "string"})
    begun.catalog.script = [landed_then(ReadTimeout())]

    decision = accept_schema(work, JANE)

    assert decision.text.endswith("rename name to label")
    assert len(records(begun)) == 1


def test_a_conflict_after_an_earlier_decision_in_the_same_words_is_decided_again(
    begun: Lake,
) -> None:
    accept_schema(edit(begun, {"id": "int!", "label": "string"}), JANE)
    work = edit(begun, {"id": "int!", "title": "string"})
    begun.catalog.script = [overtaken_by(lambda: begun.ingest(1, 0))]

    decision = accept_schema(work, JANE)

    assert decision.text.endswith("rename label to title")
    assert names(begun) == ["id", "title", "_kafka"]


def test_a_column_that_another_stream_writes_too_is_not_changed_for_one(begun: Lake) -> None:
    other = make_stream("others", value={"columns": COLUMNS | SHOP}, table={"name": "demo.orders"})
    begun.begin(other)
    work = Workspace(other, begun.folder, "test")
    work.__dict__["store"] = begun.store
    settle_schema(work)
    assert keys.columns_key("others") in begun.table.properties

    for columns in ({"id": "string!", "name": "string"}, {"id": "int!", "label": "string"}):
        with pytest.raises(SchemaRefusedError, match="stream others writes this column too"):
            settle_schema(edit(begun, columns))
    settle_schema(edit(begun, COLUMNS | {"city": "string"}))


@pytest.mark.parametrize("policy", ["fail", "quarantine"])
def test_a_person_does_not_overrule_a_policy_that_forbids(begun: Lake, policy: str) -> None:
    work = edit(begun, COLUMNS | {"city": "string"}, add_column=policy)

    with pytest.raises(SchemaRefusedError, match="set the policy under"):
        accept_schema(work, JANE)


def test_a_record_that_was_removed_by_hand_frees_no_number(begun: Lake) -> None:
    for name in ("a", "b"):
        columns = COLUMNS | {letter: "string" for letter in "ab" if letter <= name}
        settle_schema(edit(begun, columns))
    with begun.table.transaction() as transaction:
        transaction.remove_properties(f"{keys.SCHEMA_CHANGE_PREFIX}1")

    settle_schema(edit(begun, COLUMNS | {"a": "string", "b": "string", "c": "string"}))

    assert [r["changes"] for r in records(begun)] == [
        ["add_column b: string"],
        ["add_column c: string"],
    ]


def partitions(lake: Lake) -> list[str]:
    return [f"{each.field_id} {each.name} {each.transform}" for each in lake.table.spec().fields]


def test_other_partitions_wait_for_a_person_and_come_with_the_columns_they_need(
    begun: Lake,
) -> None:
    work = edit(begun, COLUMNS | {"city": "string"}, "bucket(shop, 8)", "city")
    before = begun.table.metadata_location

    with pytest.raises(SchemaReviewError, match="repartition by bucket\\(shop, 8\\), city, before"):
        settle_schema(work)
    assert begun.table.metadata_location == before
    commits = begun.catalog.commits_asked
    accept_schema(work, JANE)

    assert begun.catalog.commits_asked == commits + 1
    assert names(begun) == ["id", "name", "city", "_kafka"]
    assert partitions(begun) == ["1001 shop_bucket_v1 bucket[8]", "1002 city identity"]
    assert [(r["by"], r["changes"]) for r in records(begun)] == [
        (
            JANE.by,
            [
                "add_column city: string",
                "repartition by bucket(shop, 8), city, before by bucket(shop, 4)",
            ],
        )
    ]
    settle_schema(work)
    assert begun.catalog.commits_asked == commits + 1
    settle_schema(edit(begun, COLUMNS | {"city": "string"}))
    assert len(partitions(begun)) == 2


def test_partitions_that_the_table_had_once_come_back_as_they_were(begun: Lake) -> None:
    before = partitions(begun)
    for wanted in (("bucket(shop, 8)",), ("name", "bucket(shop, 4)"), ("bucket(shop, 4)",)):
        accept_schema(edit(begun, COLUMNS, *wanted), JANE)

    assert partitions(begun) == before
    assert begun.table.spec().spec_id == 0
    fields = [field.field_id for spec in begun.table.specs().values() for field in spec.fields]
    assert sorted(fields) == [1000, 1000, 1001, 1002]


def test_other_partitions_follow_by_themselves_where_the_policy_says_so(begun: Lake) -> None:
    settle_schema(edit(begun, COLUMNS, "name", other="auto"))

    assert partitions(begun) == ["1001 name identity"]


def test_for_other_partitions_no_record_is_put_aside(begun: Lake) -> None:
    with pytest.raises(SchemaRefusedError, match="comes from the stream file"):
        quarantine_schema(edit(begun, COLUMNS, "name"), JANE)


def test_the_same_partitions_asked_for_again_are_another_question(begun: Lake) -> None:
    asked = []
    for wanted in ("name", "bucket(shop, 4)", "name"):
        work = edit(begun, COLUMNS, wanted)
        review = review_table(begun.table, work)
        assert review is not None
        asked.append(review.review_id)
        accept_schema(work, JANE)

    assert len(set(asked)) == 3


def test_partitions_that_somebody_else_made_or_changed_are_no_question(begun: Lake) -> None:
    work = edit(begun, COLUMNS, "bucket(shop, 4)")
    with begun.table.update_spec() as update:
        update.add_field("name", IdentityTransform())
    partitioned = partitions(begun)
    settle_schema(work)
    other = make_stream(
        "others",
        value={"columns": COLUMNS | SHOP},
        table={"name": "demo.orders", "partition_by": ["name"]},
    )
    begun.begin(other)
    second = Workspace(other, begun.folder, "test")
    second.__dict__["store"] = begun.store
    settle_schema(second)

    assert partitions(begun) == partitioned
    with pytest.raises(SchemaReviewError, match="repartition by id"):
        settle_schema(edit(begun, COLUMNS, "id"))
