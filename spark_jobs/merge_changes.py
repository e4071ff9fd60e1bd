"""Fold changes into a state table: one row per key, staged on a branch.

spark-submit spark_jobs/merge_changes.py request.json result.json
"""

from collections.abc import Sequence

from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own convention
from pyspark.sql.types import ArrayType, DataType, MapType, StructField, StructType

from frazil.failpoints import reach_failpoint
from frazil.ledger.coordinates import FIRST_TIMESTAMP_MS
from frazil.ledger.keys import CHANGE_SNAPSHOT, EVENT_TIME
from frazil.ledger.offsets import Runs, describe_offset
from frazil.state_tables.merge_rules import DELETED_AT, NO_DELETE_TIME_MS
from frazil.state_tables.messages import MergeCounts, MergeRequest, MergeResult
from frazil.streams.change_events import (
    DELETE_OPERATIONS,
    SOURCE_SEQUENCES,
    UPSERT_OPERATIONS,
)
from frazil.streams.column_types import quote_name, write_text
from frazil.streams.state_sections import MEMORY, SEQUENCE
from frazil_spark.job import run_job
from frazil_spark.session_settings import apply_settings
from frazil_spark.unavailable_values import (
    DELETES,
    EVENT_PATHS,
    IS_LAST,
    KEEPS,
    LACKS,
    LIVE,
    LSN,
    ONLY_DELETES,
    ORDER,
    PRESENT,
    ROW,
    UNFILLED,
    aggregate_life,
    fill_from_other_keys,
    fill_rows,
    list_lacking,
    write_lack,
)

CHANGE = "_frazil_change"
STATE = "_frazil_state"
WINNER = "_frazil_winner"
HELD = "_frazil_held"
OUTCOME = "_frazil_outcome"
HELD_FIRST, HELD_LAST = "_frazil_held_first", "_frazil_held_last"
FIRST, LAST = "_frazil_first", "_frazil_last"
CHANGES, STALE = "_frazil_changes", "_frazil_stale"
UNKNOWN, FIRST_UNKNOWN = "_frazil_unknown", "_frazil_first_unknown"
PARTITION = "struct(_kafka.topic, _kafka.partition)"
COORDINATE = ("topic", "partition", "offset")
PLACE = "_frazil_partition"
TOPIC, NUMBER, BLOCK = "_frazil_topic", "_frazil_number", "_frazil_block"
START, END = "_frazil_start", "_frazil_end"
MOST_CONDITIONS = 1_000
"""With more runs of offsets a filter costs more than a join."""
BLOCK_OFFSETS = 1_000
"""Offsets in a block: a run is joined by blocks, since a row for each offset could be millions."""
_DELETE = f"({', '.join(map(write_text, DELETE_OPERATIONS))})"
_WRITTEN = "('inserted', 'updated')"
_UPSERT = f"({', '.join(map(write_text, UPSERT_OPERATIONS))})"


def merge_changes(spark: SparkSession, request: MergeRequest) -> MergeResult:
    """Fold the changes, remember deletes, and write the rows that change to the branch."""
    apply_settings(spark, request.session_conf)
    changes = read_changes(spark, request, request.added)
    held = read_held(spark, request, changes)
    names = list_fillable(changes, request)
    # Materialised once: MERGE reads its source several times.
    folded = fold(changes, held, request, names).localCheckpoint()
    result = count_outcomes(spark, folded, request)
    if not result.fault and request.has_events and came_late(changes, result, request):
        result = result.model_copy(update={"fault": "late"})
    if result.fault:
        return result
    if names:
        history = read_changes(spark, request, None)
        folded, waiting = fill_from_other_keys(folded, history, request.id_columns, names)
        result = count_unfilled(folded, result, waiting)
    if result.counts.deleted + result.counts.absent and not request.marks:
        remember_deletes(folded, request)
    reach_failpoint("merge.after-memory")
    write_state(spark, folded, request, result.counts)
    reach_failpoint("merge.after-write")
    return result


