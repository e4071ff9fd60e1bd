"""Topic patterns: one stream file for all topics whose names match a regular expression.

Each topic has a stream of its own, which the rest of Frazil treats as if a file defined it. Pure
functions here derive the names, and decide which of several topics with one name keeps its stream.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from frazil.ledger.keys import CHANGES_SUFFIX
from frazil.streams.column_types import FieldError
from frazil.streams.models import STREAM_NAME
from frazil.streams.routes import SEPARATOR, parse_table_name
from frazil.streams.sections import TOPIC, Source
from frazil.streams.state_sections import validate_name

INTERNAL_PREFIX = "__"
"""Of Kafka's own topics, such as `__consumer_offsets`: no pattern selects them."""

_PLACEHOLDER = re.compile(r"\{([^{}]*)\}")
_NO_IDENTIFIER = re.compile(r"[^a-z0-9_]")


@dataclass(frozen=True)
class TopicStream:
    """A topic, and the names of its stream and table."""

    topic: str
    stream: str
    table: str
    has_begun: bool = False
    """Whether the table's history records the stream with this topic."""


@dataclass(frozen=True)
class Refusal:
    """Topics that have no stream, and why; `streams` are the names that they would have."""

    topics: tuple[str, ...]
    streams: frozenset[str]
    reason: str


@dataclass(frozen=True)
class TopicRule:
    """Which topics a stream file selects, and how their streams and tables are named."""

    stream: str
    pattern: re.Pattern[str]
    table: str
    """The table's name, with placeholders."""
    excluded: frozenset[str] = frozenset()
    has_change_table: bool = False
    """Whether the offsets are in the history of `<table>__changes`."""

    def select(self, topics: Iterable[str]) -> frozenset[str]:
        """Return the topics that the file selects: their whole names match, none is excluded."""
        return frozenset(
            topic
            for topic in topics
            if not topic.startswith(INTERNAL_PREFIX)
            and topic not in self.excluded
            and self.pattern.fullmatch(topic)
        )

    def name(self, topic: str) -> TopicStream:
        """Return the names for a selected topic.

        Raises:
            ValueError: they are not the names of a stream and a table.
        """
        matched = self.pattern.fullmatch(topic)
        groups = (matched.groupdict() if matched else {}) or {TOPIC: topic}
        values = {name: to_identifier(value or "") for name, value in groups.items()}
        for name, value in values.items():
            if not value:
                message = f"group {name!r} of the pattern has no value"
                raise ValueError(message)
        stream = self.stream + SEPARATOR + "_".join(values.values())
        if not re.match(STREAM_NAME, stream):
            message = f"{stream!r} is too long for the name of a stream"
            raise ValueError(message)
        known = {TOPIC: to_identifier(topic), **values}
        table = _PLACEHOLDER.sub(lambda found: known[found[1]], self.table)
        for name in (table, self.ledger_table(table)):
            parse_table_name(name)
        validate_name(table)
        return TopicStream(topic, stream, table)

    def name_all(self, topics: Iterable[str]) -> Iterator[TopicStream]:
        """Yield the names for those topics that have valid ones."""
        for topic in topics:
            try:
                yield self.name(topic)
            except ValueError:  # `expand_topics` says so
                continue

    def ledger_table(self, table: str) -> str:
        """Return the table whose history records the offsets of a stream."""
        return table + CHANGES_SUFFIX if self.has_change_table else table

    @cached_property
    def ledger_tables(self) -> tuple[re.Pattern[str], ...]:
        """Return a pattern for each part of the names of tables that hold offsets."""
        parts = self.ledger_table(self.table).split(".")
        return tuple(re.compile(_PLACEHOLDER.sub("[a-z0-9_]+", part)) for part in parts)


@dataclass(frozen=True)
class Expansion:
    """The streams of a stream file with a pattern, and the topics without one."""

    streams: tuple[TopicStream, ...]
    refusals: tuple[Refusal, ...]


