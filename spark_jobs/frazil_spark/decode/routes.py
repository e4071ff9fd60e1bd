"""Select the records of a topic that belong to this stream by its route."""

from dataclasses import replace

from pyspark.sql import functions as F  # noqa: N812 - PySpark's own convention

from frazil.schemas.column_decoding import value_path
from frazil.streams.column_types import write_text
from frazil.streams.routes import Route
from frazil_spark.decode.frame import GOOD, Decoded

ROUTED_ELSEWHERE = "_frazil_routed_elsewhere"


def keep_own(decoded: Decoded, route: Route | None) -> Decoded:
    """Mark records that are routed to other streams; the route's fallback stream stores no rows.

    A record that does not decode belongs to the fallback stream, since its field is unknown.
    """
    if route is None:
        return decoded
    path = value_path(next(c for c in decoded.columns if c.name == route.field))
    if route.takes is None:
        known = ", ".join(write_text(value) for value in route.tables)
        elsewhere, good = f"coalesce({path} IN ({known}), false)", "false"
        elsewhere = f"NOT ({decoded.invalid}) AND {elsewhere}"
    else:
        mine = f"NOT ({decoded.invalid}) AND coalesce({path} = {write_text(route.takes)}, false)"
        elsewhere, good = f"NOT ({mine})", f"{GOOD} AND NOT {ROUTED_ELSEWHERE}"
    marked = decoded.frame.withColumn(ROUTED_ELSEWHERE, F.expr(elsewhere))
    return replace(
        decoded,
        frame=marked.withColumn(GOOD, F.expr(good)),
        routed_elsewhere=ROUTED_ELSEWHERE,
        reason=_explain(decoded, route, "'unknown_route'", decoded.reason),
        detail=_explain(decoded, route, f"'no table for this {route.field}'", decoded.detail),
    )


def _explain(decoded: Decoded, route: Route, unknown: str, other: str) -> str:
    """Write the text for records that decode and have no table, `other` for those that do not."""
    if route.takes is not None:
        return other
    return f"CASE WHEN NOT ({decoded.invalid}) THEN {unknown} ELSE {other} END"
