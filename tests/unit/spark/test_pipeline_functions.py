"""Python that a pipeline names: found beside its file, called by the names of its parameters."""

import logging
import subprocess
import sys
from functools import partial

import pytest

pytest.importorskip("pyspark")

from pyspark import cloudpickle

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


def test_modules_of_one_name_in_two_folders_are_two(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.path", list(sys.path))
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "myrouting.py").write_text(f"def route(): return {name!r}\n")
    found = [functions.find("myrouting:route", tmp_path / name, HERE) for name in ("a", "b", "a")]
    assert [route() for route in found] == ["a", "b", "a"]
    assert found[0] is found[2], "it is loaded once"
    (tmp_path / "a" / "logging.py").write_text("def route(): return 'mine'\n")
    assert functions.find("logging:route", tmp_path / "a", HERE)() == "mine"
    assert sys.modules["logging"] is logging, "others have theirs"


@pytest.mark.parametrize("init", ["from .inner import LIMIT\n", None])
def test_a_package_beside_the_file_imports_its_own_parts(tmp_path, monkeypatch, init):
    monkeypatch.setattr("sys.path", list(sys.path))
    for name in ("a", "b"):
        package = tmp_path / name / "mypackage"
        package.mkdir(parents=True)
        if init is not None:
            (package / "__init__.py").write_text(init)
        (package / "inner.py").write_text(f"LIMIT = {name!r}\n")
        (package / "deep.py").write_text("from .inner import LIMIT\ndef limit(): return LIMIT\n")
    find = functions.find
    assert find("mypackage.deep:limit", tmp_path / "a", HERE)() == "a"
    assert find("mypackage.deep:limit", tmp_path / "b", HERE)() == "b"
    said = refusal(find, "mypackage.gone:limit", tmp_path / "a", HERE)
    assert said.endswith("ModuleNotFoundError: No module named 'mypackage.gone'")


def test_a_function_from_beside_the_file_travels_without_its_module(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.path", list(sys.path))
    (tmp_path / "travelling.py").write_text(
        "import json\ndef inner(n): return [n]\ndef outer(n): return json.dumps(inner(n))\n"
    )
    package = tmp_path / "parts"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "deep.py").write_text("def inner(n): return [n]\ndef outer(n): return inner(n)\n")
    for name, expected in (("travelling:outer", "[5]"), ("parts.deep:outer", [5])):
        file = tmp_path / "function.bin"
        file.write_bytes(cloudpickle.dumps(functions.find(name, tmp_path, HERE)))
        script = "import pickle, sys; print(repr(pickle.load(open(sys.argv[1], 'rb'))(5)))"
        answer = subprocess.check_output(
            [sys.executable, "-c", f"import pyspark.cloudpickle; {script}", file],
            text=True,
            cwd="/",
        )
        assert answer.strip() == repr(expected)


def test_two_pipeline_files_of_one_name_keep_what_is_theirs(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.path", list(sys.path))
    modules = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "orders.py").write_text(f"WHOSE = {name!r}\n")
        modules.append(functions.load_file(tmp_path / name / "orders.py"))
    assert [sys.modules[one.__name__].WHOSE for one in modules] == ["a", "b"]


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
