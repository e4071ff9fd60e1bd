"""The embedded stack: Kafka, a schema registry, Spark and Airflow on one machine.

No production image needs this package. May import: `frazil.connections`, `.errors`, `.failpoints`.
"""
