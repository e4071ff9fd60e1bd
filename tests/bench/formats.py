"""Stage, check and publish the same events in every format, interleaved, medians of several.

    FRAZIL_SPARK_PID=… python tests/bench/formats.py RECORDS ROUNDS

Needs `frazil stack up --only kafka,spark --with registry`. Protobuf has no decimal and no wall
clock: there the amount is a double and the time an instant.
"""

import io
import json
import os
import secrets
import statistics
import struct
import sys
from collections.abc import Callable
from datetime import datetime
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import fastavro
import orders
import yaml
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from pyspark.sql import SparkSession
from throughput import SameSession, measure, measured_pids, run_ours

from frazil.connections.clients import find_kafka_config, find_registry_config, find_spark_remote
from frazil.ingest.messages import BatchPlan
from frazil.ingest.pipeline import plan_next_batch
from frazil.kafka.schema_registry import Registered
from frazil.schemas.protobuf import read_protobuf
from frazil.workspace import open_workspace

FORMATS = ("json", "raw", "string", "avro", "protobuf", "json_schema")
AVRO = {
    "type": "record",
    "name": "Event",
    "fields": [
        {"name": "event_id", "type": "string"},
        {"name": "event_type", "type": "string"},
        {"name": "ts", "type": {"type": "long", "logicalType": "local-timestamp-micros"}},
        {
            "name": "user",
            "type": {
                "type": "record",
                "name": "User",
                "fields": [
                    {"name": "id", "type": "long"},
                    {"name": "country", "type": "string"},
                    {"name": "city", "type": "string"},
                ],
            },
        },
        {"name": "order_id", "type": "long"},
        {
            "name": "amount",
            "type": {"type": "bytes", "logicalType": "decimal", "precision": 18, "scale": 2},
        },
        {"name": "currency", "type": "string"},
        {
            "name": "items",
            "type": {
                "type": "array",
                "items": {
                    "type": "record",
                    "name": "Item",
                    "fields": [
                        {"name": "sku", "type": "string"},
                        {"name": "qty", "type": "int"},
                        {"name": "price", "type": "double"},
                    ],
                },
            },
        },
        {"name": "session", "type": "string"},
        {"name": "ua", "type": "string"},
    ],
}
PROTOBUF = """\
syntax = "proto3";
import "google/protobuf/timestamp.proto";
message Event {
  string event_id = 1;
  string event_type = 2;
  google.protobuf.Timestamp ts = 3;
  User user = 4;
  int64 order_id = 5;
  double amount = 6;
  string currency = 7;
  repeated Item items = 8;
  string session = 9;
  string ua = 10;
  message User { int64 id = 1; string country = 2; string city = 3; }
  message Item { string sku = 1; int32 qty = 2; double price = 3; }
}
"""
JSON_SCHEMA = {"type": "object", "properties": {"event_id": {"type": "string"}}}
SCHEMAS = {
    "avro": (json.dumps(AVRO), "AVRO"),
    "protobuf": (PROTOBUF, "PROTOBUF"),
    "json_schema": (json.dumps(JSON_SCHEMA), "JSON"),
}


def make_encoder(kind: str, schema_id: int) -> Callable[[bytes], bytes]:
    """Make the function that turns an event's JSON into a record's value."""
    header = struct.pack(">bI", 0, schema_id)
    if kind == "avro":
        parsed = fastavro.parse_schema(AVRO)
        return lambda text: header + encode_avro(parsed, json.loads(text))
    if kind == "protobuf":
        found = read_protobuf(Registered(1, "PROTOBUF", PROTOBUF), None)
        pool = DescriptorPool()
        for each in FileDescriptorSet.FromString(found.descriptor_set).file:
            pool.AddSerializedFile(each.SerializeToString())
        event_class = GetMessageClass(pool.FindMessageTypeByName("Event"))
        return lambda text: header + b"\x00" + encode_protobuf(event_class, json.loads(text))
    return (lambda text: header + text) if kind == "json_schema" else (lambda text: text)


