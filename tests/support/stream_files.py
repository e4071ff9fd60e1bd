"""Stream files as text, for tests that read a folder of them."""

GOOD = """\
stream: orders
owner: data-platform@example.org
source: {topic: orders}
value: {columns: {id: long!}}
table: {name: demo.orders}
"""
