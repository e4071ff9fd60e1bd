"""Render a comparison as one HTML file without links to others; all values are escaped."""

from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from frazil.migration.messages import Comparison

_TEMPLATE = "comparison.html.jinja"

_SIDES = (
    ("table", "table"),
    ("coordinates of", "writer"),
    ("snapshot", "snapshot_id"),
    ("rows", "rows"),
    ("rows without a coordinate", "unplaced"),
    ("partitioned by", "partitioned_by"),
    ("newest record", "newest_event_at"),
    ("newest commit", "newest_commit_at"),
)
_COUNTS = (
    ("once on both", "matched"),
    ("with other values", "changed"),
    ("missing on the right", "missing"),
    ("of them dead letters there", "missing_dead_letters"),
    ("only on the right", "extra"),
    ("of them dead letters on the left", "extra_dead_letters"),
    ("duplicates on the left", "doubled_left"),
    ("duplicates on the right", "doubled_right"),
    ("left before", "left_before"),
    ("left ahead", "left_ahead"),
    ("right before", "right_before"),
    ("right ahead", "right_ahead"),
)


def write_page(comparison: Comparison) -> str:
    """Return the page; names of columns and tables may contain HTML, which is escaped."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent), autoescape=True, undefined=StrictUndefined
    )
    environment.filters["text"] = _format
    page = environment.get_template(_TEMPLATE)
    return page.render(c=comparison, sides=_SIDES, counts=_COUNTS)


def _format(value: object) -> str:
    if isinstance(value, tuple):
        return ", ".join(str(part) for part in value)
    return "" if value is None else str(value)
