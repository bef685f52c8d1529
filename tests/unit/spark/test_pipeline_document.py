"""Pipeline files as text: lines, the environment, and what YAML may not do here."""

import pytest

from skylark.errors import ConfigError
from skylark.spark.pipelines.document import Place, parse_yaml, substituted


def parsed(text, **environment):
    return parse_yaml(text, "a.yaml", environment)


def refusal(text, **environment):
    with pytest.raises(ConfigError) as caught:
        parsed(text, **environment)
    return str(caught.value)


def test_every_value_knows_its_line_and_the_keys_that_lead_to_it():
    root = parsed("a: 1\nb:\n  c: [x, y]\n  d: true\n")
    inner = root.items()["b"].items()
    assert (inner["c"].place.line, inner["c"].place.path) == (3, "b.c")
    assert inner["c"].texts() == ("x", "y")
    assert inner["d"].flag() is True
    assert root.items()["a"].text() == "1"


def test_a_date_is_the_text_that_was_written():
    assert parsed("t: 2026-11-15T10:00:00Z").items()["t"].text() == "2026-11-15T10:00:00Z"


@pytest.mark.parametrize(
    "written", ["NO", "1.10", "1_000", "0x1F", "1e3", "True", ".inf", "12:30", "=", "<<"]
)
def test_a_value_is_the_text_that_was_written(written):
    assert parsed(f"a: {written}\nb: [{written}]").items()["a"].text() == written
    assert parsed(f"b: [{written}]").items()["b"].texts() == (written,)


@pytest.mark.parametrize(("written", "flag"), [("yes", True), ("Off", False), ("TRUE", True)])
def test_a_truth_has_the_words_of_yaml(written, flag):
    assert parsed(f"a: {written}").items()["a"].flag() is flag


@pytest.mark.parametrize("written", ["", "~", "null"])
def test_nothing_is_no_text(written):
    with pytest.raises(ConfigError, match=r"a\.yaml:1: a: a text is needed, and this is nothing"):
        parsed(f"a: {written}").items()["a"].text()


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("a: !!python/object/apply:os.system [ls]", 1, "tag"),
        ("a: 1\nb: !file /etc/passwd", 2, "tag"),
        ("a: &x [1]\nb: *x", 1, "aliases"),
        ("a: 1\nb:\n  c: &x ck", 3, "b.c: anchors (&) and aliases (*) are not allowed"),
        ("a: 1\n&x b: 2", 2, "anchors"),
        ("a: !!str &x b", 1, "anchors"),
        ("&x {a: 1}", 1, "anchors"),
        ("a: *x", 1, "undefined alias"),
        ("a: !!value [b]", 1, "tag"),
        ("a: !!merge {b: c}", 1, "tag"),
        ("a: 1\nb: 2\na: 3", 3, "a is here twice"),
        ("a: [1", 1, "not YAML"),
        ("a: 1\n b: 2", 2, "not YAML"),
        ("", 1, "empty"),
        ("a: 1\n---\nb: 2", 2, "not YAML"),
        ("{[a]: 1}", 1, "plain text"),
        ("a: " + "[" * 30 + "]" * 30, 1, "nests too deep"),
        ("a: " + "[" * 50_000, 1, "nests too deep"),
        ("a: \x00", 1, "not YAML"),
        ("a: '" + "x" * (1 << 20) + "'", 1, "at most"),
    ],
)
def test_what_yaml_can_do_and_a_pipeline_may_not_is_refused(text, line, words):
    said = refusal(text)
    assert said.startswith(f"a.yaml:{line}: ")
    assert words in said
    assert "\n" not in said


def test_the_environment_is_put_in_as_text_whatever_it_holds():
    root = parsed("a: ${X}/${Y:-b}${Z:-}\nb: $${X} $X 5$", X="c: [d")
    assert root.items()["a"].text() == "c: [d/b"
    assert root.items()["b"].text() == "${X} $X 5$"


def test_an_environment_variable_that_is_not_set_is_named_with_its_line():
    said = refusal("a: 1\nb:\n  url: jdbc:${DB}")
    assert said == (
        "a.yaml:3: b.url: the environment variable DB is not set; set it, or write ${DB:-default}"
    )
    assert "begins a name" in refusal("a: ${not a name}")


def test_an_empty_variable_is_set():
    assert substituted("<${X:-y}>", {"X": ""}, Place("f", 1)) == "<>"
