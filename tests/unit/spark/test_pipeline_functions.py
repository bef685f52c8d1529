"""Python that a pipeline names: found beside its file, called by the names of its parameters."""

import fnmatch
import logging
import pickle
import subprocess
import sys
from functools import partial

import pytest

pytest.importorskip("pyspark")

from pyspark import cloudpickle

from skylark.errors import ConfigError
from skylark.spark.pipelines import functions, load
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


def answer_elsewhere(function, tmp_path):
    """What a function says in a process that knows nothing of its module."""
    file = tmp_path / "function.bin"
    file.write_bytes(cloudpickle.dumps(function))
    script = "import pickle, sys; print(repr(pickle.load(open(sys.argv[1], 'rb'))(5)))"
    return subprocess.check_output(
        [sys.executable, "-c", f"import pyspark.cloudpickle; {script}", file], text=True, cwd="/"
    ).strip()


@pytest.fixture
def own_modules(monkeypatch):
    """Python's modules and where it looks for them, as they were before."""
    monkeypatch.setattr("sys.path", list(sys.path))
    before = dict(sys.modules)
    yield
    for name in set(sys.modules) - set(before):
        del sys.modules[name]


@pytest.mark.usefixtures("own_modules")
def test_a_package_that_imports_itself_by_its_name_travels(tmp_path):
    package = tmp_path / "pkg_itself"
    package.mkdir()
    (package / "__init__.py").write_text(
        "from pkg_itself.util import g\nimport pkg_itself.util\n"
        "def f(n): return g(n)\ndef whole(n): return pkg_itself.util.g(n)\n"
    )
    (package / "util.py").write_text("def g(n): return [n]\n")
    for name in ("f", "whole"):
        found = functions.find(f"pkg_itself:{name}", tmp_path, HERE)
        assert answer_elsewhere(found, tmp_path) == "[5]"


@pytest.mark.usefixtures("own_modules")
def test_a_module_beside_another_one_travels_with_it(tmp_path):
    parts = tmp_path / "bare_parts"
    parts.mkdir()
    (parts / "inner.py").write_text("def g(n): return [n]\n")
    (tmp_path / "helping.py").write_text("def g(n): return [n]\n")
    (tmp_path / "steps_here.py").write_text(
        "import helping\nimport bare_parts.inner\nfrom helping import g\n"
        "def f(n): return g(n)\ndef dotted(n): return helping.g(n)\n"
        "def deep(n): return bare_parts.inner.g(n)\n"
    )
    for name in ("f", "dotted", "deep"):
        found = functions.find(f"steps_here:{name}", tmp_path, HERE)
        assert answer_elsewhere(found, tmp_path) == "[5]"


@pytest.mark.usefixtures("own_modules")
@pytest.mark.parametrize("how", ["import", "from . import"])
def test_modules_that_refer_to_each_other_travel(tmp_path, how):
    package = tmp_path / "two_halves"
    package.mkdir()
    (package / "__init__.py").touch()
    where = package if "from" in how else tmp_path
    (where / "left_half.py").write_text(f"{how} right_half\ndef f(n): return right_half.g(n)\n")
    (where / "right_half.py").write_text(
        f"{how} left_half\ndef g(n): return left_half.f(n - 1) if n else 'end'\n"
    )
    name = "two_halves.left_half:f" if "from" in how else "left_half:f"
    assert answer_elsewhere(functions.find(name, tmp_path, HERE), tmp_path) == "'end'"


@pytest.mark.usefixtures("own_modules")
def test_what_a_module_imports_later_travels_once_it_is_looked_for_again(tmp_path):
    (tmp_path / "late_help.py").write_text("def g(n): return [n]\n")
    (tmp_path / "late_steps.py").write_text(
        "def made():\n    from late_help import g\n    return g"
    )
    late = functions.find("late_steps:made", tmp_path, HERE)()
    functions.find("late_steps:made", tmp_path, HERE)
    assert answer_elsewhere(late, tmp_path) == "[5]"


