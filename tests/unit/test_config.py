"""Schemas, their four kinds of source, and what a user reads when something is wrong."""

import dataclasses
from pathlib import Path
from typing import ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skylark.config import (
    Flag,
    Settings,
    apply_update,
    config_text,
    explain,
    explain_all,
    load,
    merge_properties,
    parse_properties,
    parse_set,
    public_items,
    reference_page,
    setting,
    settings_of,
    update_from_text,
)
from skylark.errors import ConfigError, InvalidSetting, SettingRefused
from skylark.nameserver.config import NameServerConfig

ROOT = Path(__file__).parents[2]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ToyConfig(Settings):
    component: ClassVar[str] = "broker"

    listen_port: int = setting(10, "Port.", at_least=0, at_most=65_535, rocketmq_default=8888)
    idle_ms: int = setting(
        120_000,
        "Idle.",
        at_least=1_000,
        at_most=86_400_000,
        rocketmq_key="serverChannelMaxIdleTimeSeconds",
        rocketmq_default=120,
        rocketmq_unit=1_000,
    )
    mapped_file_size_commit_log: int = setting(1024, "Size.", at_least=1, at_most=2**30)
    broker_ip: str = setting("", "Address.", key="brokerIP1")
    flush: str = setting("async", "When.", choices=("async", "sync"), hot=True, remote=True)
    trace_on: bool = setting(True, "Trace.", hot=True, remote=True)
    secret_key: str = setting("", "Key.", secret=True)
    home: str = setting("~/toy", "Home.", path=True, env=("TOY_HOME",))


def toy(
    text: str | None = None,
    tmp_path: Path | None = None,
    name: str = "toy.conf",
    env: dict[str, str] | None = None,
    flags: list[Flag] | None = None,
):
    path = None
    if text is not None:
        assert tmp_path is not None
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
    return load(ToyConfig, file=path, env=env or {}, flags=flags or [])


# Precedence


def test_with_no_source_every_value_is_the_default() -> None:
    loaded = toy()
    assert loaded.config == ToyConfig()
    assert {str(source) for source in loaded.sources.values()} == {"default"}
    assert loaded.warnings == ()


def test_a_flag_beats_the_environment_which_beats_the_file_which_beats_the_default(
    tmp_path: Path,
) -> None:
    text = "listenPort=1\nflush=sync\ntraceOn=false\n"
    env = {"SKYLARK_LISTEN_PORT": "2", "SKYLARK_FLUSH": "async"}
    loaded = toy(text, tmp_path, env=env, flags=[Flag("listenPort", "3", "--port")])
    assert (loaded.config.listen_port, loaded.config.flush, loaded.config.trace_on) == (
        3,
        "async",
        False,
    )
    assert str(loaded.sources["listen_port"]) == "--port"
    assert str(loaded.sources["flush"]) == "environment SKYLARK_FLUSH"
    assert str(loaded.sources["trace_on"]) == f"{tmp_path / 'toy.conf'}:3"
    assert str(loaded.sources["home"]) == "default"


def test_the_later_of_two_flags_counts() -> None:
    assert toy(flags=[Flag("listenPort", "3"), Flag("listen_port", "4")]).config.listen_port == 4


def test_our_variable_is_stronger_than_rocketmqs_which_is_stronger_than_the_historic_one() -> None:
    env = {"TOY_HOME": "/c", "RMQ_HOME": "/b", "SKYLARK_HOME": "/a"}
    assert toy(env=env).config.home == "/a"
    del env["SKYLARK_HOME"]
    assert toy(env=env).config.home == "/b"
    del env["RMQ_HOME"]
    assert toy(env=env).config.home == "/c"


def test_an_empty_variable_counts_as_not_set() -> None:
    assert toy(env={"SKYLARK_LISTEN_PORT": ""}).config.listen_port == 10


