"""Who decided, why, and what came of it: the form of every answer that a person gives."""

from dataclasses import dataclass

from frazil.errors import ConfigurationError


@dataclass(frozen=True)
class Author:
    """Who decided, and why; both are kept with the snapshot."""

    by: str
    reason: str

    def __post_init__(self) -> None:
        """Refuse a decision without a name or a reason."""
        if not self.by.strip() or not self.reason.strip():
            raise ConfigurationError(
                "a decision needs a name and a reason",
                "give both: --by YOU --reason WHY, or By and Reason in the form",
            )


@dataclass(frozen=True)
class Decision:
    """What was decided and where it stands in the table."""

    kind: str
    text: str
    snapshot_id: int | None = None


def require_not_dry_run(stream: str, *, dry_run: bool) -> None:
    """Keep a plan that only looked from being carried out.

    Raises:
        ConfigurationError: the plan is a dry run.
    """
    if dry_run:
        raise ConfigurationError(
            f"stream {stream}: this plan is a dry run, nothing was written",
            "plan again with the dry run switched off",
        )
