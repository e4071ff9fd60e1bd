"""An instant as a stream file writes it: ISO 8601 with a zone, also as YAML reads it unquoted."""

from datetime import date, datetime

from frazil.errors import ConfigurationError

EXAMPLE = "2026-01-31T00:00:00Z"


def parse_instant(written: object) -> str:
    """Give the instant as text.

    Raises:
        ValueError: no instant, no zone, or before 1970, where Kafka's clock begins.
    """
    # YAML makes a `datetime` of 2026-01-31T00:00:00Z and a `date` of 2026-01-31.
    text = written.isoformat() if isinstance(written, date) else str(written)
    try:
        instant = datetime.fromisoformat(text)
    except ValueError as error:
        message = f"{text!r} is no ISO 8601 instant; write it as {EXAMPLE}"
        raise ValueError(message) from error
    if instant.tzinfo is None:
        message = f"{text!r} is an instant without a zone; write it as {EXAMPLE}"
        raise ValueError(message)
    if instant.timestamp() < 0:
        message = f"{text!r} lies before 1970, where Kafka's clock begins"
        raise ValueError(message)
    return text


def to_epoch_ms(instant: str) -> int:
    """Count the milliseconds since 1970 of a parsed instant."""
    return int(datetime.fromisoformat(instant).timestamp() * 1000)


def read_instant(text: str, option: str) -> int:
    """Read an instant with zone as milliseconds since 1970.

    Raises:
        ConfigurationError: no instant, or no zone.
    """
    try:
        return to_epoch_ms(parse_instant(text))
    except ValueError as error:
        raise ConfigurationError(f"{option}: {error}", "give date, time and zone") from error


def read_span(since: str | None, until: str | None) -> tuple[int | None, int | None]:
    """Read both ends of a time as milliseconds since 1970; None where one is left out.

    Raises:
        ConfigurationError: no instant, no zone, or the end comes before the beginning.
    """
    since_ms = read_instant(since, "--since") if since else None
    until_ms = read_instant(until, "--until") if until else None
    if since_ms is not None and until_ms is not None and since_ms >= until_ms:
        raise ConfigurationError(
            f"--since {since} is not before --until {until}",
            "swap them, or leave one out",
        )
    return since_ms, until_ms


def describe_seconds(seconds: float) -> str:
    """Write a span of time as people say it: `42 s`, `3 min 5 s`, `2 h 10 min`, `4 d 3 h`."""
    whole = int(seconds)
    for size, unit, smaller_size, smaller in (
        (86_400, "d", 3600, "h"),
        (3600, "h", 60, "min"),
        (60, "min", 1, "s"),
    ):
        if whole >= size:
            rest = whole % size // smaller_size
            return f"{whole // size} {unit}" + (f" {rest} {smaller}" if rest else "")
    return f"{whole} s"


HOUR_MS = 3_600_000


DAY_MS = 24 * HOUR_MS
