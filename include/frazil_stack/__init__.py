"""The embedded stack: Kafka, a schema registry, Spark and Airflow on one machine.

`control` starts and stops it. No production image needs this package. Of the library it may import:
`connections`.
"""
