"""An instant as a stream file writes it: ISO 8601 with a zone, also as YAML reads it unquoted."""

from datetime import date, datetime

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
