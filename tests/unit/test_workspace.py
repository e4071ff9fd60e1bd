"""Which topics of a pattern the catalog records: the same with and without a list from before."""

from datetime import UTC, datetime

import pytest
from support.lake import Lake, load_with_history, make_state, make_stream

from frazil.iceberg.catalog import TableStore
from frazil.ingest.bootstrap import new_table
from frazil.ledger import keys
from frazil.streams.topic_lists import KnownTopic, TopicList
from frazil.streams.topic_patterns import TopicRule, find_rule
from frazil.workspace import find_recorded_topics


def make_rule(table: str = "cdc.{t}", mode: str = "append") -> TopicRule:
    source = {"topic_pattern": r"shop\.(?P<t>.+)"}
    rule = find_rule("shop", {"source": source, "table": {"name": table, "mode": mode}})
    assert rule is not None
    return rule


def begin(lake: Lake, *topics: str, rule: TopicRule | None = None) -> None:
    """Bootstrap the streams of topics, as their first runs do."""
    rule = rule or make_rule()
    for each in rule.name_all(topics):
        record(lake, each.stream, each.topic, rule.ledger_table(each.table))


def record(lake: Lake, stream: str, topic: str, name: str) -> None:
    made = make_stream(stream, source={"topic": topic}, table={"name": "demo.any"})
    lake.store.create(name, new_table(made))
    state = make_state({topic: (0, 0)})
    lake.mark(keys.BOOTSTRAP, {stream: state}, *load_with_history(lake.store, name))


def make_list(**topics: str | None) -> TopicList:
    known = {f"shop.{topic}": KnownTopic(table=table) for topic, table in topics.items()}
    return TopicList(stream="shop", refreshed_at=datetime.now(UTC), topics=known)


@pytest.mark.parametrize(
    "before",
    [None, make_list(), make_list(a=None, B=None), make_list(a="cdc.a", B="cdc.b", c=None)],
    ids=["no list", "an empty one", "before the first batches", "the newest"],
)
def test_what_the_tables_record_does_not_depend_on_the_list_before(
    lake: Lake, before: TopicList | None
) -> None:
    begin(lake, "shop.a", "shop.B")
    record(lake, "other", "shop.c", "cdc.c")
    listed = frozenset({"shop.a", "shop.B", "shop.b", "shop.c", "shop.d"})

    found = find_recorded_topics(lake.store, make_rule(), listed, before)

    assert found == {"shop.a": "cdc.a", "shop.B": "cdc.b"}


@pytest.mark.parametrize("before", [None, make_list(a="cdc.a", gone="cdc.gone", never=None)])
def test_a_topic_that_left_kafka_is_recorded_until_its_table_is_dropped(
    lake: Lake, before: TopicList | None
) -> None:
    begin(lake, "shop.a", "shop.gone")
    listed = frozenset({"shop.a"})

    kept = find_recorded_topics(lake.store, make_rule(), listed, before)
    lake.catalog.drop_table("cdc.gone")
    dropped = find_recorded_topics(lake.store, make_rule(), listed, before)

    assert kept == {"shop.a": "cdc.a", "shop.gone": "cdc.gone"}
    assert dropped == {"shop.a": "cdc.a"}


def test_a_namespace_may_have_a_placeholder_and_a_missing_one_holds_nothing(lake: Lake) -> None:
    rule = make_rule("db_{t}.x{topic}")
    begin(lake, "shop.a", rule=rule)

    assert find_recorded_topics(lake.store, rule, frozenset(), None) == {"shop.a": "db_a.xshop_a"}
    assert find_recorded_topics(lake.store, make_rule("no.{t}"), frozenset(), None) == {}


def test_the_history_of_a_state_table_is_that_of_its_changes(lake: Lake) -> None:
    rule = make_rule(mode="upsert")
    begin(lake, "shop.a", rule=rule)
    lake.store.create("cdc.a", new_table(make_stream()))

    found = find_recorded_topics(lake.store, rule, frozenset(), None)

    assert lake.store.find("cdc.a__changes") is not None
    assert found == {"shop.a": "cdc.a"}


def test_a_known_stream_costs_no_request(lake: Lake) -> None:
    nowhere = TableStore(lake.store.preset)
    listed = frozenset({"shop.a"})

    found = find_recorded_topics(nowhere, make_rule(), listed, make_list(a="cdc.a"))

    assert found == {"shop.a": "cdc.a"}
    assert nowhere._catalog is None  # noqa: SLF001 - it was not opened
