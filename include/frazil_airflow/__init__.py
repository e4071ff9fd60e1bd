"""Frazil in Airflow: task decorator, frame and forms of DAGs, assets, trigger, web pages.

`tasks` runs a function of the library as a task, `manual_dag` builds a DAG with a form. May import:
`frazil`, `frazil_stack`.
"""