def test_the_process_environment_is_read_when_none_is_given(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SKYLARK_LISTEN_PORT", "77")
    assert load(ToyConfig).config.listen_port == 77


@pytest.mark.parametrize("key", ["listenPort", "listen_port"])
def test_a_key_may_be_camel_case_or_snake_case(key: str, tmp_path: Path) -> None:
    assert toy(f"{key}=5", tmp_path).config.listen_port == 5


def test_rocketmqs_name_is_accepted_in_rocketmqs_unit(tmp_path: Path) -> None:
    assert toy("serverChannelMaxIdleTimeSeconds=30", tmp_path).config.idle_ms == 30_000
    assert toy("idleMs=1500", tmp_path).config.idle_ms == 1_500


def test_a_tilde_is_expanded_wherever_a_path_comes_from(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    assert ToyConfig().home == "/home/someone/toy"
    assert toy(flags=[Flag("home", "~/x")]).config.home == "/home/someone/x"


# Bad values


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        (
            Flag("listenPort", "abc"),
            "--set listenPort=abc: expected a whole number from 0 to 65535; "
            "correct it or leave it out for 10",
        ),
        (
            Flag("listenPort", "65536", "--port"),
            "--port 65536: expected a whole number from 0 to 65535; "
            "correct it or leave it out for 10",
        ),
        (
            Flag("flush", "never"),
            "--set flush=never: expected async or sync; correct it or leave it out for async",
        ),
        (
            Flag("traceOn", "ture"),
            "--set traceOn=ture: expected true or false; correct it or leave it out for true",
        ),
        (
            Flag("serverChannelMaxIdleTimeSeconds", "0"),
            "--set serverChannelMaxIdleTimeSeconds=0: expected a whole number from 1 to 86400; "
            "correct it or leave it out for 120",
        ),
    ],
)
def test_a_bad_value_is_one_line_with_source_expectation_and_next_step(
    flag: Flag, message: str
) -> None:
    with pytest.raises(InvalidSetting) as caught:
        toy(flags=[flag])
    assert str(caught.value) == message
    assert caught.value.key == flag.key


def test_a_bad_value_in_a_file_names_file_and_line(tmp_path: Path) -> None:
    with pytest.raises(InvalidSetting, match=r"toy\.conf:3: listenPort=x: expected"):
        toy("# comment\n\nlistenPort=x\n", tmp_path)


def test_a_bad_value_in_the_environment_names_the_variable() -> None:
    with pytest.raises(InvalidSetting, match=r"^environment RMQ_LISTEN_PORT=x: expected"):
        toy(env={"RMQ_LISTEN_PORT": "x"})


@pytest.mark.parametrize("text", ["1e3", "0x10", "1.0", "", "٣", "1" * 30, "--1", "1_000"])
def test_only_plain_whole_numbers_are_numbers(text: str) -> None:
    with pytest.raises(InvalidSetting):
        toy(flags=[Flag("listenPort", text)])


def test_a_hostile_value_cannot_forge_a_line_or_flood_the_message() -> None:
    with pytest.raises(InvalidSetting) as caught:
        toy(flags=[Flag("listenPort", "\x1b[2J\nERROR" + "x" * 10_000)])
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 300


def test_a_secret_never_appears_in_an_error_or_an_explanation() -> None:
    with pytest.raises(InvalidSetting) as caught:
        toy(flags=[Flag("secretKey", "hunter2\0")])
    assert "hunter2" not in str(caught.value)
    loaded = toy(flags=[Flag("secretKey", "hunter2")])
    assert "hunter2" not in repr(explain_all(loaded))
    assert "hunter2" not in repr(public_items(loaded.config))


def test_a_constructor_checks_too() -> None:
    with pytest.raises(InvalidSetting, match=r"ToyConfig\(listen_port=-1\): expected"):
        ToyConfig(listen_port=-1)
    with pytest.raises(InvalidSetting):
        ToyConfig(listen_port=True)
    with pytest.raises(InvalidSetting):
        ToyConfig().replace(flush="maybe")


@pytest.mark.parametrize("text", ["listenPort", "=5", "  =5"])
def test_set_without_a_key_or_an_equals_sign_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="expected key=value"):
        parse_set(text)


def test_set_splits_at_the_first_equals_sign() -> None:
    assert parse_set("a=b=c") == Flag("a", "b=c", "--set")


# Unknown keys


def test_an_unknown_key_is_a_warning_with_the_nearest_name(tmp_path: Path) -> None:
    loaded = toy("listnPort=5\n", tmp_path)
    assert loaded.config.listen_port == 10
    assert loaded.warnings == (
        f"{tmp_path / 'toy.conf'}:1: unknown key listnPort is ignored; did you mean listenPort?",
    )


