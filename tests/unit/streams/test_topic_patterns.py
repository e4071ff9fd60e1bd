"""Topics of a pattern: their names, and which of several with one name goes on."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from frazil.streams.topic_patterns import Expansion, TopicRule, expand_topics, find_rule

DEBEZIUM = r"shop\.public\.(?P<topic_table>.+)"


def make_rule(
    pattern: str = DEBEZIUM, table: str = "cdc.{topic_table}", **more: object
) -> TopicRule:
    source = {"topic_pattern": pattern, **more}
    rule = find_rule("shop", {"source": source, "table": {"name": table}})
    assert rule is not None
    return rule


def names(rule: TopicRule, *topics: str) -> list[tuple[str, str]]:
    found = expand_topics(rule, dict.fromkeys(topics))
    return [(each.stream, each.table) for each in found.streams]


@pytest.mark.parametrize(
    ("pattern", "table", "topic", "stream", "named"),
    [
        (DEBEZIUM, "cdc.{topic_table}", "shop.public.orders", "shop__orders", "cdc.orders"),
        (DEBEZIUM, "cdc.t_{topic_table}", "shop.public.A-b.C", "shop__a_b_c", "cdc.t_a_b_c"),
        (r"(?P<db>\w+)\.(?P<t>\w+)", "{db}.{t}", "Eu.Sales", "shop__eu_sales", "eu.sales"),
        (r"(?P<db>\w+)\.(?P<t>\w+)", "raw.{topic}", "eu.s", "shop__eu_s", "raw.eu_s"),
        (r"eu\..+", "raw.{topic}", "eu.s", "shop__eu_s", "raw.eu_s"),
        (DEBEZIUM, "cdc.{topic_table}", "shop.public.a__b", "shop__a__b", "cdc.a__b"),
    ],
    ids=["Debezium", "other characters", "two groups", "the topic", "no group", "underscores"],
)
def test_a_topic_gives_its_stream_and_table_their_names(
    pattern: str, table: str, topic: str, stream: str, named: str
) -> None:
    assert names(make_rule(pattern, table), topic) == [(stream, named)]


@pytest.mark.parametrize(
    "topic",
    ["shop.public.", "a.shop.public.b", "shopxpublic.b", "__consumer_offsets", "shop.public.old"],
)
def test_the_whole_name_must_match_and_an_excluded_topic_does_not(topic: str) -> None:
    rule = make_rule(exclude_topics=["shop.public.old"])

    assert rule.select([topic, "shop.public.b"]) == {"shop.public.b"}
    assert make_rule(".*", "a.{topic}").select(["__consumer_offsets"]) == frozenset()


@pytest.mark.parametrize(
    ("topic", "words"),
    [
        ("shop.public.1a", "'cdc.1a' is not `namespace.table`"),
        ("shop.public.a__dead_letters", "belong to dead letters"),
        ("shop.public.a__changes", "belong to state tables"),
        ("shop.public." + "a" * 60, "too long for the name of a stream"),
    ],
)
def test_a_topic_with_a_bad_name_stops_no_other(topic: str, words: str) -> None:
    found = expand_topics(make_rule(), {topic: None, "shop.public.ok": None})

    assert [each.topic for each in found.streams] == ["shop.public.ok"]
    assert [(each.topics, words in each.reason) for each in found.refusals] == [((topic,), True)]
    assert topic in found.refusals[0].reason


@pytest.mark.parametrize(("letters", "mode"), [(232, "upsert"), (241, "append")])
def test_a_topic_whose_tables_get_too_long_names_stops_no_other(letters: int, mode: str) -> None:
    source = {"topic_pattern": "(?P<part>[a-z]+)-.*"}
    rule = find_rule("shop", {"source": source, "table": {"name": "s.{topic}", "mode": mode}})
    assert rule is not None

    long, longer = ("b-" + "x" * (number - 2) for number in (letters, letters + 1))

    assert len(names(rule, "a-1", long)) == 2
    found = expand_topics(rule, dict.fromkeys(["a-1", longer]))
    assert [each.topic for each in found.streams] == ["a-1"]
    assert "has no stream: a name of 242 letters" in found.refusals[0].reason


def test_a_group_without_a_value_names_nothing() -> None:
    rule = make_rule(r"a\.(?P<t>x*)(?P<u>y)?", "cdc.b{t}{u}")

    assert [each.topic for each in expand_topics(rule, {"a.xy": None}).streams] == ["a.xy"]
    for topic in ("a.", "a.x"):
        assert "has no value" in expand_topics(rule, {topic: None}).refusals[0].reason


@pytest.mark.parametrize(
    ("recorded", "goes_on"),
    [
        ({}, None),
        ({"shop.public.a-b": "cdc.a_b"}, "shop.public.a-b"),
        ({"shop.public.A_b": "cdc.a_b"}, "shop.public.A_b"),
        ({"shop.public.A_b": "before.a_b"}, None),
    ],
    ids=["none has begun", "the one", "the other", "in another table"],
)
def test_of_two_topics_with_one_name_the_recorded_one_goes_on(
    recorded: dict[str, str], goes_on: str | None
) -> None:
    both = ["shop.public.a-b", "shop.public.A_b"]

    found = expand_topics(make_rule(), {topic: recorded.get(topic) for topic in both})

    assert [each.topic for each in found.streams] == ([goes_on] if goes_on else [])
    (refusal,) = found.refusals
    assert all(topic in refusal.reason for topic in both)
    assert set(refusal.topics) == set(both) - {goes_on}


def test_two_streams_on_one_table_are_refused_too() -> None:
    rule = make_rule(r"(?P<a>\w+)\.(?P<b>\w+)", "cdc.{b}")

    found = expand_topics(rule, {"x.t": "cdc.t", "y.t": None, "y.u": None})

    assert [each.stream for each in found.streams] == ["shop__x_t", "shop__y_u"]
    assert "topics x.t and y.t would share table cdc.t; x.t goes on" in found.refusals[0].reason


TOPICS = st.dictionaries(
    st.text("aAb-._1", min_size=1, max_size=4).map("shop.public.".__add__),
    st.booleans(),
    max_size=8,
)
RULES = st.sampled_from(
    [
        make_rule(),
        make_rule(table="cdc.x{topic_table}"),
        make_rule(r"shop\.public\.(?P<a>.)(?P<b>.*)", "cdc.x{a}"),
        make_rule(r"shop\.public\..*", "cdc.{topic}"),
    ]
)


def expand(rule: TopicRule, topics: dict[str, bool]) -> Expansion:
    """Expand topics of which some have begun in the table that the rule names."""
    tables = {each.topic: each.table for each in rule.name_all(topics)}
    return expand_topics(rule, {t: tables.get(t) if begun else None for t, begun in topics.items()})


@given(RULES, TOPICS)
def test_names_are_distinct_and_each_topic_has_a_stream_or_a_reason(
    rule: TopicRule, topics: dict[str, bool]
) -> None:
    found = expand(rule, topics)

    for kind in ("topic", "stream", "table"):
        assert len({getattr(each, kind) for each in found.streams}) == len(found.streams)
    have = {each.topic for each in found.streams}
    refused = {topic for each in found.refusals for topic in each.topics}
    assert have | refused == rule.select(topics)
    assert not have & refused


@given(RULES, TOPICS, st.randoms())
def test_the_order_in_which_topics_were_found_decides_nothing(
    rule: TopicRule, topics: dict[str, bool], shuffled: "st.DrawFn"
) -> None:
    others = list(topics.items())
    shuffled.shuffle(others)  # type: ignore[attr-defined]

    assert expand(rule, dict(others)) == expand(rule, topics)


@given(RULES, TOPICS, TOPICS)
def test_a_new_topic_stops_no_stream_that_has_begun(
    rule: TopicRule, topics: dict[str, bool], new: dict[str, bool]
) -> None:
    before = expand(rule, topics)

    after = expand(rule, {**dict.fromkeys(new, False), **topics})

    assert {each for each in before.streams if each.has_begun} <= set(after.streams)
