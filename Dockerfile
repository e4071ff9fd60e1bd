# Three images from one file: `airflow`, `spark` (Spark Connect server) and `catalog` (Iceberg REST).
# airflow and spark share all layers.

FROM python:3.11.16-slim-bookworm AS base
# Bookworm, not trixie: it has Java 17.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends openjdk-17-jre-headless \
    && rm -rf /var/lib/apt/lists/*
ENV PATH=/opt/venv/bin:$PATH

FROM base AS venv
RUN pip install --no-cache-dir uv==0.13.8
COPY requirements.txt include/stack/compose/requirements-postgres.txt /build/
# What a catalog or broker needs besides, see docs/deploy.md.
ARG PACKAGES=""
RUN uv venv /opt/venv \
    && uv pip install --python /opt/venv/bin/python --no-cache --compile-bytecode \
        --requirements /build/requirements.txt --requirements /build/requirements-postgres.txt \
        ${PACKAGES}

FROM venv AS jars
COPY include/stack/ivy.xml /build/ivy.xml
COPY include/stack/compose/ivy.xml /build/compose-ivy.xml
# The Ivy in the PySpark wheel; Maven is not needed.
RUN ivy="$(ls /opt/venv/lib/python3.11/site-packages/pyspark/jars/ivy-*.jar)" \
    && java -jar "$ivy" -ivy /build/ivy.xml -confs spark -types jar bundle \
        -retrieve "/opt/jars/[conf]/[artifact]-[revision].[ext]" \
    && java -jar "$ivy" -ivy /build/compose-ivy.xml -confs spark catalog -types jar bundle \
        -retrieve "/opt/jars/[conf]/[artifact]-[revision].[ext]"

FROM base AS runtime
RUN useradd --uid 10001 --create-home frazil \
    && install --directory --owner=frazil --group=frazil --mode=0750 \
        /opt/airflow /opt/airflow/auth /opt/airflow/logs /opt/frazil/state
COPY --from=venv /opt/venv /opt/venv
COPY --from=jars /opt/jars/spark /opt/jars/spark
COPY pyproject.toml /opt/frazil/
COPY include /opt/frazil/include
COPY spark_jobs /opt/frazil/spark_jobs
COPY dags /opt/frazil/dags
# Editable: the code under /opt/frazil runs, next to its stream files and suites.
RUN --mount=type=bind,from=venv,source=/usr/local/bin/uv,target=/usr/local/bin/uv \
    uv pip install --python /opt/venv/bin/python --no-cache --no-deps --editable /opt/frazil
ENV AIRFLOW_HOME=/opt/airflow \
    FRAZIL_HOME=/opt/frazil/state \
    FRAZIL_STREAMS=/opt/frazil/include/streams \
    PYSPARK_PYTHON=/opt/venv/bin/python \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONPATH=/opt/frazil/include:/opt/frazil/spark_jobs \
    PYTHONUNBUFFERED=1 \
    SPARK_CONF_DIR=/opt/frazil/include/stack/compose
WORKDIR /opt/frazil/state
USER frazil

FROM runtime AS spark
EXPOSE 15002 4040
CMD ["spark-submit", "--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "spark-internal"]

FROM apache/iceberg-rest-fixture:1.10.1 AS catalog
# The fixture has the driver of SQLite only.
COPY --from=jars /opt/jars/catalog /usr/lib/iceberg-rest/lib
USER iceberg
# At INFO the server logs all its properties, with the database password.
CMD ["java", "-Xmx256m", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", \
     "-cp", "/usr/lib/iceberg-rest/iceberg-rest-adapter.jar:/usr/lib/iceberg-rest/lib/*", \
     "org.apache.iceberg.rest.RESTCatalogServer"]

FROM runtime AS airflow
EXPOSE 8080
CMD ["airflow", "api-server"]
