"""`verify-source` against a real PostgreSQL: equal, planted differences, motion, refusals."""

import json
from base64 import b64encode
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import pytest
from support.postgres import MISSING, PASSWORD, PROGRAMS, USER, Database, start_postgres
from support.source_lab import CONNECTION, COUNTS, SENTINEL, Row, SourceLab

from frazil.errors import (
    ConfigurationError,
    ConnectionMissingError,
    DatabaseUnavailableError,
    FrazilError,
    IncompatibleTableError,
    TargetError,
)
from frazil.state_tables import source_check
from frazil.state_tables.messages import KeyCounts
from frazil.state_tables.source_values import SourceColumn, pair_columns
from frazil.state_tables.state_rows import StateRows, find_source
from frazil.streams.column_types import parse_column
from frazil.streams.state_sections import SequenceBy

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not PROGRAMS, reason=MISSING)]
COLUMNS = {"id": "long!", "name": "string", "doc": "string"}
TYPES = {
    "id": ("uuid PRIMARY KEY DEFAULT gen_random_uuid()", "uuid!"),
    "name": ("char(9)", "string"),
    "b": ("bool", "boolean"),
    "bal": ("numeric(12,2)", "decimal(12,2)"),
    "free": ("numeric", "decimal(38,10)"),
    "real4": ("real", "double"),
    "real8": ("double precision", "double"),
    "d": ("date", "date"),
    "ts": ("timestamp", "timestamp"),
    "tz": ("timestamptz", "timestamptz"),
    "words": ("text[]", "list<string>"),
    "nums": ("numeric[]", "list<decimal(9,3)>"),
    "days": ("date[]", "list<date>"),
    "raw": ("bytea", "binary"),
    "mood": ("mood", "string"),
    "ip": ("inet", "string"),
    "n": ("positive", "long"),
    "few": ("few", "long"),
}
FILL = """INSERT INTO types (name, b, bal, free, real4, real8, d, ts, tz, words, nums, days, raw,
  mood, ip, n, few) SELECT 'n' || i, i % 2 = 0, i * 1.25, i / 8.0, i / 8.0, i / 3.0,
  DATE '2026-01-01' - i * 400,
  TIMESTAMP '2026-01-01 01:02:03.456789' - i * INTERVAL '401 days 1 s',
  TIMESTAMPTZ '2026-01-01 01:02:03.4+02' - i * INTERVAL '300 days', ARRAY['a,b', NULL, '"', ''],
  ARRAY[i / 8.0, NULL], ARRAY[DATE '1969-12-31'], decode('00ff', 'hex'), 'sad', '10.0.0.1', i, i
  FROM generate_series(1, 300) AS i"""


@pytest.fixture(scope="module")
def database() -> Iterator[Database]:
    with start_postgres() as database:
        database.ask("CREATE TYPE mood AS ENUM ('sad', 'happy')")
        database.ask("CREATE DOMAIN positive AS bigint CHECK (VALUE > 0)")
        database.ask("CREATE DOMAIN few AS positive CHECK (VALUE < 1000)")
        yield database


