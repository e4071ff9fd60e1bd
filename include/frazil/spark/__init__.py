"""Spark jobs as processes: how they start, where they run, which errors come back.

Face: `Engine`, `SparkEngine`, `SubmitEngine`, `encode_job_error`.
May import: `connections`, `messages`, `ledger` (usage), `errors`.
"""
