"""The plugin: a page in Airflow's navigation; its code lives in `include/frazil_airflow/`.

Airflow loads plugins in every process, each task's included, so nothing heavy is imported here.
"""

from airflow.plugins_manager import AirflowPlugin

from frazil_airflow.ui.app import LazyApp

STATUS_PAGE = LazyApp("frazil_airflow.ui.status_page:build_app")


class FrazilPlugin(AirflowPlugin):
    """Show where every stream stands."""

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
