"""The check of private words in names and texts."""

import pytest

from tools.wording import check_source


def words_found(source: str) -> list[str]:
    return [finding.message.split('"')[1] for finding in check_source("src/wharf/example.py", source)]


@pytest.mark.parametrize(
    ("source", "word"),
    [
        ("def tell_nodes(): ...", "tell_nodes"),
        ("class ToldReports: ...", "ToldReports"),
        ("_nodes_heard = 1", "_nodes_heard"),
        ("def f(likeness): ...", "likeness"),
        ("self.forgotten_runs = 1", "forgotten_runs"),
        ("import operations as anew", "anew"),
    ],
)
def test_a_private_word_in_a_name_is_found(source: str, word: str) -> None:
    assert words_found(source) == [word]


@pytest.mark.parametrize("source", ["def f(kept): ...", "given = 1", "_asked = 1", "def wanted(): ..."])
def test_a_participle_as_a_whole_name_is_found(source: str) -> None:
    assert len(words_found(source)) == 1


@pytest.mark.parametrize("source", ["kept_logs = 1", "is_given = 1", "storyteller = 1", "indoors = 1"])
def test_a_name_that_only_contains_the_letters_of_a_private_word_passes(source: str) -> None:
    assert words_found(source) == []


@pytest.mark.parametrize(
    ("source", "phrase"),
    [
        ('"""The node is told to stop."""', "is told"),
        ('raise ValueError(f"{name} is none of these")', "is none"),
        ("x = 1  # Looked up anew.", "anew"),
        ("log.warning('mended the log')", "mended"),
    ],
)
def test_a_private_phrase_in_a_docstring_message_or_comment_is_found(source: str, phrase: str) -> None:
    assert words_found(source) == [phrase]


@pytest.mark.parametrize(
    "text", ["There is none.", "It is None.", "The caller cannot tell which one.", "so long as 3 s"]
)
def test_plain_phrases_with_the_same_words_pass(text: str) -> None:
    assert words_found(f'"""{text}"""') == []


def test_a_finding_names_the_line_and_what_to_write() -> None:
    (finding,) = check_source("src/wharf/example.py", '"""One.\n\nIt is said to the node.\n"""')

    assert (finding.line, finding.rule) == (3, "private-word")
    assert finding.message == 'private word "is said": write report, return, send, print, log or show'
