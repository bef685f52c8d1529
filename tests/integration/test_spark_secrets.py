"""What is said to Spark in confidence is on no command line."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest.importorskip("pyspark")

_PROGRAM = """
import os, pathlib
from skylark.spark import session

spark = session(settings={
    "spark.hadoop.fs.s3a.secret.key": "hidden",
    "spark.sql.shuffle.partitions": "3",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
})
java = spark.sparkContext._jvm.java.lang.ProcessHandle.current().pid()
words = pathlib.Path(f"/proc/{java}/cmdline").read_bytes()
assert b"pyspark-shell" in words and b"TieredStopAtLevel" in words
assert b"hidden" not in words, words
assert spark.sparkContext._jsc.hadoopConfiguration().get("fs.s3a.secret.key") == "hidden"
assert spark.conf.get("spark.sql.shuffle.partitions") == "3"
assert spark.sparkContext.master == "local[2]"
assert spark.range(5).count() == 5
spark.stop()
print("kept")
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc")
def test_secrets_are_not_on_the_command_line_of_java() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM], capture_output=True, text=True, timeout=120
    )
    assert done.stdout == "kept\n", done.stderr
