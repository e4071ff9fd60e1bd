"""Frazil in Airflow: task decorator, frame and forms of DAGs, assets, trigger, web pages."""
