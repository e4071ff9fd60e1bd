"""The author of a manual decision, and the decision as it was recorded."""

from dataclasses import dataclass

from frazil.errors import ConfigurationError


@dataclass(frozen=True)
class Author:
    """Who decided, and why; both are written into the snapshot's summary."""

    by: str
    reason: str

    def __post_init__(self) -> None:
        """Require a name and a reason."""
        if not self.by.strip() or not self.reason.strip():
            raise ConfigurationError(
                "a decision needs a name and a reason",
                "add --by YOU --reason WHY, or fill in By and Reason in the form",
            )


@dataclass(frozen=True)
class Decision:
    """A recorded decision and the snapshot that records it."""

    kind: str
    text: str
    snapshot_id: int | None = None


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
