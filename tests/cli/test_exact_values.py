"""Values of files and arguments reach the server as they are written, or are refused with their line and column."""

from pathlib import Path

import pytest

from tests.cli.terminal import Terminal
from wharf.cli.common.documents import parse_json, parse_yaml
from wharf.cli.common.errors import CliError


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("Count: .inf", "1:8: .inf is not a finite number"),
        ("a:\n  - -.INF", "2:5: -.INF is not a finite number"),
        ("CPU: .nan", "1:6: .nan is not a finite number"),
        ("Count: 1e400", "1:8: the number 1e400 is too large"),
        ("Count: 1e-400", "1:8: the number 1e-400 is too small: write 0"),
        (f"Count: {'9' * 5_000}", f"1:8: the number {'9' * 40}... is too long: it has 5,000 characters"),
        ("a: !!int x", '1:4: "x" is not of the type !!int'),
        ("a: !!bool x", '1:4: "x" is not of the type !!bool'),
        ("a: !!null x", '1:4: "x" is not of the type !!null'),
        ("a: !!binary aGk=", "1:4: the type !!binary is not supported: write a text, a number, a list or a map"),
        ("a: !!set {x, y}", "1:4: the type !!set is not supported: write a text, a number, a list or a map"),
        ("[a, b]: c", "1:1: a key must be a text, not a list or a map"),
        ("1: a\n'1': b", '2:1: the key "1" occurs twice: remove one'),
        ('a: "\\ud800"', "1:4: the text has half of a character, \\ud800: write both halves, or remove it"),
    ],
)
def test_a_value_of_yaml_that_cannot_be_sent_is_refused_with_its_position(text: str, problem: str) -> None:
    with pytest.raises(CliError) as refusal:
        parse_yaml("web.yaml", text)

    assert str(refusal.value) == f"web.yaml:{problem}"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('{"Count": NaN}', "1:11: NaN is not a finite number"),
        ('{"a": "NaN 1e400 \\" 1e400",\n "Count": -Infinity}', "2:11: -Infinity is not a finite number"),
        ('{"Count": 1e400}', "1:11: the number 1e400 is too large"),
        ('{"Count": [0.0, 1e-400]}', "1:17: the number 1e-400 is too small: write 0"),
        (f'{{"Count": {"9" * 5_000}}}', f"1:11: the number {'9' * 40}... is too long: it has 5,000 characters"),
        (
            '{"a": "\\ud83d\\ude00", "b\\udc00": 1}',
            "1:23: the text has half of a character, \\udc00: write both halves",
        ),
    ],
)
def test_a_value_of_json_that_cannot_be_sent_is_refused_with_its_position(text: str, problem: str) -> None:
    with pytest.raises(CliError) as refusal:
        parse_json("web.json", text)

    assert str(refusal.value).startswith(f"web.json:{problem}")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1.10: x", {"1.10": "x"}),
        ("true: x", {"true": "x"}),
        ("~: x", {"~": "x"}),
        ("a: 2001-12-14 21:59:43.10 -5", {"a": "2001-12-14 21:59:43.10 -5"}),
        ("2020-01-01: 2020-01-01", {"2020-01-01": "2020-01-01"}),
        ("Operand: =", {"Operand": "="}),
        ("a: &n 1\n*n : b", {"a": 1, "1": "b"}),
        ("a:\nb: null\nc: !!float 3\nd: 1e2", {"a": None, "b": None, "c": 3.0, "d": 100.0}),
        ("<<: {a: 1}\nb: 2", {"a": 1, "b": 2}),
    ],
)
def test_keys_and_dates_of_yaml_are_the_texts_of_the_file(text: str, value: object) -> None:
    assert parse_yaml("web.yaml", text) == value


@pytest.mark.parametrize(
    ("name", "text"), [("a.yaml", "ID: web\nPriority: .inf\n"), ("a.json", '{"ID":"web","Priority":NaN}')]
)
@pytest.mark.parametrize("words", [("job", "run"), ("job", "validate"), ("job", "run", "--output")])
def test_a_job_file_with_an_infinite_number_is_refused(
    terminal: Terminal, tmp_path: Path, words: tuple[str, ...], name: str, text: str
) -> None:
    (tmp_path / name).write_text(text)

    result = terminal.run(*words, str(tmp_path / name))

    assert (result.code != 0, "is not a finite number" in result.err, result.out) == (True, True, "")


def test_a_variable_file_with_a_value_that_is_not_a_text_is_refused(terminal: Terminal, tmp_path: Path) -> None:
    (tmp_path / "v.yaml").write_text("user: web\nport: 1.10\n")

    result = terminal.run("var", "put", "jobs/web", "--file", str(tmp_path / "v.yaml"))

    assert result.err == f"wharf: {tmp_path}/v.yaml: the value of port is not a text: put it in double quotes\n"


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("var", "put", "jobs/web", "a=1", "a=2"), "item 2: the key occurs twice: remove one"),
        (("node", "meta", "apply", "n", "a=1", "a=2"), "change a=2: the key occurs twice: remove one"),
        (("node", "meta", "apply", "n", "a=1", "--unset", "a"), "--unset a: the key also gets a new value: remove one"),
    ],
)
def test_a_key_that_is_given_twice_is_refused(terminal: Terminal, words: tuple[str, ...], problem: str) -> None:
    assert terminal.run(*words).err == f"wharf: {problem}\n"


def test_a_field_of_a_record_that_is_given_in_two_spellings_is_refused(terminal: Terminal, tmp_path: Path) -> None:
    (tmp_path / "n.json").write_text('{"Name": "shop", "name": "web"}')

    result = terminal.run("namespace", "apply", str(tmp_path / "n.json"))

    assert result.err == f"wharf: {tmp_path}/n.json: the field Name occurs twice, once as name: remove one\n"


def test_json_and_a_template_exclude_each_other(terminal: Terminal) -> None:
    result = terminal.run("job", "list", "--json", "--format", "{{.ID}}")

    assert (result.code != 0, result.out) == (True, "")
    assert "--json and --format exclude each other: use one of them" in result.err
