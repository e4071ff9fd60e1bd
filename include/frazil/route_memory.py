"""What a route has promised: its values are written down beside the ledger of the rest.

A record that another stream takes is skipped by the rest for good. So a value may join a route, but
it cannot leave: what its stream had not read yet would be nowhere.
"""

import json

from pyiceberg.table import Table

from frazil import commits, keys
from frazil.errors import StreamFileError
from frazil.publishing import commit_turn
from frazil.streams import Stream
from frazil.turns import take_turns
from frazil.workspace import Workspace


def refuse_departed(table: Table, stream: Stream) -> None:
    """Refuse a route that lost a value or another field decides; write nothing.

    Raises:
        StreamFileError: with the values.
    """
    text = table.properties.get(keys.route_key(stream.stream))
    if text is None:
        return
    known = json.loads(text)
    route = stream.route
    gone = sorted(set(known["values"]) - set(route.tables if route else ()))
    if not gone and route is not None and route.field == known["field"]:
        return
    what = f"route.tables no longer has {', '.join(gone)}" if gone else "route.field has changed"
    raise StreamFileError(
        f"stream {stream.stream}: {what}, but records by field {known['field']} were left to the "
        "streams of the route: those that they have not read yet would be nowhere",
        f"put route.field {known['field']} and the values back; to stop filling a table pause its "
        "DAGs, and for another split give the file a new name",
    )


def remember_route(work: Workspace) -> None:
    """Write down the values that the stream of the rest leaves to others.

    Raises:
        StreamFileError: see `refuse_departed`; nothing was written.
    """
    stream = work.stream

    def turn() -> None:
        table = work.store.load(stream.table.name)
        refuse_departed(table, stream)
        route = stream.route
        if route is None or route.takes is not None:
            return
        text = json.dumps({"field": route.field, "values": sorted(route.tables)})
        if table.properties.get(keys.route_key(stream.stream)) != text:
            update = commits.set_properties({keys.route_key(stream.stream): text})
            commit_turn(work.store, table, {}, [update])

    take_turns(f"writing down the route of stream {stream.stream}", turn)
