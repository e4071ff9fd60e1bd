"""Turn Kafka topics into governed Iceberg tables: plan, stage, check, publish."""

__version__ = "0.1.0"