@pytest.mark.usefixtures("own_modules")
def test_functions_with_a_cache_travel(tmp_path):
    text = (
        "import functools\n@functools.lru_cache(7)\n"
        "def {0}(n): return n if n < 2 else {0}(n - 1) + {0}(n - 2)\n"
        "def {0}_size(n): return {0}.cache_info().maxsize, {0}(n)\n"
    )
    (tmp_path / "cached_help.py").write_text(text.format("there"))
    (tmp_path / "cached_steps.py").write_text(
        "import cached_help\nfrom cached_help import there, there_size\n"
        "def dotted(n): return cached_help.there(n)\n" + text.format("here")
    )
    for name, wanted in (
        ("here", "5"), ("here_size", "(7, 5)"), ("there", "5"), ("there_size", "(7, 5)"),
        ("dotted", "5"),
    ):  # fmt: skip
        found = functions.find(f"cached_steps:{name}", tmp_path, HERE)
        assert answer_elsewhere(found, tmp_path) == wanted
    of_python = fnmatch._compile_pattern
    assert pickle.loads(cloudpickle.dumps(of_python)) is of_python, "as before"


@pytest.mark.usefixtures("own_modules")
def test_a_module_beside_a_python_file_travels_with_its_functions(tmp_path):
    (tmp_path / "file_help.py").write_text("def g(n): return [n]\n")
    (tmp_path / "whole_file.py").write_text(
        "from skylark.spark.pipelines import Pipeline\nfrom file_help import g\n"
        "p = Pipeline('p', checkpoint='c').source('o', topic='T').sink('x', format='noop')\n"
        "@p.step\ndef f(o): return g(o)\n"
    )
    (step,) = load(tmp_path / "whole_file.py", {}).steps
    assert answer_elsewhere(step.function, tmp_path) == "[5]"


@pytest.mark.usefixtures("own_modules")
def test_what_is_installed_below_the_folder_is_left_where_workers_find_it(tmp_path):
    for place in ("lib/site-packages", "venv/own"):
        (tmp_path / place).mkdir(parents=True)
    (tmp_path / "venv" / "pyvenv.cfg").touch()
    (tmp_path / "lib" / "site-packages" / "installed_one.py").write_text("def g(n): return n\n")
    (tmp_path / "venv" / "own" / "installed_two.py").write_text("def g(n): return n\n")
    (tmp_path / "uses_both.py").write_text(
        "import sys\nfrom pathlib import Path\n"
        "sys.path += [str(Path(__file__).parent / p) for p in ('lib/site-packages', 'venv/own')]\n"
        "import installed_one, installed_two, skylark.model\ndef f(n): return n\n"
    )
    functions.find("uses_both:f", tmp_path, HERE)
    functions.find("uses_both:f", tmp_path, HERE)
    registered = cloudpickle.list_registry_pickle_by_value()
    assert not registered & {"installed_one", "installed_two", "skylark", "skylark.model", "json"}


@pytest.mark.usefixtures("own_modules")
def test_pipelines_of_one_process_have_each_their_own_helper(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name / "shared_parts").mkdir(parents=True)
        (tmp_path / name / "shared_help.py").write_text(f"def whose(n): return {name!r}\n")
        (tmp_path / name / "shared_parts" / "__init__.py").touch()
        (tmp_path / name / "shared_parts" / "deep.py").write_text(f"WHOSE = {name!r}\n")
        for step in ("steps", "more"):
            (tmp_path / name / f"my_{step}.py").write_text(
                "import shared_help\nfrom shared_parts.deep import WHOSE\n"
                "def f(n): return shared_help.whose(n) + WHOSE\n"
            )
    wanted = [("a", "steps"), ("b", "steps"), ("a", "more"), ("b", "more")]
    found = [functions.find(f"my_{step}:f", tmp_path / one, HERE) for one, step in wanted]
    assert [one(5) for one in found] == ["aa", "bb", "aa", "bb"]
    assert [answer_elsewhere(one, tmp_path) for one in found] == ["'aa'", "'bb'", "'aa'", "'bb'"]
    helpers = [one.__globals__["shared_help"] for one in found]
    assert helpers[0] is helpers[2], "each is loaded once"
    assert helpers[1] is helpers[3]


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
