"""One line of time: from the ledger, from properties, from notes; each event once."""

import json
from datetime import UTC, datetime, timedelta

import pytest
from requests.exceptions import ReadTimeout
from support.lake import Lake, make_stream, passed

from frazil.errors import CatalogUnavailableError, ConfigurationError, SupersededError
from frazil.events import (
    Event,
    close_notes,
    describe_failure,
    has_notes,
    note_event,
    noted_failures,
    notes_folder,
    read_notes,
)
from frazil.iceberg.ledger_archive import archive_all_entries, archive_new_entries
from frazil.ingest.publishing import publish_batch
from frazil.ledger.authors import Author
from frazil.ledger.recovery_point import keys
from frazil.observability.timeline import derive_events, join_events
from frazil.observability.timeline_table import (
    read_recorded,
    read_timeline,
    record_notes,
    record_timeline,
)
from frazil.recovery.halt_resolution import reingest
from frazil.schemas.evolution import settle_schema
from frazil.workspace import Workspace
from frazil_cli.timeline import parse_since

LONG_AGO = datetime(2000, 1, 1, tzinfo=UTC)
NOON = datetime(2026, 5, 1, 12, 30, tzinfo=UTC)


@pytest.fixture(autouse=True)
def home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FRAZIL_HOME", str(tmp_path_factory.mktemp("home")))


def fail(work: Workspace, text: str = "it is gone") -> None:
    with pytest.raises(CatalogUnavailableError), noted_failures(work):
        raise CatalogUnavailableError(text, "look")


def kinds(events: list[Event]) -> list[str]:
    return [event.kind for event in events]


def test_batches_decisions_and_schema_changes_are_read_from_the_table(
    lake: Lake, work: Workspace
) -> None:
    first = lake.history.head
    lake.ingest(3, 2)
    lake.table.manage_snapshots().rollback_to_snapshot(first or 0).commit()
    reingest(work, Author("jane@example.org", "restore of Tuesday"))
    lake.ingest(4, 4)
    columns = {"id": "long!", "name": "string", "city": "string"}
    changed = Workspace(make_stream(value={"columns": columns}), lake.folder, "test")
    changed.__dict__["store"] = lake.store
    settle_schema(changed)

    events = read_timeline(work, LONG_AGO)

    assert kinds(events) == ["bootstrap", "rewind", "ingest", "schema_change"]
    texts = " | ".join(event.text for event in events)
    assert "jane@example.org: restore of Tuesday" in texts
    assert "8 rows, orders:0:0-4, orders:1:0-4" in texts
    assert "add_column city: string, policy" in texts
    assert events[-2].facts["rows_total"] == 8


@pytest.mark.parametrize(
    "clock", [{"began_at_ms": 7000, "ended_at_ms": 7300}, {}], ids=["with its plan", "of old"]
)
def test_a_batch_says_how_long_each_phase_took(lake: Lake, clock: dict[str, int]) -> None:
    plan = lake.plan(2, 0).model_copy(update=clock)
    staged = lake.stage(plan)
    born = int(staged.attempt.rpartition("_")[2][:11], 16)
    staged = staged.model_copy(update={"ended_at_ms": born + 1500})
    verdict = passed(plan, staged).model_copy(update={"at_ms": born + 1700})
    publish_batch(lake.store, plan, staged, verdict, "run-1")

    event = next(e for e in derive_events(lake.history, "orders") if e.kind == "ingest")

    assert event.facts.get("plan_ms") == (300 if clock else None)
    assert (event.facts["stage_ms"], event.facts["check_ms"]) == (1500, 200)
    assert isinstance(event.facts["publish_ms"], int)


def test_a_failure_is_noted_once_an_hour_and_recorded_once(lake: Lake, work: Workspace) -> None:
    for _ in range(3):
        fail(work)
    assert len(read_notes()) == 1
    assert kinds(read_timeline(work, LONG_AGO)) == ["bootstrap", "failure"]

    assert record_timeline(work) == 2
    fail(work)
    assert record_timeline(work) == 0
    assert not read_notes()
    assert kinds(read_recorded(lake.store, LONG_AGO)) == ["bootstrap", "failure"]
    assert kinds(read_timeline(work, LONG_AGO)) == ["bootstrap", "failure"]


def test_notes_are_recorded_without_the_events_of_the_table(lake: Lake, work: Workspace) -> None:
    assert record_notes(work) == 0
    fail(work)
    note_event(
        read_notes()[0].model_copy(update={"event_id": "other", "stream": "s2", "table": ""})
    )
    assert has_notes(work.stream.stream)

    assert record_notes(work) == 1

    assert not has_notes(work.stream.stream)
    assert [event.event_id for event in read_notes()] == ["other"]
    assert kinds(read_recorded(lake.store, LONG_AGO)) == ["failure"]
    fail(work)
    assert record_notes(work) == 0


def test_the_same_failure_of_another_hour_is_another_event() -> None:
    error = CatalogUnavailableError("it is gone", "look")
    ids = {
        describe_failure(
            error, "orders", "demo.orders", "run", NOON + timedelta(minutes=m)
        ).event_id
        for m in (0, 10, 29, 31)
    }

    assert len(ids) == 2


