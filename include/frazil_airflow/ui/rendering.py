"""Helpers of both pages: the Jinja templates, and the time limit of their reads."""

from datetime import datetime
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

TIMEOUT_SECONDS = 12.0
"""Longer than one timeout of the Kafka client, so that the page shows that client's error."""

TABLES_SECONDS = 12.0
"""For the tables of all streams, before Kafka is asked."""

_TEMPLATES = Environment(
    loader=FileSystemLoader(Path(__file__).parent / "templates"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)


def render(template: str, **values: object) -> str:
    """Render a file of `templates/`; all values are escaped."""
    return _TEMPLATES.get_template(template).render(values)


def format_time(at: datetime) -> str:
    """Format an instant to the second; headings name the time zone."""
    return f"{at:%Y-%m-%d %H:%M:%S}"