def write_order(request: MergeRequest, sequence: Sequence[str]) -> str:
    """Write the SQL of a change's place in the order of its key's changes."""
    parts = [f"'s{index}', {path}" for index, path in enumerate(sequence)]
    last = ["topic", "partition", "offset"] if request.sequence else ["offset", "partition"]
    parts += [f"'{name}', _kafka.{name}" for name in last]
    return f"named_struct({', '.join(parts)}) AS {ORDER}"


def write_sequence(request: MergeRequest) -> list[str]:
    """Write the SQL of the sequence in changes and state rows.

    Events without the field of their source, and records without a time, come before all others.
    """
    lowest = {EVENT_TIME: f"timestamp_millis({FIRST_TIMESTAMP_MS})"}
    lowest |= dict.fromkeys(SOURCE_SEQUENCES, "-1L")
    paths = [(name, ".".join(map(quote_name, name.split(".")))) for name in request.sequence]
    return [f"coalesce({p}, {lowest[name]})" if name in lowest else p for name, p in paths]


def write_place(request: MergeRequest, sequence: Sequence[str]) -> str:
    """Write the SQL of the partition in which alone a change has an order; null if it is any."""
    if not all(name in SOURCE_SEQUENCES for name in request.sequence):
        return f"CASE WHEN false THEN {PARTITION} END AS {PLACE}"
    absent = " AND ".join(f"{value} = -1" for value in sequence) or "true"
    return f"CASE WHEN {absent} THEN {PARTITION} END AS {PLACE}"


def select_at(
    spark: SparkSession, rows: DataFrame, offsets: Runs, *, others: bool = False
) -> DataFrame:
    """Select the rows with these offsets, or all `others`, however many runs they are in."""
    runs = [
        (topic, number, *run)
        for topic, parts in offsets.items()
        for number, found in parts.items()
        for run in found
    ]
    if len(runs) <= MOST_CONDITIONS:
        condition = write_runs(offsets)
        return rows.where(f"NOT ({condition})" if others else condition)
    blocks = f"sequence({START} div {BLOCK_OFFSETS}, ({END} - 1) div {BLOCK_OFFSETS})"
    listed = spark.createDataFrame(
        runs, f"{TOPIC} STRING, {NUMBER} INT, {START} LONG, {END} LONG"
    ).withColumn(BLOCK, F.explode(F.expr(blocks)))
    is_in = (
        f"_kafka.topic = {TOPIC} AND _kafka.partition = {NUMBER} "
        f"AND _kafka.offset div {BLOCK_OFFSETS} = {BLOCK} "
        f"AND _kafka.offset >= {START} AND _kafka.offset < {END}"
    )
    if others:
        return rows.join(listed, F.expr(is_in), "left_anti")
    first, last = min(run[2] for run in runs), max(run[3] for run in runs)
    near = rows.where(f"_kafka.offset >= {first} AND _kafka.offset < {last}")
    return near.join(listed, F.expr(is_in), "left_semi")


def write_runs(added: Runs) -> str:
    """Write the condition of the rows with these offsets."""
    parts = [
        f"(_kafka.topic = {write_text(topic)} AND _kafka.partition = {number}"
        f" AND _kafka.offset >= {start} AND _kafka.offset < {end})"
        for topic, by_partition in added.items()
        for number, runs in by_partition.items()
        for start, end in runs
    ]
    return " OR ".join(parts)


