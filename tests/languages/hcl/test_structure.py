"""The structure of a file (reference section 3): arguments, blocks, one-line blocks, the top level."""

import pytest

from tests.languages.hcl.evaluations import FREE_SCHEMA, find_errors, list_errors, read_body, read_job
from wharf.languages.hcl.diagnostics import DocumentErrors
from wharf.languages.hcl.documents import parse_document


def test_a_body_has_arguments_and_blocks() -> None:
    assert {"a": 1, "b": [("x", "y", {"c": 2})]} == read_body('a = 1\nb "x" y {\n  c = 2\n}\n')


def test_the_label_of_a_job_may_be_a_bare_name() -> None:
    assert {"a": 1} == read_job("job web {\n  a = 1\n}\n")


def test_an_argument_that_occurs_twice_names_both_places() -> None:
    text = find_errors("type = 1\nx = 2\ntype = 2\n", FREE_SCHEMA)

    assert text.startswith('job.hcl:3:1: the argument "type" occurs twice\n')
    assert "the first is at: job.hcl:1:1" in text


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("name: 1", 'expected "=" or "{" after name, found ":"'),
        ("name 1", 'expected "=" or "{" after name, found "1"'),
        ('"a.b" = 1', "the name of an argument has no quotes"),
        ("a = 1,", "an argument ends with its line"),
        ("a = 1;", "an argument ends with its line"),
        ("a = 1 b = 2", "expected the end of the line, found another argument or block"),
        ("a =", '"a" has no value on its line'),
        ("a = 1 2", 'expected an operator or the end of the line, found "2"'),
        ("a", 'expected "=" or "{" after a, found the end of the line'),
        ("a\n=\n1", 'expected "=" or "{" after a, found the end of the line'),
        (", a = 1", "an argument ends with its line"),
        ("= 1", 'expected an argument or a block, found "="'),
    ],
)
def test_another_form_of_an_argument_is_an_error(line: str, message: str) -> None:
    assert list_errors(f"{line}\n", FREE_SCHEMA)[0].endswith(message)


@pytest.mark.parametrize("text", ["x { a = 1 ,", "x { a = 1 , ", "x { a = 1;", "x { a = 1"])
def test_the_errors_of_a_file_that_is_cut_off_have_places_in_its_text(text: str) -> None:
    with pytest.raises(DocumentErrors) as caught:
        parse_document(text)

    assert [error.message for error in caught.value.diagnostics if error.place.end > len(text)] == []


def test_a_quoted_name_gets_the_advice_to_write_an_object() -> None:
    assert 'write an object: meta = { "a.b" = ... }' in find_errors('meta {\n  "a.b" = 1\n}\n', FREE_SCHEMA)


@pytest.mark.parametrize(
    ("text", "body"),
    [
        ('port "http" { to = 80 }\n', {"port": [("http", {"to": 80})]}),
        ("constraint { distinct_hosts = true }\n", {"constraint": [({"distinct_hosts": True},)]}),
        ("env {}\n", {"env": [({},)]}),
        ("env { }\n", {"env": [({},)]}),
        ("env {} # comment\n", {"env": [({},)]}),
        ("env { # comment\n}\n", {"env": [({},)]}),
        ("env { /* comment */ a = 1 /* comment */ }\n", {"env": [({"a": 1},)]}),
        ("env {\n\n}\n", {"env": [({},)]}),
        ("env {}", {"env": [({},)]}),
        ("b { a = [\n1,\n2\n] }\n", {"b": [({"a": [1, 2]},)]}),
    ],
)
def test_a_block_may_be_on_one_line(text: str, body: dict[str, object]) -> None:
    assert body == read_body(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('port "db" { static = 1 to = 2 }\n', "1:24: a block on one line has only one argument"),
        ('group "g" { task "t" {\n a = 1\n }\n}\n', "1:13: a block on one line has no other block inside"),
        ('group "g" { task "t" {} }\n', "1:13: a block on one line has no other block inside"),
        (
            'port "x" { to = 1 # comment\n}\n',
            "1:19: a block that begins with an argument on its first line is closed on that line",
        ),
        ("b { a = 1\n}\n", "1:10: a block that begins with an argument on its first line is closed on that line"),
        ("b {\n a = 1 }\n", "2:8: the } that closes a block is on a line of its own"),
        ("b {\n} c = 1\n", "2:3: expected the end of the line, found another argument or block"),
        ("b {} {}\n", '1:6: expected an operator or the end of the line, found "{"'),
        ("b\n{\n}\n", '1:2: expected "=" or "{" after b, found the end of the line'),
        ('b "x"\n{\n}\n', '1:6: expected "{", found the end of the line'),
        ('b "x" = {\n}\n', '1:7: expected a label or "{", found "="'),
    ],
)
def test_another_form_of_a_block_is_an_error(text: str, message: str) -> None:
    assert f"job.hcl:{message}" == list_errors(text, FREE_SCHEMA)[0]


def test_one_fault_of_a_one_line_block_has_one_message() -> None:
    assert 1 == len(list_errors('a {\n  port "db" { static = 1 to = 2 }\n  x = 1\n}\ny = 2\n', FREE_SCHEMA))
    assert 1 == len(list_errors('group "g" { task "t" {\n a = 1\n b = 2\n }\n}\ny = 2\n', FREE_SCHEMA))


def test_commas_between_the_arguments_of_a_one_line_block_are_not_reported_too() -> None:
    text = 'port "db" { static = 1, to = 2, x = 3 }\ny = 2\n'

    assert ["job.hcl:1:25: a block on one line has only one argument"] == list_errors(text, FREE_SCHEMA)