def test_an_unknown_key_that_is_near_to_nothing_points_to_the_list(tmp_path: Path) -> None:
    assert toy("zzz=1", tmp_path).warnings[0].endswith("see `skylark config list`")


@pytest.mark.parametrize(("key", "right"), [("mapedFileSizeCommitLog", "mappedFileSizeCommitLog")])
def test_a_known_misspelling_is_taken_with_a_warning(key: str, right: str, tmp_path: Path) -> None:
    loaded = toy(f"{key}=77", tmp_path)
    assert loaded.config.mapped_file_size_commit_log == 77
    assert loaded.warnings[0].endswith(f"{key} is taken as {right}; write {right}")


def test_an_overridden_derivation_is_the_key(tmp_path: Path) -> None:
    assert toy("brokerIP1=10.0.0.1", tmp_path).config.broker_ip == "10.0.0.1"
    assert toy("brokerIP=10.0.0.2", tmp_path).config.broker_ip == "10.0.0.2"


def test_a_key_with_no_meaning_here_is_a_note_and_no_warning(tmp_path: Path) -> None:
    loaded = toy("sendMessageThreadPoolNums=64\n", tmp_path)
    assert loaded.warnings == ()
    assert "sendMessageThreadPoolNums has no effect: one event loop" in loaded.notes[0]


def test_a_whole_broker_file_is_no_error_for_the_name_server(tmp_path: Path) -> None:
    path = tmp_path / "broker.conf"
    path.write_text(
        "brokerClusterName=DefaultCluster\nbrokerName=broker-a\nbrokerId=0\ndeleteWhen=04\n"
        "fileReservedTime=48\nbrokerRole=ASYNC_MASTER\nflushDiskType=ASYNC_FLUSH\n"
        "mapedFileSizeCommitLog=1\ntransientStoreEnable=true\nfilterServer-Nums=1\n"
    )
    loaded = load(NameServerConfig, file=path, env={})
    assert loaded.warnings == ()
    assert len(loaded.notes) == 10
    assert loaded.config == NameServerConfig()


def test_a_key_that_asks_for_what_we_do_not_do_says_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "n.conf"
    path.write_text("tls.server.keyPassword=secret\n")
    loaded = load(NameServerConfig, file=path, env={})
    assert "give a key file without a password" in loaded.warnings[0]
    assert "secret" not in loaded.warnings[0]


def test_a_key_given_twice_in_a_file_counts_last_and_is_told(tmp_path: Path) -> None:
    loaded = toy("listenPort=1\nlisten_port=2\n", tmp_path)
    assert loaded.config.listen_port == 2
    assert "was already set at" in loaded.warnings[0]


def test_a_near_miss_among_our_variables_is_told_and_others_are_left_alone() -> None:
    loaded = toy(env={"SKYLARK_LISTEN_PORTT": "1", "SKYLARK_PURE": "1", "PATH": "/bin"})
    assert loaded.warnings == (
        "environment SKYLARK_LISTEN_PORTT is unknown and ignored; "
        "did you mean SKYLARK_LISTEN_PORT?",
    )


# Files


@pytest.mark.parametrize(
    ("text", "entries"),
    [
        ("a=1", [("a", "1", 1)]),
        ("a = 1", [("a", "1", 1)]),
        ("a:1", [("a", "1", 1)]),
        ("a 1", [("a", "1", 1)]),
        ("a\t:\t1", [("a", "1", 1)]),
        ("a", [("a", "", 1)]),
        ("a=", [("a", "", 1)]),
        ("a==1", [("a", "=1", 1)]),
        ("a=b=c", [("a", "b=c", 1)]),
        ("  # c\n ! d\n\n\t\na=1", [("a", "1", 5)]),
        ("a=1\\\n   2\nb=3", [("a", "12", 1), ("b", "3", 3)]),
        ("a=1\\\n# no comment", [("a", "1# no comment", 1)]),
        ("a=1\\", [("a", "1", 1)]),
        ("a=1\\\\\nb=2", [("a", "1\\", 1), ("b", "2", 2)]),
        ("# comment\\\na=1", [("a", "1", 2)]),
        ("a\\=b=c", [("a=b", "c", 1)]),
        ("a\\ b c", [("a b", "c", 1)]),
        ("a=\\t\\n\\r\\f\\q\\\\", [("a", "\t\n\r\fq\\", 1)]),
        ("a=\\u4e2d", [("a", "中", 1)]),
        ("a=\\ud83d\\ude00", [("a", "\N{GRINNING FACE}", 1)]),
        ("a=1\r\nb=2\rc=3", [("a", "1", 1), ("b", "2", 2), ("c", "3", 3)]),
        ("a=1 ", [("a", "1 ", 1)]),
        ("=1", [("", "1", 1)]),
        ("", []),
    ],
)
def test_properties_are_read_as_java_reads_them(
    text: str, entries: list[tuple[str, str, int]]
) -> None:
    assert [tuple(item) for item in parse_properties(text)] == entries


