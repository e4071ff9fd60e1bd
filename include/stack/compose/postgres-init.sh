#!/bin/sh
# Runs once, on an empty volume: creates a role and a database for Airflow and for the catalog.
# Passwords are psql variables, so that psql quotes them.
set -eu

psql --username "${POSTGRES_USER:-postgres}" --dbname postgres --no-psqlrc \
    --set ON_ERROR_STOP=1 \
    --set airflow_password="$AIRFLOW_DB_PASSWORD" \
    --set catalog_password="$CATALOG_DB_PASSWORD" <<'SQL'
CREATE ROLE airflow LOGIN PASSWORD :'airflow_password';
CREATE ROLE catalog LOGIN PASSWORD :'catalog_password';
CREATE DATABASE airflow OWNER airflow;
CREATE DATABASE catalog OWNER catalog;
REVOKE CONNECT ON DATABASE airflow, catalog, postgres FROM PUBLIC;
SQL
