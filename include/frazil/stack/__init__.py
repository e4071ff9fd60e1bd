"""The embedded stack: real Kafka, Spark, Airflow and a catalog on one machine, no containers."""