def test_a_lone_surrogate_escape_becomes_a_replacement_character() -> None:
    assert parse_properties("a=\\ud83dx")[0].value == "\N{REPLACEMENT CHARACTER}x"


@pytest.mark.parametrize("text", ["a=\\u12", "a=\\uzzzz", "\\u=1"])
def test_a_malformed_unicode_escape_is_an_error_with_its_line(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^f\.conf:2: .*hexadecimal"):
        parse_properties("\n" + text, "f.conf")


@given(st.text(max_size=200))
def test_any_text_is_read_or_refused_in_one_line(text: str) -> None:
    try:
        entries = parse_properties(text)
    except ConfigError as error:
        message = str(error)
    else:
        message = "".join(f"{entry.line}" for entry in entries)
    assert message.isprintable()


_keys = st.text("abcXYZ.-_09", min_size=1, max_size=10)


@given(st.dictionaries(_keys, st.text(st.characters(codec="utf-8"), max_size=30), max_size=6))
def test_what_is_merged_into_an_empty_file_is_read_back(changes: dict[str, str]) -> None:
    merged = merge_properties("", changes)
    assert {item.key: item.value for item in parse_properties(merged)} == changes


def test_a_merge_keeps_comments_and_other_keys_and_writes_a_key_once() -> None:
    text = "# top\na=1\nb = x\\\n    y\n\n! end\na=2\nc=3"
    assert merge_properties(text, {"a": "9", "d": "4"}) == (
        "# top\na=9\nb = x\\\n    y\n\n! end\nc=3\nd=4\n"
    )
    assert merge_properties(text, {"b": " z"}) == "# top\na=1\nb=\\ z\n\n! end\na=2\nc=3\n"


def test_utf8_latin1_and_a_byte_order_mark_are_read(tmp_path: Path) -> None:
    path = tmp_path / "f.conf"
    for raw in (
        "brokerIP1=é".encode(),
        "brokerIP1=é".encode("latin-1"),
        "\ufeffbrokerIP1=é".encode(),
    ):
        path.write_bytes(raw)
        assert load(ToyConfig, file=path, env={}).config.broker_ip == "é"


def test_a_file_that_is_missing_a_directory_or_too_large_is_one_line(tmp_path: Path) -> None:
    for path in (tmp_path / "none.conf", tmp_path):
        with pytest.raises(ConfigError, match=r"cannot read the config file .*; give a readable"):
            load(ToyConfig, file=path, env={})
    big = tmp_path / "big.conf"
    big.write_bytes(b"#" * (1024 * 1024 + 1))
    with pytest.raises(ConfigError, match="larger than"):
        load(ToyConfig, file=big, env={})


def test_toml_has_common_keys_and_a_table_per_component(tmp_path: Path) -> None:
    text = (
        "listen_port = 1\nflush = 'sync'\n[nameserver]\nlistenPort = 5\n"
        "[broker]\nlistenPort = 2\ntrace_on = false\n"
    )
    loaded = toy(text, tmp_path, "all.toml")
    assert (loaded.config.listen_port, loaded.config.flush, loaded.config.trace_on) == (
        2,
        "sync",
        False,
    )
    assert str(loaded.sources["listen_port"]).endswith("all.toml:6")
    assert str(loaded.sources["flush"]).endswith("all.toml:2")


def test_a_toml_table_that_no_component_has_is_an_unknown_key(tmp_path: Path) -> None:
    loaded = toy("a = 1\n[brokr]\nlistenPort = 2\n", tmp_path, "all.toml")
    assert any("all.toml:2: unknown key brokr" in warning for warning in loaded.warnings)


def test_a_toml_list_of_texts_is_joined_by_semicolons(tmp_path: Path) -> None:
    assert toy("brokerIP1 = ['a', 'b']", tmp_path, "a.toml").config.broker_ip == "a;b"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a = ", "not TOML"),
        ("listenPort = 1.5", r"a\.toml:1: listenPort: expected text, a whole number"),
        ("\n[broker]\nlistenPort = [1]", r"a\.toml:3: listenPort: expected text"),
        ("listenPort = 70000", r"a\.toml:1: listenPort=70000: expected a whole number"),
    ],
)
def test_bad_toml_is_one_line_with_its_place(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        toy(text, tmp_path, "a.toml")
    assert str(caught.value).isprintable()


# Explaining


def test_an_explanation_says_value_source_default_meaning_and_rocketmqs_view() -> None:
    explained = explain(toy(flags=[Flag("idleMs", "5000")]), "serverChannelMaxIdleTimeSeconds")
    assert explained.key == "idleMs"
    assert (explained.value, explained.source, explained.default) == ("5000", "--set", "120000")
    assert explained.takes_effect == "after a restart"
    assert explained.rocketmq_key == "serverChannelMaxIdleTimeSeconds"
    assert explained.rocketmq_default == "120"
    assert explained.environment == ("SKYLARK_IDLE_MS", "RMQ_IDLE_MS")
    assert explain(toy(), "traceOn").takes_effect == "at once"


def test_explaining_an_unknown_key_offers_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"unknown key listenPrt; did you mean listenPort\?"):
        explain(toy(), "listenPrt")