@pytest.fixture(autouse=True)
def connect(database: Database, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return a function that defines the connection, and no other server."""
    monkeypatch.setattr(source_check, "_SHORTEST_PAUSE", 0.05)
    monkeypatch.setattr("frazil.kafka.cluster.TIMEOUT_SECONDS", 0.2)
    kafka = json.dumps({"extra": {"bootstrap.servers": "127.0.0.1:1"}})
    monkeypatch.setenv("AIRFLOW_CONN_KAFKA_DEFAULT", kafka)

    def define(**changes: object) -> None:
        text = json.dumps(database.connection(**changes))
        monkeypatch.setenv(f"AIRFLOW_CONN_{CONNECTION.upper()}", text)

    define()
    return define


@pytest.fixture
def lab(database: Database, tmp_path: Path) -> Iterator[SourceLab]:
    """Return ten rows on both sides."""
    database.ask("CREATE TABLE items (id bigint PRIMARY KEY, name text, doc text)")
    database.ask("INSERT INTO items SELECT i, 'n' || i, NULL FROM generate_series(1, 10) AS i")
    lab = SourceLab.make(database, tmp_path, "items", COLUMNS)
    lab.put(lab.read_source())
    yield lab
    database.ask("DROP TABLE items")


def test_equal_tables_are_equal_at_the_first_look(lab: SourceLab) -> None:
    check = lab.verify()

    assert check.verdict == "equal"
    assert check.counts == KeyCounts(equal=10)
    assert (check.source_rows, check.state_rows, check.passes) == (10, 10, 1)
    assert check.compared == ("id", "name", "doc")
    assert check.source == "public.items of connection shop_db"


def test_values_of_every_type_are_compared(database: Database, tmp_path: Path) -> None:
    columns = ", ".join(f"{name} {kind}" for name, (kind, _) in TYPES.items())
    database.ask(f"CREATE TABLE types ({columns})")
    database.ask(FILL)
    database.ask("INSERT INTO types (name) VALUES (NULL)")
    own = {name: kind for name, (_, kind) in TYPES.items()}
    lab = SourceLab.make(database, tmp_path, "types", own)
    rows = lab.read_source()
    lab.put([{**row, "days": row["days"]} for row in rows])

    check = lab.verify(wait=0)

    assert check.not_compared == {}
    assert check.counts == KeyCounts(equal=301)


def test_a_key_of_bytes_is_compared_with_its_base64(database: Database, tmp_path: Path) -> None:
    database.ask("CREATE TABLE tokens (id bytea PRIMARY KEY, name text)")
    database.ask(
        "INSERT INTO tokens SELECT decode(hex, 'hex'), hex FROM (VALUES (''), ('ff00'), ('78'), "
        "(repeat('00ff', 128))) AS given (hex)"
    )
    lab = SourceLab.make(database, tmp_path, "tokens", {"id": "string!", "name": "string"})
    keys = ("", "ff00", "00ff" * 128, "78")
    rows = [{"id": b64encode(bytes.fromhex(each)).decode(), "name": each} for each in keys]
    lab.put([*rows[:3], {**rows[3], "name": "changed"}])

    check = lab.verify(wait=0)

    assert check.counts.equal == 3
    assert check.counts.different + check.counts.behind == 1
    assert check.not_compared == {}


def test_floating_point_numbers_have_all_digits_by_any_setting(
    database: Database, tmp_path: Path
) -> None:
    database.ask("CREATE TABLE ratios (id bigint PRIMARY KEY, r double precision)")
    database.ask("INSERT INTO ratios VALUES (1, 1 / 3.0), (2, 0.1)")
    lab = SourceLab.make(database, tmp_path, "ratios", {"id": "long!", "r": "double"})
    lab.put([{"id": 1, "r": 1 / 3}, {"id": 2, "r": 0.1 + 1e-12}])
    database.ask(f"ALTER ROLE {USER} SET extra_float_digits = -6")
    try:
        check = lab.verify()
    finally:
        database.ask(f"ALTER ROLE {USER} RESET extra_float_digits")

    assert check.counts == KeyCounts(equal=1, different=1)


def test_each_kind_of_planted_difference_is_found(lab: SourceLab) -> None:
    """A row changed by another writer, one that is missing, one too many, and one twice."""
    rows = {int(str(row["id"])): row for row in lab.read_source()}
    lab.database.ask("UPDATE items SET doc = 'x' WHERE id = 3")
    lab.database.ask("INSERT INTO items VALUES (11, 'n11', NULL)")
    lab.database.ask("DELETE FROM items WHERE id = 5")
    lab.put([rows[7]])

    check = lab.verify()

    assert check.verdict == "different"
    wrong = KeyCounts(equal=8, different=1, missing=1, extra=1, duplicate=1)
    assert check.counts == wrong
    assert check.columns == {"doc": 1}
    assert check.keys == {
        "different": ({"id": "3"},),
        "missing": ({"id": "11"},),
        "extra": ({"id": "5"},),
    }
    assert check.passes > 1
    assert check.next_step.startswith("`frazil audit items`")
    assert check.next_step.endswith("let the connector take a snapshot of the table again")


def test_where_the_log_orders_the_changes_a_snapshot_whose_rows_have_an_lsn_is_named(
    lab: SourceLab,
) -> None:
    by_log = {"order": SequenceBy(sequence_by=("_source.lsn",))}
    lab.lake = replace(lab.lake, stream=lab.lake.stream.model_copy(update=by_log))
    lab.database.ask("UPDATE items SET doc = 'x' WHERE id = 3")

    check = lab.verify()

    assert check.verdict == "different"
    assert "take a blocking snapshot of the table" in check.next_step
    assert "rows of an incremental one have no LSN" in check.next_step


def test_without_proof_and_with_changes_on_their_way_nothing_is_called_different(
    lab: SourceLab,
) -> None:
    lab.database.ask("UPDATE items SET name = 'y' WHERE id = 3")

    check = lab.verify(wait=0)

    assert check.verdict == "behind"
    assert check.counts == KeyCounts(equal=9, behind=1)
    assert any("no logical replication slot" in text for text in check.waiting)
    assert any("Kafka" in text or "broker" in text for text in check.waiting)


def test_keys_that_are_written_during_the_check_are_in_motion(
    lab: SourceLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The source is written before each look; the state follows other keys and passes its LSN."""

    def write(text: str) -> None:
        lab.told.append(text)
        if "waiting up to" in text:
            turn = len(lab.told)
            lab.database.ask("UPDATE items SET name = %s WHERE id <= 2", f"t{turn}")
            lab.database.ask(f"INSERT INTO items (id) VALUES ({SENTINEL + turn})")  # noqa: S608
            lab.put([{"id": SENTINEL + turn, "name": None, "doc": None}])

    monkeypatch.setattr(lab, "tell", write)
    lab.database.ask("UPDATE items SET name = 'before' WHERE id <= 2")

    check = lab.verify(wait=2)

    assert check.counts == KeyCounts(equal=8, in_motion=2)
    assert check.verdict == "equal"
    assert check.passes > 4


def test_a_change_that_arrives_during_the_wait_makes_the_key_equal(
    lab: SourceLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab.database.ask("INSERT INTO items VALUES (11, 'late', NULL)")

    def arrive(text: str) -> None:
        if "waiting up to" in text:
            lab.put([{"id": 11, "name": "late", "doc": None}])

    monkeypatch.setattr(lab, "tell", arrive)

    assert lab.verify().counts == KeyCounts(equal=11)


def test_rows_of_deleted_keys_that_are_marked_are_no_rows(
    database: Database, tmp_path: Path
) -> None:
    database.ask("CREATE TABLE marked (id bigint PRIMARY KEY, name text, doc text)")
    lab = SourceLab.make(database, tmp_path, "marked", COLUMNS, deletes="mark")
    lab.put([{"id": 1, "name": "x", "doc": None, "_deleted_at": datetime(2026, 1, 1, tzinfo=UTC)}])

    assert lab.verify(wait=0).counts == KeyCounts()


def test_what_cannot_be_compared_is_refused_with_the_next_step(
    lab: SourceLab, connect: Callable[..., None], subtests: pytest.Subtests
) -> None:
    lab.database.ask("CREATE VIEW seen AS SELECT * FROM items")
    lab.database.ask("CREATE TABLE keyless (name text)")
    lab.database.ask("CREATE ROLE reader LOGIN PASSWORD 'r'")
    refused: list[tuple[dict[str, object], str | None, type[FrazilError], str]] = [
        ({"password": "wrong"}, None, DatabaseUnavailableError, "refuses the login"),
        ({"port": 1}, None, DatabaseUnavailableError, "nothing listens"),
        ({"schema": "nope"}, None, DatabaseUnavailableError, "the database does not exist"),
        ({"schema": "template1"}, None, ConfigurationError, "leads to database template1"),
        ({"conn_type": "mysql"}, None, ConfigurationError, "not postgres"),
        ({"extra": {"cursor": "x"}}, None, ConfigurationError, "unknown settings: cursor"),
        ({"schema": None}, None, ConnectionMissingError, "has no database"),
        ({"login": "reader", "password": "r"}, None, ConfigurationError, "may not read it"),
        ({}, "public.nope", TargetError, "public.nope in database postgres does not exist"),
        ({}, "public.seen", TargetError, "not a table"),
        ({}, "items", ConfigurationError, "not SCHEMA.NAME"),
        ({}, "public.\0", ConfigurationError, "not SCHEMA.NAME"),
        ({}, "public.\udcff", ConfigurationError, "not SCHEMA.NAME"),
        ({}, "public.keyless", IncompatibleTableError, "column id of the key"),
    ]
    for changes, table, kind, text in refused:
        with subtests.test(text):
            connect(**changes)

            with pytest.raises(kind, match=text) as refusal:
                lab.verify(table=table)

            assert refusal.value.next_step
            assert PASSWORD not in str(refusal.value)
    lab.database.ask("DROP VIEW seen; DROP TABLE keyless; DROP ROLE reader")


@pytest.mark.parametrize(
    ("kind", "column", "key"),
    [
        ("integer", "long", 5_000_000_000),
        ("bigint", "string", "no number"),
        ("text", "string", "\0"),
    ],
)
def test_a_key_that_the_source_cannot_hold_is_extra(
    database: Database, tmp_path: Path, kind: str, column: str, key: object
) -> None:
    database.ask(f"CREATE TABLE narrow (id {kind} PRIMARY KEY, name text)")
    database.ask("INSERT INTO narrow SELECT i, 'n' || i FROM generate_series(1, 3) AS i")
    lab = SourceLab.make(database, tmp_path, "narrow", {"id": f"{column}!", "name": "string"})
    lab.put(lab.read_source() if column == "long" else [])
    lab.put([{"id": key, "name": "odd"}])

    check = lab.verify(wait=10)

    database.ask("DROP TABLE narrow")
    assert check.counts.extra == 1
    assert check.keys["extra"] == ({"id": str(key)},)


def test_names_with_a_percent_sign_are_names(database: Database, tmp_path: Path) -> None:
    database.ask('CREATE SCHEMA "half%s"')
    database.ask('CREATE TABLE "half%s"."at 5%" ("a%(b)s" text PRIMARY KEY, "rate%" numeric(9, 2))')
    database.ask("INSERT INTO \"half%s\".\"at 5%\" VALUES ('x', 1.5), ('y%', 2), ('z', 3)")
    columns = {"id": 'string! from "a%(b)s"', "rate": 'decimal(9,2) from "rate%"'}
    lab = SourceLab.make(database, tmp_path, "percent", columns)
    rows = [("x", "1.5"), ("y%", "9"), ("%s", "4")]
    made: list[Row] = [{"id": key, "rate": Decimal(rate)} for key, rate in rows]
    place = {"schema": "half%s", "table": "at 5%"}
    lab.put(made, **place)

    def pass_by() -> None:
        database.ask('INSERT INTO "half%s"."at 5%" VALUES (\'later\')')
        lab.put([{"id": "later", "rate": None}], **place)

    lab.pass_by = pass_by  # type: ignore[method-assign] # the server may write its log by itself

    check = lab.verify()

    assert check.source == "half%s.at 5% of connection shop_db"
    counts = check.counts.model_copy(update={"equal": 1})
    assert counts == KeyCounts(equal=1, different=1, missing=1, extra=1)


def test_columns_that_the_source_lacks_are_named(lab: SourceLab) -> None:
    lab.database.ask("ALTER TABLE items DROP doc")

    check = lab.verify()

    assert check.counts == KeyCounts(equal=10)
    assert check.not_compared == {"doc": "the source table has no column doc"}


def test_columns_that_only_the_source_has_are_named(lab: SourceLab) -> None:
    lab.database.ask("ALTER TABLE items ADD price numeric DEFAULT 1")

    check = lab.verify()

    assert check.verdict == "equal"
    assert check.not_compared == {"price": "only the source table has it: numeric"}
    assert "not compared: price: only the source table has it" in check.text


def test_rows_that_row_security_hides_are_not_called_extra(
    lab: SourceLab, connect: Callable[..., None]
) -> None:
    lab.database.ask("CREATE ROLE tenant LOGIN PASSWORD 't'; GRANT SELECT ON items TO tenant")
    lab.database.ask("ALTER TABLE items ENABLE ROW LEVEL SECURITY")
    connect(login="tenant", password="t")  # noqa: S106 - of a role that this test drops

    with pytest.raises(ConfigurationError, match="row-level security"):
        lab.verify()
    lab.database.ask("DROP OWNED BY tenant; DROP ROLE tenant")


def test_rows_of_two_source_tables_or_of_none_are_refused(lab: SourceLab) -> None:
    lab.put([{"id": 12, "name": None, "doc": None}], table="others")

    with pytest.raises(IncompatibleTableError, match=r"public\.items, public\.others"):
        lab.verify(table="public.items")


def test_a_source_whose_database_was_renamed_is_compared_once_its_table_is_named(
    lab: SourceLab,
) -> None:
    lab.database.ask("INSERT INTO items VALUES (11), (12)")
    for key, name in ((11, "before"), (12, "postgres")):
        lab.put([{"id": key, "name": None, "doc": None}], db=name)

    with pytest.raises(IncompatibleTableError, match="databases: before, postgres") as refusal:
        lab.verify()

    assert "set --table to public.items" in refusal.value.next_step
    assert lab.verify(table="public.items").counts == KeyCounts(equal=12)


@pytest.mark.parametrize("names", ["bca", "abc", "aaa", "b" * 3])
def test_a_source_with_a_key_in_several_rows_is_refused(lab: SourceLab, names: str) -> None:
    lab.database.ask("CREATE TABLE twice (id bigint, name text, doc text)")
    for name in names:
        lab.database.ask("INSERT INTO twice VALUES (1, %s)", [name])
    lab.database.ask("INSERT INTO twice VALUES (77), (77)")

    with pytest.raises(
        IncompatibleTableError, match=r"public\.twice with the key of another row .*: 3;"
    ):
        lab.verify(table="public.twice")
    lab.database.ask("DROP TABLE twice")


def test_a_position_is_that_of_each_topic_s_partition(lab: SourceLab) -> None:
    lab.put([{"id": 12, "name": None, "doc": None}], lsn=1000)
    lab.topic, lab.offset = "other", lab.offset - 1
    lab.put([{"id": 13, "name": None, "doc": None}], lsn=10)
    table = lab.lake.store.load(lab.lake.state_name)
    columns = [parse_column(*each) for each in COLUMNS.items()]
    sources = [SourceColumn("id", "int8", "bigint"), SourceColumn("name", "text", "text")]

    rows = StateRows(table, pair_columns(columns, ["id"], [*COLUMNS], sources))
    versions = [row.version for batch in rows.read() for row, _ in batch]

    assert rows.newest[("other", 0)] == 10
    assert len({*versions}) == len(versions)


def test_rows_of_an_incremental_snapshot_may_have_no_lsn(
    database: Database, tmp_path: Path
) -> None:
    database.ask("CREATE TABLE later (id bigint PRIMARY KEY, name text, doc text)")
    database.ask("INSERT INTO later (id) VALUES (1), (2), (3)")
    lab = SourceLab.make(database, tmp_path, "later", COLUMNS)
    one, two, three = lab.read_source()
    lab.put([one], lsn=None, snapshot="incremental")
    lab.put([two])
    lab.put([three], lsn=None, snapshot="incremental")

    assert lab.verify().counts == KeyCounts(equal=3)


def test_the_source_is_that_of_the_first_row_with_an_lsn(
    database: Database, tmp_path: Path
) -> None:
    lab = SourceLab.make(database, tmp_path, "mixed", COLUMNS)
    names: list[Row | None] = [
        None,
        {"db": "postgres", "schema": "public", "table": "other", "lsn": None},
        {"db": "postgres", "schema": "public", "table": "mixed", "lsn": 7},
    ]
    kafka = {"topic": "orders", "partition": 0}
    rows: list[Row] = [
        {"id": at, "_source": source, "_kafka": {**kafka, "offset": at}}
        for at, source in enumerate(names)
    ]
    lab.lake.put_state(rows, lab.lake.position(COUNTS))

    table = lab.lake.store.load(lab.lake.state_name)
    assert find_source(table, "mixed") == ("postgres", "public", "mixed")


def test_a_source_that_has_no_lsn_is_refused(lab: SourceLab, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    foreign = SourceLab.make(lab.database, other, "items", COLUMNS)
    foreign.put(foreign.read_source(), lsn=None)

    with pytest.raises(IncompatibleTableError, match="not PostgreSQL"):
        foreign.verify()
