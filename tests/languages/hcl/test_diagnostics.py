"""The text of errors (reference section 12): place, line with a mark, second places and fixes."""

from functools import partial

import pytest

from tests.languages.hcl.evaluations import FREE_SCHEMA, find_errors, list_errors
from wharf.languages.hcl.diagnostics import (
    MAX_COLLECTED,
    Diagnostic,
    DiagnosticList,
    DocumentErrors,
    SourceFile,
    SourceRange,
)
from wharf.languages.hcl.documents import parse_document


def test_an_error_shows_the_line_a_mark_and_the_fix() -> None:
    source = SourceFile("job.hcl", "\n" * 11 + '        memory = "256MB"\n')
    place = SourceRange(source, 28, 35)
    diagnostic = Diagnostic(place, '"memory" takes a whole number of megabytes, not "256MB"', "write memory = 256")

    assert (
        'job.hcl:12:18: "memory" takes a whole number of megabytes, not "256MB"\n'
        '   12 |         memory = "256MB"\n'
        "      |                  ^^^^^^^\n"
        "   write memory = 256"
    ) == diagnostic.render()


def test_tabs_stay_in_the_excerpt_and_in_the_line_of_the_mark() -> None:
    assert find_errors("a {\n\tb = 5m\n}\n", FREE_SCHEMA).splitlines()[1:3] == [
        "    2 | \tb = 5m",
        "      | \t    ^^",
    ]


def test_a_long_line_is_cut_around_the_mark() -> None:
    lines = find_errors(f'a = "{"x" * 500}" 5 "{"y" * 500}"\n', FREE_SCHEMA).splitlines()

    assert all(len(line) < 140 for line in lines)
    assert lines[1].startswith("    1 | ...x")
    assert lines[1].endswith("y...")
    assert "5" == lines[1][lines[2].index("^")]


def test_wide_characters_move_the_mark() -> None:
    lines = find_errors('a = "日本" 5\n', FREE_SCHEMA).splitlines()

    assert 8 + 4 + 6 + 1 == lines[2].index("^")


def test_control_characters_are_replaced_in_the_excerpt() -> None:
    text = find_errors('a = "\x1b[31m\u202e" 5\n', FREE_SCHEMA)

    assert "\x1b" not in text
    assert "\u202e" not in text


def test_names_in_messages_hold_no_control_characters_and_line_breaks() -> None:
    errors = find_errors('{"job":{"x":{"\\u001b[31m\\nfoo":1}}}')

    assert errors.splitlines()[0] == 'job.hcl:1:14: no argument "\ufffd[31m foo" is allowed in job'


def test_errors_are_sorted_by_place() -> None:
    errors = list_errors('job "x" {\n zzz = 1\n a = nope()\n foo {\n }\n yyy = 1\n}\n')

    assert [2, 3, 4, 6] == [int(error.split(":")[1]) for error in errors]


def test_the_file_is_named_as_the_caller_names_it() -> None:
    with pytest.raises(DocumentErrors, match=r"^shop\.nomad\.hcl:1:5: expected a value"):
        parse_document("a = '\n", "shop.nomad.hcl")


def test_an_unknown_name_has_no_consequences() -> None:
    text = (
        'variable "v" {\n type = lst\n default = 1\n}\nlocals {\n a = var.v\n}\njob "x" {\n a = upper(local.a) + 1\n}\n'
    )

    assert ['job.hcl:2:9: no type "lst" exists'] == list_errors(text)


def test_syntax_errors_of_the_file_hide_everything_else() -> None:
    assert ["job.hcl:2:6: 5m is not a number"] == list_errors('job "x" {\n a = 5m\n foo = 1\n}\n', values="v = 1\n")


def test_errors_of_declarations_and_of_the_body_are_reported_together() -> None:
    text = 'variable "v" {\n}\nlocals {\n a = nope()\n}\njob "x" {\n foo = 1\n}\n'

    assert [
        'job.hcl:1:10: the variable "v" has no value',
        'job.hcl:4:6: no function "nope" exists',
        'job.hcl:7:2: no argument "foo" is allowed in job',
    ] == list_errors(text)


def test_unknown_names_and_wrong_values_of_the_body_are_collected_together() -> None:
    text = 'job "x" {\n foo = 1\n a = [nope(), var.x]\n b = "${local.y}${1 + true}"\n}\n'

    assert [
        'job.hcl:2:2: no argument "foo" is allowed in job',
        'job.hcl:3:7: no function "nope" exists',
        'job.hcl:3:15: no variable "x" is declared',
        'job.hcl:4:9: no local value "y" is declared',
        "job.hcl:4:23: operator +: expected a number, got a bool",
    ] == list_errors(text)


