"""What Frazil needs of Airflow: a task decorator, the parse of stream files, assets, a page."""