def read_changes(spark: SparkSession, request: MergeRequest, added: Runs | None) -> DataFrame:
    """Read changes: key, order, whether it deletes (null: unknown), and the row; no later ones.

    Change events have further columns, by which the fold fills what they did not carry.
    """
    pinned = spark.read.option("versionAsOf", request.change_snapshot)
    frame = pinned.table(f"{request.catalog}.{request.changes}")
    frame = with_fields_of(frame, spark.table(f"{request.catalog}.{request.state}").schema)
    if added is not None:
        frame = select_at(spark, frame, added)
    if request.later:
        frame = select_at(spark, frame, request.later, others=True)
    deletes = "false"
    if request.operation is not None:
        said = f"lower({quote_name(request.operation)})"
        if request.has_added_operation:
            said = f"coalesce({said}, 'u')"  # rows from before `tombstones: delete`
        deletes = f"CASE WHEN {said} IN {_DELETE} THEN true WHEN {said} IN {_UPSERT} THEN false END"
    known = set(frame.columns)
    columns = [quote_name(n) if n in known else f"NULL AS {quote_name(n)}" for n in request.columns]
    if request.marks:
        time = f"coalesce(_kafka.timestamp, timestamp_millis({NO_DELETE_TIME_MS}))"
        columns.append(f"CASE WHEN {deletes} THEN {time} END AS {DELETED_AT}")
    sequence = write_sequence(request)
    selected = frame.selectExpr(
        *map(quote_name, request.id_columns),
        write_order(request, sequence),
        write_place(request, sequence),
        f"{deletes} AS {DELETES}",
        f"struct({', '.join(columns)}) AS {ROW}",
        *(EVENT_PATHS if request.has_events else ()),
    )
    if not (request.has_events and request.former_names):
        return selected
    pairs = [
        f"{write_text(name)}, array({', '.join(map(write_text, meant))})"
        for name, meant in request.former_names.items()
    ]
    present = f"coalesce(try_element_at(map({', '.join(pairs)}), name), array(name))"
    return selected.withColumn(LACKS, F.expr(f"flatten(transform({LACKS}, name -> {present}))"))


def with_fields_of(changes: DataFrame, state: StructType) -> DataFrame:
    """Add the fields of the state's structs to those of the changes, with null as their value.

    The snapshot of the changes may be older than the columns that the state has by now.
    """
    kinds = {field.name: field.dataType for field in state}
    names = [
        field.name
        for field in changes.schema
        if field.name in kinds and has_other_fields(field.dataType, kinds[field.name])
    ]
    if not names:
        return changes
    return changes.to(
        StructType(
            [
                StructField(f.name, as_optional(kinds[f.name]) if f.name in names else f.dataType)
                for f in changes.schema
            ]
        )
    )


def has_other_fields(one: DataType, other: DataType) -> bool:
    """Return whether structs in two types have fields of other names."""
    match one, other:
        case StructType(), StructType():
            same = one.names == other.names
            return not same or any(
                has_other_fields(a.dataType, b.dataType) for a, b in zip(one, other, strict=True)
            )
        case ArrayType(), ArrayType():
            return has_other_fields(one.elementType, other.elementType)
        case MapType(), MapType():
            return has_other_fields(one.valueType, other.valueType)
    return False


def as_optional(kind: DataType) -> DataType:
    """Return the type with optional fields, elements and values."""
    match kind:
        case StructType():
            return StructType([StructField(f.name, as_optional(f.dataType)) for f in kind])
        case ArrayType():
            return ArrayType(as_optional(kind.elementType))
        case MapType():
            return MapType(kind.keyType, as_optional(kind.valueType))
    return kind


def list_fillable(changes: DataFrame, request: MergeRequest) -> list[str]:
    """List the columns that the newest changes may lack; none if the stream has no events."""
    if not request.has_events:
        return []
    own = {*request.id_columns, "_kafka", "_source"}
    columns = [name for name in request.columns if name not in own]
    return list_lacking(changes, columns, marks=request.marks)