@pytest.mark.parametrize(
    ("text", "message", "fix"),
    [
        # The faults that people meet most.
        ('job "x" {\n meta {\n com.example = 1\n }\n}\n', 'expected "=" or "{" after com', "write an object"),
        ('job "x" {\n type "batch"\n}\n', 'expected a label or "{"', "for an argument, write type = ..."),
        ('variable "v" {\n}\njob "x" {\n}\n', 'the variable "v" has no value', "set it with --var v=..."),
        ('job "x" {\n a = file("x")\n}\n', "the function file reads files", "command line tool"),
        ('job "x" {\n a { b = 1 c = 2 }\n}\n', "a block on one line has only one argument", "put each argument"),
        ('job "x" {\n meta {\n "a.b" = 1\n }\n}\n', "the name of an argument has no quotes", 'meta = { "a.b" = ... }'),
        ('job "x" {\n env {\n "a.b" = 1\n }\n}\n', "the name of an argument has no quotes", 'env = { "a.b" = ... }'),
        (
            'job "x" {\n config {\n "a.b" = 1\n }\n}\n',
            "the name of an argument has no quotes",
            'labels = { "a.b" = ... }',
        ),
        ('job "x" {\n config {\n a.b = 1\n }\n}\n', 'expected "=" or "{" after a', 'labels = { "a.x" = ... }'),
        ('job "x" {\n priority 50\n}\n', 'expected "=" or "{" after priority', "write priority = ..."),
        ('job "x" {\n a = 1,\n}\n', "an argument ends with its line", "delete the comma"),
        ('job "x" {\n a: 1\n}\n', 'expected "=" or "{" after a', "write a = ..."),
        ('job "x" {\n a = "${X:-y}"\n}\n', "of the interpolation", "write $${ instead of ${"),
        ('job "x" {\n a = "%{ x }"\n}\n', "expected a directive", "write %%{"),
        ('job "[[ .name ]]" {\n a = [[ .x ]]\n}\n', 'expected a value, found "."', "render it first"),
        ('job "x" {\n a = [[ var "x" . ]]\n}\n', 'expected "," or "]"', "render the file first"),
        ('job "x" {\n[[ range $x := .y ]]\n a = 1\n}\n', 'found "[["', "render it first"),
        ('job "x" {\n a = {{ x }}\n}\n', 'found "{{"', "render it first"),
        ('job "x" {\n update {\n }\n update {\n }\n}\n', "may occur only once", "the first is at: job.hcl:2:2"),
        ('job "x" {\n group "g" {\n', "the block group has no closing brace", "write } on a line of its own"),
        (
            'job "x" {\n a = 256MB\n}\n',
            "256MB is not a number",
            "write a = 256, without a unit: the number is in megabytes",
        ),
        ('job "x" {\n tpye = 1\n}\n', 'no argument "tpye"', 'did you mean "type"?'),
        ('job "x" {\n count = 1\n}\n', 'no argument "count"', "count belongs to group"),
        ('job "x" {\n config {\n }\n}\n', 'no block "config"', "config belongs to task"),
        ('job "x" {\n config = {\n }\n}\n', 'no argument "config"', "config is a block of task"),
        ('job "x" {\n a = tostring(1)\n}\n', 'no function "tostring"', "write convert(x, string)"),
        ('job "x" {\n update = {\n }\n}\n', '"update" is a block, not an argument', "delete the =: write update {"),
    ],
)
def test_a_frequent_fault_has_a_message_that_says_what_to_write(text: str, message: str, fix: str) -> None:
    errors = find_errors(text)

    assert message in errors
    assert fix in errors


def test_fixes_are_found_only_for_errors_that_are_shown() -> None:
    source = SourceFile("job.hcl", "x" * 30)
    diagnostics = DiagnosticList()
    found: list[int] = []

    def find_fix(number: int) -> str:
        found.append(number)
        return "a fix"

    for number in range(30):
        diagnostics.add(source, number, number + 1, "an error", partial(find_fix, number))
    with pytest.raises(DocumentErrors) as raised:
        diagnostics.raise_if_any()

    assert [] == found
    assert "a fix" in raised.value.text
    assert list(range(20)) == found


def test_a_reply_lists_how_many_errors_were_left_out() -> None:
    text = "".join(f" x{number} = 1\n" for number in range(30))
    errors = find_errors(f'job "x" {{\n{text}}}\n')

    assert errors.endswith("and 10 more errors")


def test_errors_that_are_not_stored_are_counted() -> None:
    text = "".join(f" x{number} = 1\n" for number in range(MAX_COLLECTED + 500))

    assert find_errors(f'job "x" {{\n{text}}}\n').endswith(f"and {MAX_COLLECTED + 480} more errors")
