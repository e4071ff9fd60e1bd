"""Bytes of records to columns in Spark SQL: which rows are good, which are not, and why.

May import: `frazil`.
"""