def read_held(spark: SparkSession, request: MergeRequest, changes: DataFrame) -> DataFrame:
    """Read what is known of the changes' keys: order and presence of the row, recorded deletes.

    A rebuild folds every change, so it reads only whether each row exists, for its counts.
    """
    keys = [*map(quote_name, request.id_columns)]
    live = f"{DELETED_AT} IS NULL" if request.marks else "true"
    sequence = write_sequence(request)
    order, place = write_order(request, sequence), write_place(request, sequence)
    state = f"{request.catalog}.{request.state}.branch_{request.branch}"
    held = spark.table(state).selectExpr(
        *keys, order, place, f"true AS {PRESENT}", f"{live} AS {LIVE}"
    )
    if request.added is None:
        held = held.withColumn(ORDER, F.expr(f"if(false, {ORDER}, NULL)"))
        held = held.withColumn(PLACE, F.expr(f"if(false, {PLACE}, NULL)"))
    else:
        held = held.unionByName(read_memory(spark, request))
    touched = changes.select(*request.id_columns).distinct()
    found = held.join(touched, [*request.id_columns], "left_semi")
    return found.groupBy(*request.id_columns).agg(
        F.max(ORDER).alias(HELD),
        F.bool_or(PRESENT).alias(PRESENT),
        F.bool_or(LIVE).alias(LIVE),
        F.min(PLACE).alias(HELD_FIRST),
        F.max(PLACE).alias(HELD_LAST),
    )


def read_memory(spark: SparkSession, request: MergeRequest) -> DataFrame:
    """Read the recorded deletes that the state has followed, with the columns of held rows.

    A merge that did not end may have recorded deletes of changes that are folded only now.
    """
    memory = spark.table(f"{request.catalog}.{request.deletes}")
    memory = memory.where(F.col(MEMORY) == request.memory)
    for unfolded in filter(None, (request.added, request.later)):
        memory = select_at(spark, memory, unfolded, others=True)
    sequence = [f"{SEQUENCE}.s{index}" for index in range(len(request.sequence))]
    return memory.selectExpr(
        *map(quote_name, request.id_columns),
        write_order(request, sequence),
        write_place(request, sequence),
        f"false AS {PRESENT}",
        f"false AS {LIVE}",
    )


def fold(
    changes: DataFrame, held: DataFrame, request: MergeRequest, names: Sequence[str]
) -> DataFrame:
    """Return one row per key: its newest change, what became of it, and how many lost."""
    newest, place = [F.col(ORDER), F.col(DELETES), F.col(ROW)], write_coordinate()
    if names:
        changes = _mark_last(changes, request, names)
        newest.append(F.col(LACKS))
    joined = changes.join(held, [*request.id_columns], "left")
    is_stale = F.expr(f"coalesce({HELD} > {ORDER}, false)")
    folded = joined.groupBy(*request.id_columns).agg(
        F.count(F.lit(1)).alias(CHANGES),
        F.count_if(is_stale).alias(STALE),
        F.count_if(F.col(DELETES).isNull()).alias(UNKNOWN),
        F.min(F.expr(f"CASE WHEN {DELETES} IS NULL THEN {place} END")).alias(FIRST_UNKNOWN),
        F.max_by(F.struct(*newest), ORDER).alias(WINNER),
        F.max(HELD).alias(HELD),
        F.coalesce(F.bool_or(PRESENT), F.lit(False)).alias(PRESENT),  # noqa: FBT003
        F.coalesce(F.bool_or(LIVE), F.lit(False)).alias(LIVE),  # noqa: FBT003
        F.coalesce(F.bool_and(DELETES), F.lit(False)).alias(ONLY_DELETES),  # noqa: FBT003
        F.expr(f"min(least({PLACE}, {HELD_FIRST}))").alias(FIRST),
        F.expr(f"max(greatest({PLACE}, {HELD_LAST}))").alias(LAST),
        *(aggregate_life(names) if names else ()),
    )
    outcome = f"""CASE WHEN coalesce({HELD} > {ORDER}, false) THEN 'stale'
        WHEN {DELETES} AND {LIVE} THEN 'deleted' WHEN {DELETES} THEN 'absent'
        WHEN {PRESENT} THEN 'updated' ELSE 'inserted' END"""
    folded = folded.select("*", f"{WINNER}.*").drop(WINNER).withColumn(OUTCOME, F.expr(outcome))
    return fill_rows(folded, names, has_rows=request.added is not None) if names else folded


