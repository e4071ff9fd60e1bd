"""What a move to another cluster is asked for, what it comes to, and how it ended."""

from frazil.contracts import Message


class MoveRequest(Message):
    """Where to look; a person's name and reason as soon as it is no dry run.

    `next` are offsets on the new cluster, as `topic:partition:offset`, where a person knows them.
    """

    stream: str
    old_connection: str | None = None
    next: tuple[str, ...] = ()
    by: str = ""
    reason: str = ""
    dry_run: bool = True


class MovedPartition(Message):
    """One partition's next offset on both clusters, and what shows that they are one."""

    topic: str
    partition: int
    old_next: int
    new_next: int
    evidence: str


class MovePlan(Message):
    """A move that was looked at, shown before it is done."""

    stream: str
    table: str
    request: MoveRequest
    old_cluster: str = ""
    new_cluster: str = ""
    partitions: tuple[MovedPartition, ...] = ()
    text: str

    @property
    def is_last_word(self) -> bool:
        """Say that a dry run ends here."""
        return self.request.dry_run


class Moved(Message):
    """How a move ended."""

    stream: str
    table: str
    snapshot_id: int | None
    text: str
