"""The demonstration: real flights through Kafka, Airflow and Spark into an Iceberg table."""