def _mark_last(changes: DataFrame, request: MergeRequest, names: Sequence[str]) -> DataFrame:
    """Mark the deletes that no other change follows; they become a row that lacks all columns."""
    if not request.marks:
        return changes
    upserts = F.when(~F.col(DELETES), F.col(ORDER))
    newest = F.max(upserts).over(Window.partitionBy(*request.id_columns))
    is_last = F.coalesce(F.col(ORDER) > newest, F.lit(True))  # noqa: FBT003
    every = F.array(*map(F.lit, names))
    return changes.withColumn(IS_LAST, is_last).withColumn(
        LACKS, F.when(F.col(DELETES), every).otherwise(F.col(LACKS))
    )


def came_late(changes: DataFrame, result: MergeResult, request: MergeRequest) -> bool:
    """Return whether a change could fill, or delete, what older changes have filled already."""
    if request.added is None:
        return False
    if result.counts.stale:
        return True
    if not request.waiting:
        return False
    waited = F.col(LSN).isin([*request.waiting])
    return not changes.where(F.col(DELETES) & waited).isEmpty()


def count_unfilled(folded: DataFrame, result: MergeResult, waiting: Sequence[int]) -> MergeResult:
    """Count rows with a value that no change carried."""
    unfilled = folded.where(f"size({UNFILLED}) > 0 AND {OUTCOME} IN {_WRITTEN}").count()
    counts = result.counts.model_copy(update={"unfilled": unfilled})
    return result.model_copy(update={"counts": counts, "waiting": tuple(waiting)})


def write_coordinate() -> str:
    """Write the SQL of a row's topic, partition and offset."""
    return f"struct({', '.join(f'{ROW}._kafka.{name}' for name in COORDINATE)})"


def count_outcomes(spark: SparkSession, folded: DataFrame, request: MergeRequest) -> MergeResult:
    """Count what became of the changes, and keys whose changes have no order."""
    names = ("inserted", "updated", "deleted", "absent")
    found = folded.selectExpr(
        f"coalesce(sum({CHANGES}), 0) AS {CHANGES}",
        f"coalesce(sum({STALE}), 0) AS {STALE}",
        *(f"count_if({OUTCOME} = '{name}') AS _frazil_{name}" for name in names),
        f"count_if({PRESENT}) AS {PRESENT}",
        f"coalesce(sum({UNKNOWN}), 0) AS {UNKNOWN}",
        f"count_if({FIRST} <> {LAST}) AS _frazil_moved",
        f"min({FIRST_UNKNOWN}) AS {FIRST_UNKNOWN}",
        f"min(CASE WHEN {FIRST} <> {LAST} THEN {write_coordinate()} END) AS _frazil_example",
    ).first()
    assert found is not None  # noqa: S101 - an aggregate without groups has one row
    removed = 0
    if request.added is None:
        state = f"{request.catalog}.{request.state}.branch_{request.branch}"
        removed = spark.table(state).count() - found[PRESENT]
    outcomes = {name: found[f"_frazil_{name}"] for name in names}
    applied = sum(outcomes.values())
    counts = MergeCounts(
        changes=found[CHANGES],
        superseded=found[CHANGES] - found[STALE] - applied,
        stale=found[STALE],
        removed=removed,
        **outcomes,
    )
    if found[UNKNOWN]:
        example = describe_offset(*found[FIRST_UNKNOWN])
        return MergeResult(counts=counts, fault="operation", faulty=found[UNKNOWN], example=example)
    if moved := found["_frazil_moved"]:
        example = f"the key of {describe_offset(*found['_frazil_example'])}"
        return MergeResult(counts=counts, fault="partition", faulty=moved, example=example)
    return MergeResult(counts=counts)


