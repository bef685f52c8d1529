"""What Spark looks for when a query says `format("skylark")`: pyspark_<name> with this class.

Spark finds it wherever the package is installed; where it cannot be, skylark.spark.register(spark)
does the same by hand.
"""

from skylark.spark.source import SkylarkDataSource as DefaultSource

__all__ = ["DefaultSource"]
