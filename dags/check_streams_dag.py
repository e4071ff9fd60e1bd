"""### Stream files that cannot become DAGs.

**What.** This file defines no DAG. Airflow runs it whenever it parses the folder; it reads every
stream file, and a broken one becomes this file's import error, at the top of the list of DAGs, with
file, line, field and the fix. The DAGs of all other streams continue; those of the broken stream
stay away until its file is fixed, and `watch` fails for it.

**When.** Whenever the DAG processor parses the folder.

**How to stop.** Fix the file, or move it out of the folder of stream files.
"""

from frazil_airflow.dag_loading import validate_stream_files

validate_stream_files()
