"""Python workers that write a batch's Parquet files themselves; `writer` starts them.

What travels to the workers by value (`worker`, `parquet_files`, `partitions`, the readers,
`cursors`, `preaggregation`) imports only itself, NumPy and PyArrow. Of the library this package
may import: `streams`, `schemas`, `ingest`.
"""