def encode_avro(parsed: Any, event: dict[str, Any]) -> bytes:
    """Write an event as Avro."""
    event["ts"] = datetime.fromisoformat(event["ts"])
    event["amount"] = Decimal(str(event["amount"]))
    buffer = io.BytesIO()
    fastavro.schemaless_writer(buffer, parsed, event)
    return buffer.getvalue()


def encode_protobuf(event_class: Any, event: dict[str, Any]) -> bytes:
    """Write an event as Protobuf."""
    instant = datetime.fromisoformat(event.pop("ts") + "+00:00")
    made = event_class(**event)
    made.ts.FromDatetime(instant)
    written: bytes = made.SerializeToString()
    return written


def describe_value(kind: str) -> dict[str, object]:
    """Describe the value's section of a format's stream file."""
    if kind in {"raw", "string"}:
        return {"convert": kind}
    columns = dict(orders.COLUMNS)
    if kind == "json":
        return {"convert": "json", "columns": columns}
    if kind == "protobuf":
        columns |= {"ts": "timestamptz!", "amount": "double"}
    return {"convert": "by_schema_id", "columns": columns}


def main(records: int, rounds: int, spark_pid: int | None) -> dict[str, object]:
    """Run the comparison and give its figures."""
    mark = f"formats{secrets.token_hex(3)}"
    folder = Path(os.environ["FRAZIL_HOME"]) / "bench" / mark
    folder.mkdir(parents=True)
    os.environ["FRAZIL_STREAMS"] = str(folder)
    bootstrap = find_kafka_config("kafka_default")["bootstrap.servers"]
    registry = SchemaRegistryClient(find_registry_config("schema_registry_default"))
    sizes = {}
    for kind in FORMATS:
        schema_id = 0
        if kind in SCHEMAS:
            text, word = SCHEMAS[kind]
            schema_id = registry.register_schema(f"{mark}_{kind}-value", Schema(text, word))
        encode = make_encoder(kind, schema_id)
        values = (encode(text) for text in orders.iterate_values(records))
        sizes[kind] = orders.fill_topic(bootstrap, f"{mark}_{kind}", values)
        print(f"{kind}: {sizes[kind] / records:.0f} bytes", file=sys.stderr)
    spark = SparkSession.builder.remote(find_spark_remote()).create()
    figures: dict[str, list[tuple[float, float]]] = {kind: [] for kind in FORMATS}
    pids = measured_pids(spark_pid)
    for turn in range(rounds + 1):
        for kind in FORMATS:
            stream = f"{mark}_{kind}"
            document = orders.write_document(stream, f"bench.{stream}_{turn}", records)
            document.pop("quality")
            document["value"] = describe_value(kind)
            (folder / f"{stream}.yaml").write_text(yaml.safe_dump(document))
            work = open_workspace(stream, "bench")
            work.__dict__["engine"] = SameSession(spark)
            plan = plan_next_batch(work)
            assert isinstance(plan, BatchPlan)
            figures[kind].append(measure(pids, partial(run_ours, work, plan, records)))
            print(f"round {turn}: {kind} {figures[kind][-1]}", file=sys.stderr)
    spark.stop()
    return {kind: summarize(records, sizes[kind], figures, kind) for kind in FORMATS}


def summarize(
    records: int, size: int, figures: dict[str, list[tuple[float, float]]], kind: str
) -> dict[str, object]:
    """Return medians without the first, warming round, beside JSON's of the same round."""
    ours, json_runs = figures[kind][1:], figures["json"][1:]
    return {
        "bytes_per_record": round(size / records),
        "records_per_second": round(records / statistics.median(wall for wall, _ in ours)),
        "speed_beside_json": round(
            statistics.median(j[0] / o[0] for o, j in zip(ours, json_runs, strict=True)), 2
        ),
        "cpu_seconds_per_million": round(statistics.median(c for _, c in ours) / records * 1e6, 2),
    }


if __name__ == "__main__":
    pid = int(os.environ["FRAZIL_SPARK_PID"]) if "FRAZIL_SPARK_PID" in os.environ else None
    print(json.dumps(main(int(sys.argv[1]), int(sys.argv[2]), pid), indent=2))
