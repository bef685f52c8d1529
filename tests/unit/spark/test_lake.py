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
        lake.require_package({"spark.executor.cores": "2"}, table_format)
    lake.require_package({"spark.jars.packages": "g:a:v"}, table_format)
    lake.require_package({"spark.jars": "a.jar"}, table_format)


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
