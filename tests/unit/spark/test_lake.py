"""Archives in other formats, as far as no Spark is needed to know."""

from __future__ import annotations

from pathlib import Path

import pytest

from skylark.errors import ConfigError
from skylark.spark import lake
from skylark.spark.lake import TableFormat

ROOT = Path("/lake/orders")


@pytest.mark.parametrize("table_format", TableFormat)
def test_spark_is_not_started_without_the_package(table_format: TableFormat) -> None:
    with pytest.raises(ConfigError, match=r"needs its package, such as --packages \S+:\S+:\S+"):
        lake.require_package({"spark.executor.cores": "2"}, table_format, "4.3.0")
    lake.require_package({"spark.jars.packages": "g:a:v"}, table_format, "4.3.0")
    lake.require_package({"spark.jars": "a.jar"}, table_format, "4.3.0")


def test_a_package_for_another_spark_is_refused_before_anything_starts() -> None:
    delta = {"spark.jars.packages": "org.x:y:1, io.delta:delta-spark_4.2_2.13:4.4.0"}
    lake.require_package(delta, TableFormat.DELTA, "4.2.1")
    with pytest.raises(ConfigError, match=r"built for Spark 4\.2, and this is Spark 4\.3\.0; take"):
        lake.require_package(delta, TableFormat.DELTA, "4.3.0")
    name = "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0"
    with pytest.raises(ConfigError, match=r"built for Spark 4\.1, and this is Spark 4\.2\.1"):
        lake.require_package({"spark.jars.packages": name}, TableFormat.ICEBERG, "4.2.1")


def test_tables_lie_below_the_directory_unless_they_are_named() -> None:
    assert lake.name_of(TableFormat.DELTA, ROOT, None) == "delta.`/lake/orders/tables/messages`"
    assert lake.name_of(TableFormat.ICEBERG, ROOT, None) == "skylark.messages"
    assert lake.name_of(TableFormat.ICEBERG, ROOT, "prod.mq.orders") == "prod.mq.orders"
    settings = lake.settings(TableFormat.ICEBERG, ROOT)
    assert settings["spark.sql.catalog.skylark.warehouse"] == "/lake/orders/tables"


@pytest.mark.parametrize("name", ["", "a b", "t; drop table u", "a.b.c.d.e", "`x`"])
def test_a_name_that_is_none_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="names with dots"):
        lake.name_of(TableFormat.DELTA, ROOT, name)
