"""A comparison as one HTML file that needs nothing else; every value is escaped."""

from jinja2 import Environment, StrictUndefined

from frazil.migration.messages import Comparison

_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{{ c.left.name }} and {{ c.right.name }}: {{ c.verdict }}</title>
<style>
:root { color-scheme: light dark; }
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 72rem; padding: 0 1rem; }
table { border-collapse: collapse; margin: 1rem 0 2rem; width: 100%; }
caption { font-weight: 600; padding: .4rem 0; text-align: left; }
th, td { border-bottom: 1px solid #8885; padding: .3rem .6rem; text-align: left; }
td.n { text-align: right; font-variant-numeric: tabular-nums; }
.verdict { font-size: 1.4rem; font-weight: 600; }
.equal { color: #2a7d2a; }
.different, .nothing { color: #c03030; }
code { font-size: .9em; }
</style>
</head>
<body>
<h1>{{ c.left.name }} and {{ c.right.name }}</h1>
<p class="verdict {{ c.verdict.split()[0] }}">{{ c.verdict }}</p>
<p>{{ c.text }}</p>
<table>
<caption>Both sides</caption>
<tr><th></th><th>left</th><th>right</th></tr>
{% for label, name in sides -%}
<tr><th>{{ label }}</th>
{%- for side in (c.left, c.right) %}<td>{{ side[name] | shown }}</td>{% endfor %}</tr>
{% endfor -%}
</table>
<table>
<caption>Records, over the offsets that
{%- if c.offsets %} were asked for{% else %} both sides have read{% endif %}</caption>
<tr><th>partition</th>{% for label, _ in counts %}<th>{{ label }}</th>{% endfor %}</tr>
{% for p in c.partitions -%}
<tr><td>{{ p.topic }}-{{ p.partition }}
{%- if p.judged %} [{{ p.judged[0] }}, {{ p.judged[1] }}){% endif %}</td>
{%- for _, name in counts %}<td class="n">{{ p[name] }}</td>{% endfor %}</tr>
{% endfor -%}
</table>
<table>
<caption>Offsets of the first records concerned</caption>
{% for p in c.partitions %}{% for kind, offsets in p.samples if offsets -%}
<tr><th>{{ p.topic }}-{{ p.partition }}, {{ kind | replace("_", " ") }}</th>
<td><code>{{ offsets | join(", ") }}</code></td></tr>
{% endfor %}{% endfor -%}
</table>
<table>
<caption>Columns</caption>
<tr><th>column</th><th>left</th><th>right</th><th></th><th>checksums differ in</th></tr>
{% for column in c.columns -%}
<tr><td>{{ column.name }}</td><td>{{ column.left | shown }}</td><td>{{ column.right | shown }}</td>
<td>{{ column.note }}</td><td>
{%- for p in c.partitions if column.name in p.changed_columns -%}
{{ p.topic }}-{{ p.partition }} {% endfor %}</td></tr>
{% endfor -%}
</table>
{% if c.layout -%}
<ul>
{% for text in c.layout %}<li>{{ text }}</li>
{% endfor -%}
</ul>
{% endif -%}
</body>
</html>
"""

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
    ("doubled on the left", "doubled_left"),
    ("doubled on the right", "doubled_right"),
    ("left before", "left_before"),
    ("left ahead", "left_ahead"),
    ("right before", "right_before"),
    ("right ahead", "right_ahead"),
)


def write_page(comparison: Comparison) -> str:
    """Write the page; names of columns and tables may hold anything, so all of them are escaped."""
    environment = Environment(autoescape=True, undefined=StrictUndefined)
    environment.filters["shown"] = _show
    page = environment.from_string(_PAGE)
    return page.render(c=comparison, sides=_SIDES, counts=_COUNTS)


def _show(value: object) -> str:
    if isinstance(value, tuple):
        return ", ".join(str(part) for part in value)
    return "" if value is None else str(value)
