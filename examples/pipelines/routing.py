"""A step of enrich_and_route.yaml: its parameter is the step that it takes."""

from __future__ import annotations

from pyspark.sql import DataFrame


def route(enriched: DataFrame) -> DataFrame:
    """Every order as a message for the topic of its region."""
    return enriched.where("region is not null").selectExpr(
        "concat('Orders', region) as topic",
        "tag",
        "keys",
        "to_json(struct(id, city, cents, region)) as body",
        "city as sharding_key",
    )
