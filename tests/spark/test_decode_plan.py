"""One decode per record: in the rows' plan, in the letters' plan and in the plan of the write."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from bench.orders import COLUMNS, EXPECTATIONS
from conftest import Lab, Stack
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from support.lake import make_stream

import stage_batch as job
from frazil.ingest.messages import StageRequest
from frazil.kafka.schema_registry import Registered, SchemaType
from frazil.quality.compiler import compile_suite
from frazil.quality.suite_files import load_suite
from frazil.schemas.column_decoding import value_path
from frazil.schemas.payloads import Payload, describe_schema
from frazil.schemas.wire_format import WireFormat
from frazil.streams.column_types import parse_column
from frazil_spark.decode.frame import GOOD, Decoded, read_decode_options
from frazil_spark.decode.sources import read_ranges
from frazil_spark.decode.values import decode
from frazil_spark.metrics import Counters, count_metrics

TYPES = {name: text.rstrip("!") for name, text in COLUMNS.items()}
pytestmark = [pytest.mark.spark, pytest.mark.stack]


@pytest.fixture(scope="module")
def spark(stack: Stack) -> Iterator[SparkSession]:
    """Open a session whose plans are printed whole."""
    remote = str(stack.facts["spark_connect"]["url"])
    session: SparkSession = SparkSession.builder.remote(remote).create()
    session.conf.set("spark.sql.debug.maxToStringFields", "100000")
    yield session
    session.stop()


@pytest.fixture
def request_with_rules(lab: Lab) -> StageRequest:
    """Ask to stage orders with ten expectations, on a topic that exists."""
    lab.create_topic()
    lab.produce([b"{}"] * 4)
    suite = lab.folder / "orders.json"
    suite.write_text(json.dumps({"name": "orders", "expectations": EXPECTATIONS}))
    paths = {name: value_path(parse_column(name, text)) for name, text in COLUMNS.items()}
    metrics = compile_suite(load_suite(suite), TYPES, GOOD, paths).metrics
    return StageRequest(
        catalog="lake",
        table=lab.table,
        branch="b",
        stream=lab.stream,
        batch_id="b",
        ranges={lab.topic: {0: (0, 2), 1: (0, 2)}},
        kafka_options={"kafka.bootstrap.servers": lab.stack.bootstrap},
        convert="json",
        columns=dict(COLUMNS),
        isolation="read_committed",
        metrics={metric.name: metric.sql for metric in metrics},
    )


def decode_orders(spark: SparkSession, request: StageRequest) -> Decoded:
    return decode(read_ranges(spark, request), request.convert, request.columns)


def explain(frame: DataFrame) -> str:
    """Return the text of all four plans."""
    text: str = frame._explain_string(extended=True)  # type: ignore[operator]  # noqa: SLF001
    return text


def count_decodes(plans: str, name: str = "from_json|parse_json") -> dict[str, int]:
    """Count the parsers in the optimized and in the physical plan."""
    assert "more fields" not in plans, "the plan was cut"
    sections = re.split(r"^== (.+?) ==$", plans, flags=re.MULTILINE)
    texts = dict(zip(sections[1::2], sections[2::2], strict=True))
    names = ("Optimized Logical Plan", "Physical Plan")
    return {plan: len(re.findall(rf"(?:{name})\(", texts[plan])) for plan in names}


ONCE = {"Optimized Logical Plan": 2, "Physical Plan": 2}
"""The second parser reads only records with suspicious decimals (`decode.decimals`)."""


def test_the_staged_rows_are_decoded_once_with_ten_expectations_and_a_filter(
    spark: SparkSession, request_with_rules: StageRequest
) -> None:
    rows = job.select_good_rows(
        decode_orders(spark, request_with_rules), request_with_rules, Counters()
    )

    plans = explain(rows)

    assert len(EXPECTATIONS) == 10
    assert "CollectMetrics" in plans
    assert count_decodes(plans) == ONCE


def test_the_dead_letters_are_decoded_once_too(
    spark: SparkSession, request_with_rules: StageRequest
) -> None:
    letters = job.select_dead_letters(
        decode_orders(spark, request_with_rules), request_with_rules, Counters()
    )

    plans = explain(letters.drop("reason"))  # the reason parses what is bad once more, on purpose

    assert count_decodes(plans) == ONCE


def test_the_write_of_parquet_files_decodes_once(
    spark: SparkSession, request_with_rules: StageRequest, tmp_path: Path
) -> None:
    rows = job.select_good_rows(
        decode_orders(spark, request_with_rules), request_with_rules, Counters()
    )
    rows.createOrReplaceTempView("staged")
    columns = "SELECT * FROM staged"
    spark.sql(
        f"CREATE TABLE spark_catalog.default.planned USING parquet LOCATION '{tmp_path}/planned' "
        f"AS {columns} LIMIT 0"
    )

    insert = f"EXPLAIN EXTENDED INSERT INTO spark_catalog.default.planned {columns}"
    plans = spark.sql(insert).collect()[0][0]
    spark.sql("DROP TABLE spark_catalog.default.planned")

    assert "InsertIntoHadoopFsRelationCommand" in plans
    assert count_decodes(plans) == ONCE


def test_a_filter_before_the_observation_would_repeat_the_decode(
    spark: SparkSession, request_with_rules: StageRequest
) -> None:
    decoded = decode_orders(spark, request_with_rules)
    metrics = count_metrics(decoded, request_with_rules)

    plans = explain(decoded.frame.where(GOOD).observe("any", *metrics))

    assert min(count_decodes(plans).values()) > 10


def registered_request(request: StageRequest, kind: SchemaType, text: str) -> StageRequest:
    """Ask for the same topic by two schemas of a registry, which say the same."""
    value = {"convert": "by_schema_id", "columns": {"id": "long!", "price": "decimal(9,2)"}}
    stream = make_stream(request.stream, source={"topic": request.stream}, value=value)
    payload = Payload(stream, "value")
    schemas = [describe_schema(payload, Registered(i, kind, text)) for i in (1, 2)]
    wire = WireFormat(
        format="avro" if kind == "AVRO" else "protobuf", has_schema_id=True, schemas=tuple(schemas)
    )
    changes = {"convert": "by_schema_id", "columns": value["columns"], "metrics": {}, "wire": wire}
    return request.model_copy(update=changes)


PRICE = {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}


def test_each_schema_of_a_registry_is_decoded_once(
    spark: SparkSession, request_with_rules: StageRequest
) -> None:
    fields = [{"name": "id", "type": "long"}, {"name": "price", "type": PRICE}]
    text = json.dumps({"type": "record", "name": "Order", "fields": fields})
    request = registered_request(request_with_rules, "AVRO", text)
    decoded = decode(
        read_ranges(spark, request),
        request.convert,
        request.columns,
        options=read_decode_options(request),
    )

    plans = explain(job.select_good_rows(decoded, request, Counters()))

    assert count_decodes(plans, "from_avro") == {"Optimized Logical Plan": 2, "Physical Plan": 2}


def fail(frame: DataFrame) -> bool:
    raise AssertionError(frame)


class Silent(Counters):
    """Counters that a busy Spark Connect did not wait for."""

    def read(self, written: DataFrame) -> dict[str, object]:  # noqa: ARG002 - as the real one
        return {}


def test_counters_that_did_not_come_are_counted_again_and_nothing_is_written_twice(
    spark: SparkSession, request_with_rules: StageRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = f"lake.{request_with_rules.table}"
    spark.sql("CREATE NAMESPACE IF NOT EXISTS lake.lab")
    spark.sql(f"CREATE TABLE {table} (id BIGINT) USING iceberg")
    spark.sql(f"ALTER TABLE {table} CREATE BRANCH b")

    def select(counters: Counters) -> DataFrame:
        return counters.add(spark.range(100), F.count(F.lit(1)).alias("read"))

    # For this question the server analyzes the whole plan.
    monkeypatch.setattr(type(spark.range(1)), "isStreaming", property(fail))
    answers = iter([Silent(), Silent(), Counters()])
    monkeypatch.setattr(job, "Counters", lambda: next(answers))
    counted = job.append_and_count(select, table, request_with_rules, 3)
    monkeypatch.setattr(job, "Counters", Silent)
    with pytest.raises(RuntimeError, match="sent no counters"):
        job.append_and_count(select, table, request_with_rules, 1)

    assert counted == {"read": 100}
    assert spark.table(f"{table}.branch_b").count() == 200
