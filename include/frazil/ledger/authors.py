"""The author of a manual decision, and the decision as it was recorded."""

import json
from collections.abc import Mapping
from dataclasses import dataclass

from frazil.errors import ConfigurationError
from frazil.ledger import keys

_NO_USER = (
    "no user is known",
    "add --by YOU; in Airflow trigger the DAG yourself, in the UI or by the API with your login",
)
_NO_REASON = ("the reason is empty", "add --reason WHY, or fill in Reason in the form")


@dataclass(frozen=True)
class Author:
    """Who decided, and why; both are written into the snapshot's summary."""

    by: str
    reason: str

    def __post_init__(self) -> None:
        """Require a name and a reason, as text that can be written."""
        missing = [] if self.by.strip() else [_NO_USER]
        missing += [] if self.reason.strip() else [_NO_REASON]
        if missing:
            facts, steps = zip(*missing, strict=True)
            raise ConfigurationError(
                f"a decision needs a name and a reason: {' and '.join(facts)}", "; ".join(steps)
            )
        try:
            (self.by + self.reason).encode()
        except UnicodeEncodeError:
            raise ConfigurationError(
                "the name or the reason is not UTF-8; nothing was written",
                "set the encoding of the shell to UTF-8, or write them in ASCII",
            ) from None


@dataclass(frozen=True)
class Decision:
    """A recorded decision and the snapshot that records it."""

    kind: str
    text: str
    snapshot_id: int | None = None


def describe_decision(summary: Mapping[str, str]) -> str:
    """Describe the decision that a snapshot records: target, person, reason, approver, waiver."""
    parts = []
    if keys.TARGET in summary:
        is_rollback = summary.get(keys.KIND) == keys.REWIND
        parts.append(f"{'to' if is_rollback else 'rule:'} {summary[keys.TARGET]}")
    if keys.BY in summary:
        parts.append(f"{summary[keys.BY]}: {summary.get(keys.REASON, '')}")
    if keys.APPROVED_BY in summary:
        parts.append(f"approved by {summary[keys.APPROVED_BY]}")
    if waived := _read_waiver(summary.get(keys.QUALITY, "")):
        parts.append(f"check waived by {waived.get('by', '')}: {waived.get('reason', '')}")
    return ", ".join(parts)


def _read_waiver(quality: str) -> Mapping[str, str]:
    """Return the waiver of a verdict; empty if there is none."""
    verdict = json.loads(quality) if quality.startswith("{") else {}
    waived = verdict.get("waived")
    return waived if isinstance(waived, dict) else {}


def require_not_dry_run(stream: str, *, dry_run: bool) -> None:
    """Refuse to execute a plan that was made as a dry run.

    Raises:
        ConfigurationError: the plan is a dry run.
    """
    if dry_run:
        raise ConfigurationError(
            f"stream {stream}: this plan is a dry run, nothing was written",
            "plan again with --no-dry-run, or with Dry run off in the form",
        )