def find_rule(stream: str, content: Mapping[str, object]) -> TopicRule | None:
    """Return the rule of the content of a stream's file; None if it has no pattern.

    Raises:
        FieldError: the name of the table does not tell topics apart, or has unknown placeholders.
        ValidationError: the section `source` is invalid.
    """
    section, table = content.get("source"), content.get("table")
    if not isinstance(section, Mapping) or section.get("topic_pattern") is None:
        return None
    source = Source.model_validate(section)
    options = table if isinstance(table, Mapping) else {}
    template = str(options.get("name", ""))
    pattern = re.compile(source.topic_pattern or "")
    names, used = [*pattern.groupindex, TOPIC], _PLACEHOLDER.findall(template)
    known = ", ".join(f"{{{name}}}" for name in names)
    if not used:
        reason = f"with `topic_pattern` each topic has a table of its own: use one of {known}"
        raise FieldError(("table", "name"), reason)
    unknown = [name for name in used if name not in names]
    if unknown:
        reason = f"the pattern has no group {unknown[0]!r}; placeholders are {known}"
        raise FieldError(("table", "name"), reason)
    return TopicRule(
        stream=stream,
        pattern=pattern,
        table=template,
        excluded=frozenset(source.exclude_topics),
        has_change_table=options.get("mode") == "upsert",
    )


def without_placeholders(content: dict[str, Any]) -> dict[str, Any]:
    """Return the content of a file with a pattern with a valid name of a table, for validation."""
    source, table = content.get("source"), content.get("table")
    if not (isinstance(source, dict) and source.get("topic_pattern") and isinstance(table, dict)):
        return content
    name = table.get("name")
    shown = _PLACEHOLDER.sub("x", name) if isinstance(name, str) else name
    return {**content, "table": {**table, "name": shown}}


def fill_content(content: dict[str, Any], names: TopicStream) -> dict[str, Any]:
    """Return the content of a valid file with a pattern as that of a file for one topic."""
    options = content["source"].items()
    source = {k: v for k, v in options if k not in {"topic_pattern", "exclude_topics"}}
    return {
        **content,
        "stream": names.stream,
        "source": {**source, "topic": names.topic},
        "table": {**content["table"], "name": names.table},
    }


def to_identifier(value: str) -> str:
    """Return a value in lower case, with `_` for each character but letters, digits and `_`."""
    return _NO_IDENTIFIER.sub("_", value.lower())


def expand_topics(rule: TopicRule, topics: Mapping[str, str | None]) -> Expansion:
    """Return the streams of the selected topics; each other selected topic is in a refusal.

    `topics`: topic → the table whose history records its stream, or None. Of several topics with
    one stream name or table the only one that has begun goes on; if there is none, none of them.
    """
    named: list[TopicStream] = []
    refusals: list[Refusal] = []
    for topic in sorted(rule.select(topics)):
        try:
            names = rule.name(topic)
        except ValueError as error:
            refusals.append(Refusal((topic,), frozenset(), f"topic {topic} has no stream: {error}"))
            continue
        has_begun = topics[topic] == names.table
        named.append(TopicStream(topic, names.stream, names.table, has_begun))
    collisions = list(_find_collisions(named))
    refusals += collisions
    refused = {topic for each in collisions for topic in each.topics}
    return Expansion(tuple(each for each in named if each.topic not in refused), tuple(refusals))


def _find_collisions(named: Sequence[TopicStream]) -> Iterator[Refusal]:
    """Yield a refusal for each stream name or table of several topics, without the one that stays.

    Two topics with the same stream name and table are in one refusal.
    """
    seen: set[frozenset[str]] = set()
    for kind in ("stream", "table"):
        groups: dict[str, list[TopicStream]] = {}
        for each in named:
            groups.setdefault(each.stream if kind == "stream" else each.table, []).append(each)
        for name, members in groups.items():
            together = frozenset(each.topic for each in members)
            if len(members) > 1 and together not in seen:
                seen.add(together)
                yield _make_refusal(f"{kind} {name}", members)


def _make_refusal(shared: str, members: Sequence[TopicStream]) -> Refusal:
    begun = [each for each in members if each.has_begun]
    owner = begun[0] if len(begun) == 1 else None
    refused = [each for each in members if each is not owner]
    topics = " and ".join(each.topic for each in members)
    outcome = (
        f"{owner.topic} goes on, because table {owner.table} has its rows"
        if owner
        else "none of them has a stream"
    )
    names = frozenset(each.stream for each in refused) - {owner.stream if owner else ""}
    reason = f"topics {topics} would share {shared}; {outcome}"
    return Refusal(tuple(each.topic for each in refused), names, reason)