def test_a_comma_after_the_argument_of_a_one_line_block_is_an_error() -> None:
    assert ["job.hcl:1:10: an argument ends with its line"] == list_errors("a { b = 1, }\n", FREE_SCHEMA)


# -- the schema


@pytest.mark.parametrize(
    ("body", "message", "fix"),
    [
        ("dirver = 1", 'no argument "dirver" is allowed in task', 'did you mean "driver"?'),
        ("count = 1", 'no argument "count" is allowed in task', "count belongs to group"),
        ("network {\n}", 'no block "network" is allowed in task', "network belongs to group"),
        ("config = {\n}", '"config" is a block, not an argument', "delete the =: write config {"),
        ("resources = 1", '"resources" is a block, not an argument', "write resources { ... }"),
        ("driver {\n}", '"driver" is an argument, not a block', "write driver = ..."),
        ("resorces {\n}", 'no block "resorces" is allowed in task', 'did you mean "resources"?'),
        ('resources "x" {\n}', "a resources has no label", "delete this label"),
    ],
)
def test_what_the_schema_does_not_allow_is_an_error(body: str, message: str, fix: str) -> None:
    text = find_errors(f'job "x" {{\n group "g" {{\n task "t" {{\n{body}\n}}\n}}\n}}\n')

    assert message in text.splitlines()[0]
    assert fix in text


def test_a_missing_label_is_an_error() -> None:
    text = find_errors("job {\n}\n")

    assert "a job needs a label with its name" in text
    assert 'write job "name" {' in text


def test_a_block_that_may_occur_once_names_both_places() -> None:
    text = find_errors('job "x" {\n update {\n }\n update {\n }\n}\n')

    assert text.startswith('job.hcl:4:2: the block "update" may occur only once')
    assert "the first is at: job.hcl:2:2" in text


def test_a_map_may_be_a_block_or_an_argument_but_not_both() -> None:
    assert {"meta": {"a": 1}} == read_job('job "x" {\n meta = { a = 1 }\n}\n')
    assert {"meta": [({"a": 1},)]} == read_job('job "x" {\n meta {\n a = 1\n }\n}\n')
    assert '"meta" is a block here, and an argument before' in find_errors(
        'job "x" {\n meta = { a = 1 }\n meta {\n }\n}\n'
    )


def test_the_top_level_holds_one_job() -> None:
    assert list_errors("") == ["job.hcl:1:1: the file has no block job"]
    assert ['job.hcl:3:1: the block "job" may occur only once'] == list_errors('job "a" {\n}\njob "b" {\n}\n')
    assert ['job.hcl:3:1: no argument "a" is allowed at the top level'] == list_errors('job "a" {\n}\na = 1\n')
    assert ['job.hcl:3:1: no block "group" is allowed at the top level'] == list_errors(
        'job "a" {\n}\ngroup "x" {\n}\n'
    )


def test_declarations_may_stand_in_any_order() -> None:
    text = 'job "x" {\n a = local.l\n}\nlocals {\n l = var.v\n}\nvariables {\n v = 1\n}\nlocals {\n m = 2\n}\n'

    assert {"a": 1} == read_job(text)


# -- unclosed blocks


def test_an_unclosed_block_names_the_first_line_whose_indentation_disagrees() -> None:
    text = find_errors('job "a" {\n  group "b" {\n    task "c" {\n      driver = "x"\n  }\n}\n')

    assert text.startswith("job.hcl:3:5: the block task has no closing brace\n")
    assert "the first line whose indentation disagrees is: job.hcl:5:3" in text


def test_an_unclosed_block_before_another_block_is_found() -> None:
    text = find_errors('job "a" {\n  group "b" {\n    task "c" {\n      x = 1\n    task "d" {\n    }\n  }\n}\n')

    assert text.startswith("job.hcl:3:5: the block task has no closing brace\n")


def test_an_unclosed_block_at_the_end_of_the_file_is_the_innermost() -> None:
    assert ["job.hcl:2:3: the block group has no closing brace"] == list_errors('job "a" {\n  group "b" {\n    x = 1\n')


def test_a_brace_without_a_block_is_an_error() -> None:
    assert ['job.hcl:3:1: found "}", but no block is open'] == list_errors("a {\n}\n}\n", FREE_SCHEMA)


# -- all errors of a stage


def test_all_syntax_errors_are_found_in_one_run() -> None:
    text = "a = [1,\n 2\nb = 3\nc = 4 5\nd {\n e = 5m\n f = 'x'\n g = max(1\n}\nh = {{ x }}\ni = 1\n"

    assert [
        'job.hcl:3:1: the list has no "]" before b',
        'job.hcl:4:7: expected an operator or the end of the line, found "5"',
        "job.hcl:6:6: 5m is not a number",
        'job.hcl:7:6: expected a value, found "\'"',
        'job.hcl:9:1: expected "," or ")", found "}"',
        'job.hcl:10:5: expected a value, found "{{"',
    ] == list_errors(text, FREE_SCHEMA)


def test_a_string_over_several_lines_is_one_error() -> None:
    text = 'a = "one\ntwo three\nfour"\nb = 5m\nc {\n d = "x\n}\ne = 1\n'

    assert [
        "job.hcl:1:5: this string has no closing quote on its line",
        "job.hcl:4:5: 5m is not a number",
        "job.hcl:6:6: this string has no closing quote on its line",
    ] == list_errors(text, FREE_SCHEMA)


def test_at_most_twenty_errors_are_reported() -> None:
    assert 20 == len(list_errors("a b c\n" * 100, FREE_SCHEMA))
