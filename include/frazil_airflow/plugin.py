"""Frazil's pages in Airflow's navigation; their code is in `ui/`.

Airflow finds the plugin by the package's entry point `airflow.plugins`. Every process loads it,
also each task, so nothing heavy is imported here.
"""

from airflow.plugins_manager import AirflowPlugin

from frazil_airflow.ui.app import LazyApp

STATUS_PAGE = LazyApp("frazil_airflow.ui.status_page:build_app")


class FrazilPlugin(AirflowPlugin):
    """Add the page of all streams to Airflow."""

    name = "frazil"
    # Lists of the class, as Airflow declares them.
    fastapi_apps = [{"name": "Frazil", "app": STATUS_PAGE, "url_prefix": "/frazil"}]  # noqa: RUF012
    external_views = [  # noqa: RUF012
        {
            "name": "Frazil",
            "href": "frazil/",
            "url_route": "frazil-streams",
            "destination": "nav",
            "nav_top_level": True,
        }
    ]
