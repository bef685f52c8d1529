"""What a topic or a group may be called."""

import pytest

from skylark.errors import InvalidName
from skylark.model import check_group_name, check_topic_name


@pytest.mark.parametrize("name", ["T", "a-b_C9", "%RETRY%group", "ns%topic", "a|b", "t" * 127])
def test_letters_digits_and_four_signs_make_a_topic_name(name: str) -> None:
    check_topic_name(name)


@pytest.mark.parametrize(
    "name",
    [
        "",
        "t" * 128,
        "../x",
        "a/b",
        "a b",
        "a.b",
        "a\nb",
        "a\0b",
        "topic\n",
        "标签",
        "a@b",
        "٣",
        "T​",
    ],
)
def test_a_topic_name_that_could_be_a_path_or_a_key_is_refused(name: str) -> None:
    with pytest.raises(InvalidName) as caught:
        check_topic_name(name)
    assert caught.value.kind == "topic"
    assert caught.value.name == name


def test_a_group_name_may_be_longer_than_a_topic_name() -> None:
    check_group_name("g" * 255)
    with pytest.raises(InvalidName, match="longer than 255"):
        check_group_name("g" * 256)
    with pytest.raises(InvalidName, match="is empty"):
        check_group_name("")


def test_the_refusal_says_which_character_and_what_would_do() -> None:
    with pytest.raises(InvalidName, match=r"contains '/'; use letters, digits"):
        check_group_name("a/b")
