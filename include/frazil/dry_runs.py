"""Plans that only look."""

from frazil.errors import ConfigurationError


def refuse_dry_run(stream: str, *, dry_run: bool) -> None:
    """Keep a plan that only looked from being carried out.

    Raises:
        ConfigurationError: the plan is a dry run.
    """
    if dry_run:
        raise ConfigurationError(
            f"stream {stream}: this plan is a dry run, nothing was written",
            "plan again with the dry run switched off",
        )