def remember_deletes(folded: DataFrame, request: MergeRequest) -> None:
    """Append the deletes that won to the delete memory; a repetition does no harm."""
    at = f"{ROW}._kafka"
    columns = [*map(quote_name, request.id_columns)]
    if request.sequence:
        own = [f"s{number}" for number in range(len(request.sequence))]
        others = list_other_fields(folded, request, own)
        parts = [f"'{name}', {ORDER}.{name}" for name in own] + others
        columns.append(f"named_struct({', '.join(parts)}) AS {SEQUENCE}")
    place = ", ".join(f"'{name}', {at}.{name}" for name in ("topic", "partition", "offset"))
    columns.append(f"named_struct({place}) AS _kafka")
    columns.append(f"{write_text(request.memory)} AS {MEMORY}")
    deletes = folded.where(f"{OUTCOME} IN ('deleted', 'absent')").selectExpr(*columns)
    writer = deletes.writeTo(f"{request.catalog}.{request.deletes}")
    # By this a merge with an older plan finds that there are deletes of changes it does not know.
    known = str(request.change_snapshot)
    writer.option(f"snapshot-property.{CHANGE_SNAPSHOT}", known).append()


def list_other_fields(folded: DataFrame, request: MergeRequest, own: Sequence[str]) -> list[str]:
    """Write the fields of the sequence that recorded deletes had before `order` changed."""
    table = folded.sparkSession.table(f"{request.catalog}.{request.deletes}")
    sequence = table.schema[SEQUENCE].dataType
    fields = sequence.fields if isinstance(sequence, StructType) else []
    return [
        f"'{field.name}', CAST(NULL AS {field.dataType.simpleString()})"
        for field in fields
        if field.name not in own
    ]


def write_state(
    spark: SparkSession, folded: DataFrame, request: MergeRequest, counts: MergeCounts
) -> None:
    """Write the rows to the branch: those that change, or in a rebuild all of them."""
    table = f"{request.catalog}.{request.state}.branch_{request.branch}"
    written = "('inserted', 'updated', 'deleted', 'absent')" if request.marks else _WRITTEN
    if request.added is None:
        rows = folded.where(f"{OUTCOME} IN {written}").select(f"{ROW}.*")
        rows.writeTo(table).overwrite(F.lit(True))  # noqa: FBT003
        return
    moved = counts.inserted + counts.updated + counts.deleted
    if moved + (counts.absent if request.marks else 0) == 0:
        return
    removes = "false" if request.marks else f"{OUTCOME} = 'deleted'"
    moving = folded.where(f"{OUTCOME} IN {written} OR {removes}")
    keeps = [KEEPS] if KEEPS in folded.columns else []
    source = moving.selectExpr(f"{ROW}.*", f"{removes} AS {DELETES}", *keeps)
    source.createOrReplaceTempView("_frazil_folded_changes")
    columns = source.columns[: -1 - len(keeps)]
    updates = ", ".join(map(write_update, columns)) if keeps else "*"
    same = " AND ".join(f"{STATE}.{q} = {CHANGE}.{q}" for q in map(quote_name, request.id_columns))
    spark.sql(
        f"""
        MERGE INTO {table} AS {STATE} USING _frazil_folded_changes AS {CHANGE} ON {same}
        WHEN MATCHED AND {CHANGE}.{DELETES} THEN DELETE
        WHEN MATCHED THEN UPDATE SET {updates}
        WHEN NOT MATCHED AND NOT {CHANGE}.{DELETES} THEN INSERT *
        """
    )


def write_update(name: str) -> str:
    """Write how MERGE sets a column: to the change's value, unless the row keeps its own."""
    quoted, keeps = quote_name(name), write_lack(name, f"{CHANGE}.{KEEPS}")
    return f"{quoted} = CASE WHEN {keeps} THEN {STATE}.{quoted} ELSE {CHANGE}.{quoted} END"


if __name__ == "__main__":
    run_job(merge_changes, MergeRequest)