# Remote updates


def test_an_update_changes_the_allowed_and_says_what_changed() -> None:
    config = ToyConfig()
    update = apply_update(config, "flush=sync\ntraceOn=true\n")
    assert update.config.flush == "sync"
    assert update.changes == {"flush": ("async", "sync")}
    assert config.flush == "async"


def test_an_update_is_all_or_nothing() -> None:
    with pytest.raises(SettingRefused, match="listenPort cannot be changed remotely"):
        apply_update(ToyConfig(), "flush=sync\nlistenPort=5\n")
    with pytest.raises(InvalidSetting):
        apply_update(ToyConfig(), "flush=sync\ntraceOn=x\n")


# The name server's schema


def test_only_harmless_settings_can_be_changed_remotely() -> None:
    remote = [known for known in settings_of(NameServerConfig).values() if known.remote]
    assert {known.key for known in remote} == {"orderMessageEnable", "logLevel"}
    for known in remote:
        assert isinstance(known.default, bool) or known.choices, "typed and bounded"


@pytest.mark.parametrize("key", [*settings_of(NameServerConfig), "rocketmqHome", "x", "../../etc"])
def test_every_other_key_is_refused_with_no_effect(key: str) -> None:
    known = settings_of(NameServerConfig).get(key)
    if known is not None and known.remote:
        return
    for spelling in {key, known.key if known else key}:
        with pytest.raises(SettingRefused):
            update_from_text(NameServerConfig(), f"{spelling}=1\n")


def test_the_black_list_narrows_what_may_change() -> None:
    config = NameServerConfig(config_black_list="a; orderMessageEnable")
    with pytest.raises(SettingRefused):
        update_from_text(config, "orderMessageEnable=true")
    assert update_from_text(config, "logLevel=debug").config.log_level == "debug"


def test_an_update_that_does_not_parse_is_refused_in_one_line() -> None:
    for text in ("orderMessageEnable=perhaps", "orderMessageEnable=\\u12", "x" * 70_000):
        with pytest.raises(ConfigError) as caught:
            update_from_text(NameServerConfig(), text)
        assert str(caught.value).isprintable()


