"""Python for Spark's processes: the installed pyspark, not the one in the archive."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

import pyspark

from skylark.spark import python
from skylark.spark.python import python_environment

NAMES = ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON")
PACKAGE = Path(pyspark.__file__).parent


def chosen(tmp_path: Path, master: str = "local[2]", **env: str) -> dict[str, str]:
    return python_environment({"SKYLARK_CACHE_DIR": str(tmp_path), **env}, master=master)


def through(script: str, code: str, *words: str, path: str | None) -> str:
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    if path is not None:
        env["PYTHONPATH"] = path
    done = subprocess.run(
        [script, "-c", code, *words], env=env, capture_output=True, text=True, check=True
    )
    return done.stdout


def test_both_kinds_of_processes_get_the_script_of_this_python(tmp_path: Path) -> None:
    found = chosen(tmp_path)
    assert set(found) == set(NAMES)
    (script,) = set(found.values())
    assert script.startswith(str(tmp_path))
    assert through(script, "import sys; print(sys.prefix)", path=None) == f"{sys.prefix}\n"


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (f"{PACKAGE}/python/lib/pyspark.zip:{PACKAGE}/jars/spark-core.jar", ""),
        (f"/a b:{PACKAGE}/python/lib/pyspark.zip:/it's $HOME/*::/z", "/a b:/it's $HOME/*:/z"),
        (f"{PACKAGE}-of-mine:{PACKAGE}", f"{PACKAGE}-of-mine:{PACKAGE}"),
        ("", ""),
        (None, ""),
    ],
)
def test_only_what_lies_below_the_package_leaves_the_path(
    tmp_path: Path, given: str | None, kept: str
) -> None:
    script = chosen(tmp_path)["PYSPARK_PYTHON"]
    shown = through(script, "import os; print(os.environ['PYTHONPATH'], end='')", path=given)
    assert shown == kept


def test_pyspark_is_the_installed_one_and_words_stay_as_they_are(tmp_path: Path) -> None:
    script = chosen(tmp_path)["PYSPARK_PYTHON"]
    archive = f"{PACKAGE}/python/lib/pyspark.zip"
    code = "import sys, pyspark; print(pyspark.__file__, sys.argv[1:])"
    shown = through(script, code, "a b", "", "$x", "*", path=archive)
    assert shown == f"{pyspark.__file__} {['a b', '', '$x', '*']}\n"
    without = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": archive},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert archive in without.stdout, "Spark's path is harmless now: the script is not needed"


def test_what_the_user_names_stays(tmp_path: Path) -> None:
    found = chosen(tmp_path, PYSPARK_PYTHON="/opt/python")
    assert found["PYSPARK_PYTHON"] == "/opt/python"
    assert found["PYSPARK_DRIVER_PYTHON"].startswith(str(tmp_path))


def test_the_executors_of_a_cluster_get_no_path_of_this_machine(tmp_path: Path) -> None:
    here = chosen(tmp_path)
    there = dict.fromkeys(NAMES, sys.executable)
    assert chosen(tmp_path, "spark://one:7077") == there
    # Also after a local session of the same process, which has set the variables.
    assert chosen(tmp_path, "spark://one:7077", **here) == there
    assert chosen(tmp_path, "local", **here) == here


def test_a_spark_of_the_users_own_keeps_its_archives(tmp_path: Path) -> None:
    there = dict.fromkeys(NAMES, sys.executable)
    assert chosen(tmp_path, SPARK_HOME=str(tmp_path)) == there
    assert chosen(tmp_path, SPARK_HOME=str(PACKAGE)) != there


def test_where_no_script_can_be_kept_spark_starts_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a file").touch()
    plain = dict.fromkeys(NAMES, sys.executable)
    assert chosen(tmp_path / "a file") == plain
    uid = os.getuid() + 1
    monkeypatch.setattr(os, "getuid", lambda: uid)  # What lies there would be run as us.
    assert chosen(tmp_path) == plain


def test_without_pyspark_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(python.importlib.util, "find_spec", lambda name: None)
    assert chosen(tmp_path) == dict.fromkeys(NAMES, sys.executable)
    assert list(tmp_path.iterdir()) == []
