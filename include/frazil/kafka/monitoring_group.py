"""A consumer group that shows a stream's progress to lag monitors; no decision reads its offsets.

Each committed offset carries the stream's name as metadata, so that the group of an application or
of another stream is recognised and never overwritten.
"""

from collections.abc import Mapping, Sequence

from frazil.errors import GroupInUseError
from frazil.kafka.cluster import GroupFacts, KafkaLog

_PREFIX = "frazil:"


def commit_progress(
    log: KafkaLog, group: str, stream: str, offsets: Mapping[str, Sequence[int]]
) -> None:
    """Commit a stream's next offsets in its monitoring group.

    Raises:
        GroupInUseError: the group has members, or offsets that this stream did not commit.
        KafkaUnavailableError: the cluster did not answer, or refuses.
    """
    require_own_group(log.fetch_group(group), group, stream)
    log.commit_group(group, offsets, _PREFIX + stream)


def require_own_group(facts: GroupFacts, group: str, stream: str) -> None:
    """Check that a group has no members, and only offsets that this stream committed.

    Raises:
        GroupInUseError: it has members, or offsets of others.
    """
    marks = {mark for parts in facts.committed.values() for _, mark in parts.values()}
    foreign = sorted(marks - {_PREFIX + stream})
    if not facts.members and not foreign:
        return
    if facts.members:
        reason = f"it has {facts.members} active members"
    elif foreign[0].startswith(_PREFIX):
        reason = f"stream {foreign[0].removeprefix(_PREFIX)} commits its offsets"
    else:
        reason = "another client has committed offsets in it"
    raise GroupInUseError(
        f"stream {stream}: consumer group {group} is not used for monitoring: {reason}",
        "choose a name in `source.monitoring_group` that nothing else uses; if the group is an old "
        "one that is not in use, delete it with `kafka-consumer-groups.sh --delete`",
    )


def is_current(facts: GroupFacts, offsets: Mapping[str, Sequence[int]]) -> bool:
    """Return whether a group shows exactly these offsets of their topics."""
    shown = {t: {p: offset for p, (offset, _) in ps.items()} for t, ps in facts.committed.items()}
    return all(shown.get(topic, {}) == dict(enumerate(parts)) for topic, parts in offsets.items())