def test_who_lost_to_a_faster_run_has_not_failed(work: Workspace) -> None:
    with pytest.raises(SupersededError), noted_failures(work):
        raise SupersededError("another run was faster", "nothing to do")

    assert not read_notes()


def test_a_catalog_that_does_not_answer_keeps_the_notes(lake: Lake, work: Workspace) -> None:
    fail(work)
    lake.catalog.lost_reads = [ReadTimeout("gone")]
    work.__dict__["store"] = lake.store

    with pytest.raises(CatalogUnavailableError):
        record_timeline(work)

    assert len(read_notes()) == 1
    assert record_timeline(work) == 2


def test_a_folder_that_cannot_be_written_is_no_second_failure(work: Workspace) -> None:
    notes_folder().parent.mkdir(exist_ok=True)
    notes_folder().write_text("a file where a folder should be")

    fail(work)

    assert not read_notes()


def test_a_note_that_is_cut_off_is_passed_over(work: Workspace) -> None:
    fail(work)
    (notes_folder() / "half.json").write_text('{"event_id": "h')

    assert kinds(read_notes()) == ["failure"]


def test_a_mark_is_forgotten_after_two_hours(work: Workspace) -> None:
    import os  # noqa: PLC0415 - one use

    fail(work)
    close_notes(read_notes())
    [mark] = notes_folder().glob("*.recorded")
    os.utime(mark, (0, 0))

    close_notes([])

    assert not list(notes_folder().iterdir())


def test_the_table_can_be_dropped_and_recorded_anew(lake: Lake, work: Workspace) -> None:
    """Also what was rolled back, and what expiry took."""
    first = lake.history.head
    lake.ingest(3, 2)
    archive_new_entries(lake.store, lake.history)  # as each run does after its publish
    lake.table.manage_snapshots().rollback_to_snapshot(first or 0).commit()
    reingest(work, Author("jane@example.org", "restore of Tuesday"))
    lake.ingest(4, 4)
    recorded = record_timeline(work)
    events = join_events(read_recorded(lake.store, LONG_AGO))
    assert kinds(events) == ["bootstrap", "ingest", "rewind", "ingest"]
    archive_all_entries(lake.store, lake.history)  # as each expiry does before
    lake.table.maintenance.expire_snapshots().older_than(datetime(2999, 1, 1, tzinfo=UTC)).commit()
    lake.catalog.drop_table(keys.TIMELINE_TABLE)

    assert record_timeline(work) == recorded
    assert join_events(read_recorded(lake.store, LONG_AGO)) == events


def test_events_of_others_are_left_out_and_old_ones_too(work: Workspace) -> None:
    error = CatalogUnavailableError("it is gone", "look")
    note_event(describe_failure(error, "refunds", "demo.refunds", "run", datetime.now(UTC)))

    assert kinds(read_timeline(work, LONG_AGO)) == ["bootstrap"]
    assert not read_timeline(work, datetime.now(UTC) + timedelta(hours=1))


def test_joined_events_are_in_order_and_once() -> None:
    def event(name: str, hour: int) -> Event:
        at = NOON + timedelta(hours=hour)
        return Event(event_id=name, at=at, stream="s", table="t", kind="k", text=name)

    joined = join_events([event("b", 2), event("a", 1)], [event("c", 0), event("a", 5)])

    assert [e.event_id for e in joined] == ["c", "a", "b"]


@pytest.mark.parametrize(
    ("text", "hours"), [("30m", 0.5), ("24h", 24), ("7d", 168), ("2026-05-01T00:30:00Z", 12)]
)
def test_since_is_an_age_or_an_instant(text: str, hours: float) -> None:
    assert parse_since(text, NOON) == NOON - timedelta(hours=hours)


@pytest.mark.parametrize(
    "text",
    ["", "yesterday", "24", "2026-05-01", "-3h", "999999d", "٣d", "0001-01-01T00:00:00+14:00"],
)
def test_since_that_is_neither_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match="neither an age nor"):
        parse_since(text, NOON)


def test_facts_are_json_for_sql(lake: Lake, work: Workspace) -> None:
    record_timeline(work)

    facts = lake.store.load(keys.TIMELINE_TABLE).scan().to_arrow()["facts"].to_pylist()
    assert json.loads(facts[0])["snapshot_id"] == lake.history.head


def test_a_stream_that_has_not_begun_has_nothing_to_record(lake: Lake) -> None:
    stream = make_stream("new", table={"name": "demo.new"})
    work = Workspace(stream, lake.folder, "test")
    work.__dict__["store"] = lake.store

    assert record_timeline(work) == 0


def test_notes_of_another_stream_wait_for_its_own_run(work: Workspace) -> None:
    error = CatalogUnavailableError("it is gone", "look")
    note_event(describe_failure(error, "refunds", "other.refunds", "run", datetime.now(UTC)))

    record_timeline(work)

    assert [event.stream for event in read_notes()] == ["refunds"]


def test_of_long_facts_the_first_line_is_told() -> None:
    error = CatalogUnavailableError("gone " * 200 + "\nrow: secret", "look")

    text = describe_failure(error, "orders", "", "run", NOON).text

    assert len(text) < 600
    assert "secret" not in text
