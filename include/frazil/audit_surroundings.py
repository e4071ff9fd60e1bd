"""What stands around a stream's own steps: changes by others, rows that came with the table."""

import json

from frazil import keys
from frazil.audit_ledger import Step, list_restarts
from frazil.coordinates import Partition
from frazil.ledger import History, walk_ancestors
from frazil.state import parse_state


def count_adopted_rows(steps: tuple[Step, ...]) -> int:
    """Count the rows that came with a table when it was taken over."""
    return sum(
        json.loads(step.entry.summary.get(keys.ADOPTED, "{}")).get("rows", 0)
        for step in steps
        if step.kind == keys.ADOPT
    )


def list_adopted(steps: tuple[Step, ...]) -> dict[Partition, int]:
    """List the offsets at which a table was taken over, of logs that are still read."""
    found: dict[Partition, int] = {}
    for step in steps:
        for partition in list_restarts(step):
            found.pop(partition, None)
        if step.kind == keys.ADOPT and step.after:
            for topic, offsets in step.after.offsets.items():
                found |= {(topic, number): offset for number, offset in enumerate(offsets)}
    return found


def list_topics(history: History) -> frozenset[str]:
    """List the topics of every stream that main's ancestry carries."""
    return frozenset(
        topic
        for entry in walk_ancestors(history)
        for key, text in entry.summary.items()
        if key.startswith(keys.STATE_PREFIX)
        for topic in parse_state(text).offsets
    )
