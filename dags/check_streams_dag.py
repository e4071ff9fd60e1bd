"""### Stream files that cannot become DAGs.

**What.** This file defines no DAG. It reads every stream file each time Airflow parses it, and a
broken one becomes this file's import error: the list of DAGs shows it at the top with file, line,
field and the fix. The DAGs of all other streams go on; those of the broken stream rest until its
file is mended, and `watch` fails for it.

**When.** Whenever the DAG processor parses the folder.

**How to stop.** Mend the file, or move it out of the folder of stream files.
"""

from frazil_airflow.dag_loading import refuse_broken_streams

refuse_broken_streams()
