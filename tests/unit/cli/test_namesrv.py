"""`mqnamesrv` and `skylark namesrv`: flags, settings, and one line per mistake."""

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from skylark.cli import namesrv
from skylark.errors import ConfigError, StoreUnreadable
from skylark.nameserver.config import NameServerConfig


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    for name in list(os.environ):
        if name.startswith(("SKYLARK_", "RMQ_")) or name in ("NAMESRV_ADDR", "ROCKETMQ_HOME"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    mask = os.umask(0o022)
    yield
    os.umask(mask)


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[NameServerConfig]:
    """Stand in for the server itself, and keep the settings it was started with."""
    seen: list[NameServerConfig] = []

    def run(config: NameServerConfig) -> int:
        seen.append(config)
        return 0

    monkeypatch.setattr("skylark.nameserver.app.run", run)
    return seen


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Callable[[BaseException], None]:
    def install(error: BaseException) -> None:
        def run(config: NameServerConfig) -> int:
            raise error

        monkeypatch.setattr("skylark.nameserver.app.run", run)

    return install


def test_with_no_arguments_it_listens_on_9876(started: list[NameServerConfig]) -> None:
    assert namesrv.main([]) == 0
    assert started == [NameServerConfig()]
    assert started[0].listen_port == 9876


@pytest.mark.parametrize("flags", [["-p", "1234"], ["-p1234"], ["--port", "1234"], ["--port=1234"]])
def test_p_with_a_number_is_the_port(flags: list[str], started: list[NameServerConfig]) -> None:
    assert namesrv.main(flags) == 0
    assert started[0].listen_port == 1234


@pytest.mark.parametrize("flags", [["-p"], ["--printConfigItem"], ["-p", "-n", "a:1"]])
def test_p_alone_prints_the_settings_as_rocketmqs_does(
    flags: list[str], started: list[NameServerConfig], capsys: pytest.CaptureFixture[str]
) -> None:
    assert namesrv.main(flags) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "listenPort=9876" in lines
    assert "orderMessageEnable=false" in lines
    assert started == []


def test_every_flag_reaches_its_setting(started: list[NameServerConfig], tmp_path: Path) -> None:
    flags = ["--host", "127.0.0.1", "-n", "a:1;b:2", "--set", "orderMessageEnable=true"]
    flags += ["--log-format", "json", "--log-level", "debug", "--log-dir", "-"]
    assert namesrv.main(flags) == 0
    config = started[0]
    assert (config.listen_host, config.namesrv_addr) == ("127.0.0.1", "a:1;b:2")
    assert config.order_message_enable
    assert (config.log_format, config.log_level, config.log_dir) == ("json", "debug", "-")


def test_a_dedicated_flag_is_stronger_than_set(started: list[NameServerConfig]) -> None:
    assert namesrv.main(["-p", "5", "--set", "listenPort=6"]) == 0
    assert started[0].listen_port == 5


def test_the_file_is_read_and_becomes_the_place_for_changes(
    started: list[NameServerConfig],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("namesrv.conf").write_text("listenPort=77\n")
    assert namesrv.main(["-c", "namesrv.conf"]) == 0
    assert started[0].listen_port == 77
    assert started[0].config_store_path == str(tmp_path / "namesrv.conf")
    assert capsys.readouterr().out == "load config properties file OK, namesrv.conf\n"


def test_a_file_that_names_its_own_store_and_a_toml_file_are_left_alone(
    started: list[NameServerConfig], tmp_path: Path
) -> None:
    conf = tmp_path / "n.conf"
    conf.write_text("configStorePath=/elsewhere\n")
    assert namesrv.main(["-c", str(conf)]) == 0
    assert started[0].config_store_path == "/elsewhere"
    toml = tmp_path / "n.toml"
    toml.write_text("listen_port = 5\n")
    assert namesrv.main(["-c", str(toml)]) == 0
    assert started[1].config_store_path == NameServerConfig().config_store_path


def test_an_unknown_key_is_a_warning_and_the_server_starts(
    started: list[NameServerConfig], capsys: pytest.CaptureFixture[str]
) -> None:
    assert namesrv.main(["--set", "listnPort=5"], program="mqnamesrv") == 0
    assert len(started) == 1
    assert capsys.readouterr().err == (
        "mqnamesrv: warning: --set: unknown key listnPort is ignored; did you mean listenPort?\n"
    )


def test_warnings_and_keys_without_effect_are_in_the_log(
    started: list[NameServerConfig], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--set", "serverWorkerThreads=5", "--set", "listnPort=5", "--log-level", "debug"]
    assert namesrv.main(flags) == 0
    logged = (tmp_path / "logs" / "rocketmqlogs" / "namesrv.log").read_text()
    assert "DEBUG cli.roles - config: --set: serverWorkerThreads has no effect" in logged
    assert "WARNING cli.roles - config: --set: unknown key listnPort" in logged
    assert "serverWorkerThreads" not in capsys.readouterr().err


def test_files_of_the_server_are_its_owners_only(started: list[NameServerConfig]) -> None:
    assert namesrv.main([]) == 0
    assert os.umask(0o077) == 0o077


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["-p", "abc"], "-p abc: expected a whole number from 0 to 65535"),
        (["-p", "70000"], "-p 70000: expected a whole number from 0 to 65535"),
        (["-c", "/no/such/file"], "cannot read the config file /no/such/file: No such file"),
        (["--set", "listenPort"], "expected key=value"),
        (["--log-format", "xml"], "--log-format xml: expected text or json"),
        (["--set", "tlsMode=enforcing"], "needs a certificate"),
    ],
)
def test_a_bad_setting_is_one_line_and_exit_code_2(
    arguments: list[str],
    words: str,
    started: list[NameServerConfig],
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert namesrv.main(arguments) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n"), started) == ("", 1, [])
    assert words in err


@pytest.mark.parametrize("arguments", [["--nonsense"], ["extra"], ["-c"], ["--por", "5"]])
def test_wrong_flags_are_one_line_and_exit_code_2(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        namesrv.main(arguments, program="mqnamesrv")
    assert caught.value.code == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert err.endswith("see mqnamesrv --help\n")


def test_help_names_the_flags(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        namesrv.main(["-h"], program="mqnamesrv")
    assert caught.value.code == 0
    out = capsys.readouterr().out
    for flag in ("-p", "-c", "-n", "--set", "--log-dir", "--printConfigItem"):
        assert flag in out


TAKEN = OSError(
    errno.EADDRINUSE,
    "error while attempting to bind on address ('0.0.0.0', 9876): address already in use",
)


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (
            TAKEN,
            "0.0.0.0:9876 is taken; stop the program that listens there, or choose a port with -p",
        ),
        (
            ExceptionGroup("one", [ExceptionGroup("two", [TAKEN])]),
            "0.0.0.0:9876 is taken; stop the program that listens there, or choose a port with -p",
        ),
        (
            OSError(errno.EADDRNOTAVAIL, "could not bind on address ('1.2.3.4', 5)"),
            "1.2.3.4:5 is not an address of this machine; correct listenHost",
        ),
        (
            PermissionError(errno.EACCES, "Permission denied", "/logs/namesrv.log"),
            "cannot use /logs/namesrv.log: Permission denied; correct the path or its permissions",
        ),
        (StoreUnreadable("/kv", "permission denied"), "/kv: permission denied"),
        (ConfigError("no"), "no"),
    ],
)
def test_a_start_that_cannot_be_is_one_line_and_exit_code_2(
    error: Exception,
    message: str,
    failing: Callable[[BaseException], None],
    capsys: pytest.CaptureFixture[str],
) -> None:
    failing(error)
    assert namesrv.main([], program="mqnamesrv") == 2
    assert capsys.readouterr().err == f"mqnamesrv: {message}\n"


def test_an_interrupt_ends_as_shells_expect(failing: Callable[[BaseException], None]) -> None:
    failing(KeyboardInterrupt())
    assert namesrv.main([]) == 130


def test_a_bug_is_not_hidden(failing: Callable[[BaseException], None]) -> None:
    failing(RuntimeError("bug"))
    with pytest.raises(RuntimeError):
        namesrv.main([])
