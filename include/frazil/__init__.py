"""Turn Kafka topics into governed Iceberg tables: plan, stage, check, publish."""

__version__ = "0.2.0.dev0"
