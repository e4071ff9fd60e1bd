"""Values that change events did not carry: the newest older value of the same row fills them.

A life of a key begins at its first change, after a delete, or where a row got this key instead of
another one; in the last case it continues a life of that other key. The delete of the old key and
the creation of the new one have the same position: the source's database, and the LSN in its log.
A stream of several topics may have changes of several databases at one LSN.
"""

from collections.abc import Mapping, Sequence
from functools import reduce
from typing import NamedTuple

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own convention

from frazil.streams.column_types import quote_name, write_text

ORDER = "_frazil_order"
DELETES = "_frazil_deletes"
ROW = "_frazil_row"
LACKS = "_frazil_lacks"
MOVED = "_frazil_moved"
LSN, POSITION = "_frazil_lsn", "_frazil_position"
IS_LAST = "_frazil_is_last"
BEGIN = "_frazil_begin"
KEEPS = "_frazil_keeps"
UNFILLED = "_frazil_unfilled"
LIVE, PRESENT = "_frazil_live", "_frazil_present"
ONLY_DELETES = "_frazil_only_deletes"
NAME = "_frazil_name"
ROOT, NEXT = "_frazil_root", "_frazil_next"
"""Where a row got its key, and where the row of a still older key ended: positions, structs, in
whose comparisons a database that is null is equal to one that is null."""
END, DEPTH = "_frazil_end", "_frazil_depth"
OLD_KEY, OLD_KEYS = "_frazil_old_key", "_frazil_old_keys"
_HAS_OLD_KEY = "coalesce(exists(_kafka.headers, h -> h.key = '__debezium.oldkey'), false)"
EVENT_PATHS = (
    f"coalesce(_unavailable, array()) AS {LACKS}",
    f"_source.lsn AS {LSN}",
    f"named_struct('db', _source.db, 'lsn', _source.lsn) AS {POSITION}",
    f"lower(_op) = 'c' AND {_HAS_OLD_KEY} AS {MOVED}",
    f"false AS {IS_LAST}",
)
"""What the fold needs to know of a change event, as SQL of the change table."""


class Lives(NamedTuple):
    """Last values of rows whose key was changed, by the position of the delete; LSNs without it."""

    values: DataFrame
    waiting: list[int]


def list_lacking(changes: DataFrame, columns: Sequence[str], *, marks: bool) -> list[str]:
    """List the columns that a change may lack; deletes that become rows lack all of them."""
    if marks:
        return [*columns]
    found = changes.select(F.explode(LACKS).alias(NAME)).distinct().collect()
    return [name for name in columns if name in {row[NAME] for row in found}]


def write_lack(name: str, path: str = LACKS) -> str:
    """Write the condition that a change lacks a column."""
    return f"array_contains({path}, {write_text(name)})"


def aggregate_life(names: Sequence[str]) -> list[Column]:
    """Return the aggregates of a key's changes: the begin of its life, the newest values.

    Deletes that no other change follows, where they become a row, end no life of that row.
    """
    begin = f"named_struct('at', {ORDER}, 'position', CASE WHEN {MOVED} THEN {POSITION} END)"
    ends = f"({DELETES} AND NOT {IS_LAST} OR {MOVED})"
    values = [
        f"max_by(named_struct('at', {ORDER}, 'value', {ROW}.{quote_name(name)}), {ORDER})"
        f" FILTER (WHERE NOT {DELETES} AND NOT {write_lack(name)})"
        for name in names
    ]
    return [
        F.expr(f"max({begin}) FILTER (WHERE {ends})").alias(BEGIN),
        *(F.expr(text).alias(f"_frazil_value_{n}") for n, text in enumerate(values)),
    ]


def is_in_life(index: int) -> str:
    """Write the condition that the newest value of a column belongs to the last life."""
    at = f"_frazil_value_{index}.at"
    return f"coalesce({at} >= {BEGIN}.at, {at} IS NOT NULL)"


def fill_rows(folded: DataFrame, names: Sequence[str], *, has_rows: bool) -> DataFrame:
    """Fill values that the newest changes lack; list columns kept from the row, and unknown ones.

    A rebuild (without `has_rows`) keeps no value of the previous rows. A row that is marked as
    deleted keeps its values if its delete is repeated.
    """
    new, known = dict[str, Column](), []
    for index, name in enumerate(names):
        value = F.expr(f"CASE WHEN {is_in_life(index)} THEN _frazil_value_{index}.value END")
        new[name] = F.when(F.expr(write_lack(name)), value).otherwise(F.col(ROW)[name])
        known.append(f"CASE WHEN {is_in_life(index)} THEN {write_text(name)} END")
    unknown = f"array_except({LACKS}, array({', '.join(known)}))"
    is_same_row = f"({LIVE} OR {PRESENT} AND {ONLY_DELETES}) AND {BEGIN} IS NULL"
    keeps = f"CASE WHEN {is_same_row if has_rows else 'false'} THEN {unknown} ELSE array() END"
    filled = folded.withColumn(KEEPS, F.expr(keeps)).withColumn(UNFILLED, F.expr(unknown))
    row = _replace_fields(folded, new)
    filled = filled.withColumn(UNFILLED, F.array_except(UNFILLED, KEEPS)).withColumn(ROW, row)
    return filled.drop(*(f"_frazil_value_{index}" for index in range(len(names))))


