"""Python that a pipeline names: found beside its file, called by the names of its parameters."""

import sys
from functools import partial

import pytest

pytest.importorskip("pyspark")

from skylark.errors import ConfigError
from skylark.spark.pipelines import functions
from skylark.spark.pipelines.document import Place

HERE = Place("a.yaml", 3, "steps.x")


def refusal(action, *arguments):
    with pytest.raises(ConfigError, match=r"^a\.yaml:3: steps\.x: ") as caught:
        action(*arguments)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_module_is_found_beside_the_file(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.path", list(sys.path))
    (tmp_path / "beside_the_file.py").write_text("def double(n): return 2 * n\nLIMIT = 3\n")
    double = functions.find("beside_the_file:double", tmp_path, HERE)
    assert double(2) == 4
    assert "has no function half; it has double" in refusal(
        functions.find, "beside_the_file:half", tmp_path, HERE
    )
    assert "has no function LIMIT" in refusal(
        functions.find, "beside_the_file:LIMIT", tmp_path, HERE
    )


def test_a_module_that_fails_while_it_loads_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.path", list(sys.path))
    (tmp_path / "failing_at_once.py").write_text("1 / 0")
    said = refusal(functions.find, "failing_at_once:f", tmp_path, HERE)
    assert "module failing_at_once cannot be imported: ZeroDivisionError" in said
    (tmp_path / "leaving_at_once.py").write_text("import sys; sys.exit('bye')")
    said = refusal(functions.find, "leaving_at_once:f", tmp_path, HERE)
    assert "module leaving_at_once cannot be imported: SystemExit: bye" in said
    assert "cannot be imported: ModuleNotFoundError" in refusal(
        functions.find, "not_there_at_all:f", tmp_path, HERE
    )


def test_a_step_gets_what_its_parameters_are_called():
    frames = {"orders": 1, "cities": 2}
    assert functions.call(lambda orders, cities: (orders, cities), None, frames, 0, HERE) == (1, 2)
    assert functions.call(lambda a, spark=5: (a, spark), ["cities"], frames, 0, HERE) == (2, 5)
    assert functions.call(lambda spark, cities: spark, None, frames, "session", HERE) == "session"
    both = partial(lambda orders, cities: (orders, cities), orders=7)
    assert functions.call(both, None, frames, 0, HERE) == (7, 2)
    assert functions.call(partial(max, 5), ["cities"], frames, 0, HERE) == 5
    said = refusal(functions.call, lambda payments: 0, None, frames, 0, HERE)
    assert "wants payments, and there is no such source or step above; there are orders" in said
    assert "name its inputs" in refusal(functions.call, lambda *all: 0, None, frames, 0, HERE)
