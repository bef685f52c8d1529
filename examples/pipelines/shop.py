"""A pipeline as a program: paid orders only, as messages, once each.

skylark pipeline run examples/pipelines/shop.py
"""

from __future__ import annotations

import os

from pyspark.sql import DataFrame

from skylark.spark.pipelines import Pipeline

pipeline = Pipeline(
    "paid-orders",
    checkpoint=f"{os.environ.get('CHECKPOINTS', 'checkpoints')}/paid-orders",
    trigger="availableNow",
)
pipeline.source("orders", topic="OrderTopic", startingOffsets="earliest", filter="Paid")


@pipeline.step
def shouted(orders: DataFrame) -> DataFrame:
    """Its parameter is the source that it takes."""
    return orders.selectExpr("upper(cast(body as string)) as body", "keys", "tag")


pipeline.sink("out", topic="PaidTopic")