def _replace_fields(rows: DataFrame, new: Mapping[str, Column]) -> Column:
    """Return the column of rows with other values in some fields.

    One struct, and not a chain of `withField`, whose depth and time grow with each column.
    """
    names = rows.select(f"{ROW}.*").columns
    row = F.col(ROW)
    return F.when(row.isNotNull(), F.struct(*(new.get(n, row[n]).alias(n) for n in names)))


def fill_from_other_keys(
    filled: DataFrame, history: DataFrame, ids: Sequence[str], names: Sequence[str]
) -> tuple[DataFrame, list[int]]:
    """Fill rows that got another key from the row of their old key; list the LSNs to wait for."""
    position = f"{BEGIN}.position"
    moved = filled.where(f"size({UNFILLED}) > 0 AND {position}.lsn IS NOT NULL")
    roots = moved.selectExpr(f"{position} AS {ROOT}", f"{position} AS {NEXT}").distinct()
    if roots.isEmpty():
        return filled, []
    lives = trace_lives(history, roots.localCheckpoint(), ids, names)
    joined = filled.join(lives.values, F.col(position) == F.col(ROOT), "left")
    new, found = dict[str, Column](), []
    for index, name in enumerate(names):
        value = f"_frazil_value_{index}"
        asked = F.expr(f"{write_lack(name, UNFILLED)} AND {value} IS NOT NULL")
        new[name] = F.when(asked, F.col(f"{value}.value")).otherwise(F.col(ROW)[name])
        found.append(f"CASE WHEN {value} IS NOT NULL THEN {write_text(name)} END")
    rest = f"array_except({UNFILLED}, array({', '.join(found)}))"
    columns = [each for each in filled.columns if each not in {ROW, UNFILLED}]
    row = _replace_fields(filled, new)
    done = joined.select(*columns, row.alias(ROW), F.expr(rest).alias(UNFILLED))
    return done.localCheckpoint(), lives.waiting


def trace_lives(
    history: DataFrame, roots: DataFrame, ids: Sequence[str], names: Sequence[str]
) -> Lives:
    """Find the last known values of the rows deleted at positions; follow key changes back.

    Of a delete that came twice, since a connector started over, the first one counts.
    """
    values = [f"_frazil_value_{index}" for index in range(len(names))]
    ended = history.where(F.expr(f"{DELETES} AND {LSN} IS NOT NULL"))
    deletes = ended.select(*ids, ORDER, POSITION)
    level, found, waiting = roots, list[DataFrame](), set[int]()
    while not level.isEmpty():
        same = deletes.join(level, F.col(POSITION) == F.col(NEXT))
        ends = same.groupBy(ROOT, NEXT).agg(
            F.min_by(F.struct(*ids), ORDER).alias(OLD_KEY),
            F.min(ORDER).alias(END),
            F.count_distinct(*ids).alias(OLD_KEYS),
        )
        ends = ends.localCheckpoint()
        waiting |= {row[NEXT]["lsn"] for row in level.join(ends, NEXT, "left_anti").collect()}
        of_one = ends.where(f"{OLD_KEYS} = 1").select(ROOT, NEXT, END, f"{OLD_KEY}.*")
        older = history.join(of_one, [*ids]).where(F.col(ORDER) < F.col(END))
        lives = older.groupBy(ROOT, NEXT).agg(*aggregate_life(names))
        for index, value in enumerate(values):
            own = f"CASE WHEN {is_in_life(index)} THEN {value} END"
            lives = lives.withColumn(value, F.expr(own))
        lives = lives.withColumn(DEPTH, F.lit(len(found))).localCheckpoint()
        found.append(lives)
        missing = " OR ".join(f"{value} IS NULL" for value in values)
        # An older life ended before: positions of a log that repeat make no circle.
        level = lives.where(f"({missing}) AND {BEGIN}.position.lsn < {NEXT}.lsn").selectExpr(
            ROOT, f"{BEGIN}.position AS {NEXT}"
        )
    every = reduce(DataFrame.unionByName, found)
    nearest = [
        F.expr(f"min_by({value}, {DEPTH}) FILTER (WHERE {value} IS NOT NULL)").alias(value)
        for value in values
    ]
    return Lives(every.groupBy(ROOT).agg(*nearest), sorted(waiting))
