"""Spark jobs as processes: how they start, where they run, and which errors they return.

See `Engine`, `SparkEngine`, `SubmitEngine`, `encode_job_error`.
May import: `connections`, `kafka`, `ledger`.
"""