def test_the_answer_has_every_key_of_rocketmqs_name_server_and_no_path() -> None:
    config = NameServerConfig(
        kv_config_path="/secret/place/kv.json",
        log_dir="/secret/logs",
        tls_cert_path="/secret/cert",
        tls_key_path="/secret/key",
    )
    text = config_text(config)
    assert "secret" not in text
    answered = dict(line.split("=", 1) for line in text.splitlines())
    assert {
        "rocketmqHome", "kvConfigPath", "configStorePath", "productEnvName", "clusterTest",
        "orderMessageEnable", "configBlackList", "listenPort", "serverWorkerThreads",
        "serverCallbackExecutorThreads", "serverSelectorThreads", "serverOnewaySemaphoreValue",
        "serverAsyncSemaphoreValue", "serverChannelMaxIdleTimeSeconds", "serverSocketSndBufSize",
        "serverSocketRcvBufSize", "writeBufferHighWaterMark", "writeBufferLowWaterMark",
        "serverSocketBacklog", "serverPooledByteBufAllocatorEnable", "useEpollNativeSelector",
    } <= set(answered)  # fmt: skip
    assert answered["listenPort"] == "9876"
    assert answered["serverChannelMaxIdleTimeSeconds"] == "120"
    assert answered["kvConfigPath"] == "***"


def test_a_time_that_is_no_whole_second_is_answered_under_our_own_key() -> None:
    text = config_text(NameServerConfig(idle_timeout_ms=1_500))
    assert "idleTimeoutMs=1500\n" in text
    assert "serverChannelMaxIdleTimeSeconds" not in text


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tls_cert_path": "c"}, "belong together"),
        ({"tls_mode": "enforcing"}, "needs a certificate"),
        ({"tls_client_auth": "require"}, "set tlsTrustPath"),
        ({"broker_expiry_ms": 5_000}, "expired brokers would linger"),
        ({"header_bytes_max": 131_072, "frame_bytes_max": 65_536}, "larger than frameBytesMax"),
    ],
)
def test_settings_that_do_not_fit_together_are_told(changes: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        NameServerConfig(**changes)


def test_historic_variables_reach_the_name_server() -> None:
    env = {"NAMESRV_ADDR": "a:9876;b:9876", "ROCKETMQ_HOME": "/opt/rocketmq"}
    loaded = load(NameServerConfig, env=env)
    assert loaded.config.namesrv_addr == "a:9876;b:9876"
    assert loaded.config.rocketmq_home == "/opt/rocketmq"


def test_rocketmqs_tls_keys_are_understood(tmp_path: Path) -> None:
    path = tmp_path / "tls.properties"
    path.write_text(
        "tls.server.mode=enforcing\ntls.server.certPath=/c\ntls.server.keyPath=/k\n"
        "tls.server.trustCertPath=/t\ntls.server.need.client.auth=require\n"
        "tls.test.mode.enable=false\n"
    )
    config = load(NameServerConfig, file=path, env={}).config
    assert (config.tls_mode, config.tls_client_auth) == ("enforcing", "require")
    assert (config.tls_cert_path, config.tls_key_path, config.tls_trust_path) == ("/c", "/k", "/t")


def test_every_setting_has_a_meaning_and_every_number_has_bounds() -> None:
    for known in settings_of(NameServerConfig).values():
        assert known.doc.endswith("."), known.key
        known.check(known.default)
        if isinstance(known.default, int) and not isinstance(known.default, bool):
            assert known.at_least is not None, known.key
            assert known.at_most is not None, known.key


def test_the_network_settings_have_the_names_that_the_network_layer_reads() -> None:
    from skylark.net.config import NetConfig

    ours = settings_of(NameServerConfig)
    for field in dataclasses.fields(NetConfig):
        assert field.name in ours, field.name
        if not field.name.startswith("listen"):
            assert ours[field.name].default == field.default, field.name
    assert NetConfig.of(NameServerConfig()).listen_port == 9876


def test_the_reference_page_is_up_to_date() -> None:
    page = reference_page(NameServerConfig, title="Name server settings", command="mqnamesrv")
    stored = ROOT / "docs" / "reference" / "config-nameserver.md"
    assert stored.read_text(encoding="utf-8") == page, (
        "run `skylark config reference nameserver > docs/reference/config-nameserver.md`"
    )


@pytest.mark.parametrize("key", ["storePathConsumeQueue", "storePathIndex"])
def test_a_place_that_rocketmq_ignores_too_is_a_note_that_says_where_files_lie(key: str) -> None:
    from skylark.broker.config import BrokerConfig

    loaded = load(BrokerConfig, flags=[Flag(key, "/elsewhere")], env={})
    assert not loaded.warnings
    assert any(key in note and "storePathRootDir" in note for note in loaded.notes)
