"""What maintenance asks Spark to do with one table, and what it answers."""

from typing import Literal

from pydantic import Field

from frazil.contracts import Message


class TableRequest(Message):
    """What a maintenance job is asked to do with one table."""

    catalog: str
    table: str
    action: Literal["compact", "manifests", "expire", "orphans"]
    target_bytes: int = 128 * 1024 * 1024
    partial_progress: bool = False
    rewrite_all: bool = False
    prefix_listing: bool = False
    snapshot_ids: tuple[int, ...] = ()
    older_than_ms: int = 0
    dry_run: bool = True
    session_conf: dict[str, str] = Field(default_factory=dict)


class TableResult(Message):
    """What a maintenance job did."""

    counts: dict[str, int]
    paths: tuple[str, ...] = ()
