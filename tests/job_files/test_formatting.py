"""The format of job files in HCL and YAML: what changes, what stays, and that the document never changes."""

import contextlib
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.attempts import limited_cpu
from tests.job_files.test_conversion import FILES, TEXTS, convert, parse
from wharf.job_files.conversion import JobFormat
from wharf.job_files.data_writer import MAX_FORMATTED_CHARS, MAX_FORMATTED_NODES, format_yaml, list_yaml_comments
from wharf.job_files.hcl_formatter import format_hcl
from wharf.languages.hcl.diagnostics import DocumentErrors
from wharf.languages.hcl.documents import parse_document
from wharf.languages.markup import MarkupFormat, parse_markup
from wharf.languages.markup_errors import MarkupError

UNFORMATTED = """\
# first

job   "a"   {
type="x"
      datacenters =   ["a"]   # where
  /* a comment
     of two lines */
    group web {
 count=1
    name_of_it  = 2

    x = 3
 long = [
 1,
   2,
 ]
  task "x" {
\tconfig {
  args = ["-c", <<EOF
  keep  this
     EOF
  ]
        x = merge({a = 1}, {
          b = 2
      cc = 3
   })
   y = "a${
 z}  "
   text = <<-END
        indented ${join(",", [
  "a"])}
      END
   port "x" { to=80 }
  }
  }
  }
}"""
FORMATTED = """\
# first

job "a" {
  type        = "x"
  datacenters = ["a"] # where

  /* a comment
     of two lines */
  group web {
    count      = 1
    name_of_it = 2

    x = 3
    long = [
      1,
      2,
    ]

    task "x" {
      config {
        args = ["-c", <<EOF
  keep  this
     EOF
        ]
        x = merge({ a = 1 }, {
          b  = 2
          cc = 3
        })
        y = "a${
 z}  "
        text = <<-END
        indented ${join(",", [
  "a"])}
      END
        port "x" { to = 80 }
      }
    }
  }
}
"""


def test_hcl_gets_indentation_and_aligned_arguments_and_keeps_the_rest() -> None:
    assert format_hcl(UNFORMATTED) == FORMATTED


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ('{a=1,b  = [1,2],"c"=-1}', '{ a = 1, b = [1, 2], "c" = -1 }'),
        ("1+2*-3", "1 + 2 * -3"),
        ("[for x in [1,2]:x if x>1&&!false]", "[for x in [1, 2] : x if x > 1 && !false]"),
        ('var.a>1?"a":merge( {} , {b=2} ... )', 'var.a > 1 ? "a" : merge({}, { b = 2 }...)'),
        ('upper( "x${ var.a }y{" )', 'upper("x${ var.a }y{")'),
        ("var.b [*] . a", "var.b[*].a"),
        ("a-b", "a-b"),
        ("{a: 1}", "{ a: 1 }"),
        ("(  -1 )", "(-1)"),
        ("1 /* one  two */", "1 /* one  two */"),
        ('f("5%",1)', 'f("5%", 1)'),
        ('f("5$",1)', 'f("5$", 1)'),
    ],
)
def test_signs_of_expressions_have_the_usual_blanks(code: str, expected: str) -> None:
    assert format_hcl(f"locals {{\n  x = {code}\n}}\n") == f"locals {{\n  x = {expected}\n}}\n"


def test_blocks_have_one_empty_line_between_them() -> None:
    text = 'job "a" {\n\n\n  type = "x"\n  # of g\n  group "g" {\n\n  }\n  meta {}\n\n\n\n  group "h" {\n    count = 1\n\n  }\n}\n\n'

    assert format_hcl(text) == (
        'job "a" {\n  type = "x"\n\n  # of g\n  group "g" {\n  }\n\n  meta {}\n\n  group "h" {\n    count = 1\n  }\n}\n'
    )


def test_comments_at_the_ends_of_neighbouring_lines_are_below_each_other() -> None:
    text = 'job "a" {\n  type = "x"    # one\n  priority = 50 # two\n  region = "r"\n  # of all_at_once\n  all_at_once = true // no\n}\n'

    assert format_hcl(text) == (
        'job "a" {\n  type     = "x" # one\n  priority = 50  # two\n  region   = "r"\n'
        "  # of all_at_once\n  all_at_once = true // no\n}\n"
    )


def test_formatted_hcl_stays_as_it_is() -> None:
    assert format_hcl(FORMATTED) == FORMATTED


@pytest.mark.parametrize("name", TEXTS)
def test_the_format_of_hcl_does_not_change_the_job(name: str) -> None:
    formatted = format_hcl(TEXTS[name])

    assert format_hcl(formatted) == formatted
    assert parse(formatted, JobFormat.HCL).document == parse(TEXTS[name], JobFormat.HCL).document


@pytest.mark.parametrize("name", TEXTS)
def test_converted_jobs_are_formatted(name: str) -> None:
    for language in (JobFormat.HCL, JobFormat.YAML):
        source = convert(TEXTS[name], JobFormat.HCL, JobFormat.JSON).text

        text = convert(source, JobFormat.JSON, language).text

        assert (format_hcl(text) if language is JobFormat.HCL else format_yaml(text)) == text


@given(data=st.data())
def test_no_change_of_blanks_changes_the_job(data: Any) -> None:
    text = data.draw(st.sampled_from([file.read_text() for file in FILES]))
    lines = text.split("\n")
    for _ in range(data.draw(st.integers(1, 5))):
        at = data.draw(st.integers(0, len(lines) - 1))
        sign, blank = data.draw(
            st.sampled_from([(" = ", "="), (" = ", "   =  "), (", ", ","), ("{ ", "{"), ("[", "[ ")])
        )
        lines[at] = data.draw(st.sampled_from(["", " ", "\t", "\n\n"])) + lines[at].replace(sign, blank)
    changed = "\n".join(lines)
    try:
        document = parse(changed, JobFormat.HCL).document
    except DocumentErrors:
        return  # Such as a line of a heredoc in which a blank is an error.

    formatted = format_hcl(changed)

    assert parse(formatted, JobFormat.HCL).document == document
    assert format_hcl(formatted) == formatted


@pytest.mark.parametrize(
    "text", ["\n", "# only a comment\n", 'job "a" {}\n', '\ufeffjob "a" {}\n', 'job "a" {\r\n type = "x"\r\n}\r\n']
)
def test_other_files_keep_their_line_ends(text: str) -> None:
    formatted = format_hcl(text)

    assert formatted.count("\r\n") == text.count("\r\n")
    assert formatted.count("\n") == text.count("\n")


def test_the_json_form_of_hcl_stays_as_it_is() -> None:
    assert format_hcl('{"job": {"a": {}}}') == '{"job": {"a": {}}}'


def test_a_file_with_errors_is_not_formatted() -> None:
    with pytest.raises(DocumentErrors, match=r"web\.hcl:1:1"):
        format_hcl("job {", "web.hcl")


UNFORMATTED_YAML = """\
# yaml-language-server: $schema=x
ID:   a # why

variables:
    n: {type: number, default: 3}
TaskGroups:
- Name: g
  Count: "${var.n}"

  # before tasks
  Tasks:
  - {Name: t, Driver: 'raw_exec', Config: {args: [1.10, 0x1F, 1e3, on]}}
  # after the first
  -   Name: u
      Templates:
      - EmbeddedTmpl: |
           # no comment
             text
        # of the template
  # the end
"""
FORMATTED_YAML = """\
# yaml-language-server: $schema=x
ID: a   # why

variables:
  n: {type: number, default: 3}
TaskGroups:
  - Name: g
    Count: "${var.n}"

    # before tasks
    Tasks:
      - {Name: t, Driver: 'raw_exec', Config: {args: [1.10, 0x1F, 1e3, on]}}
      # after the first
      - Name: u
        Templates:
          - EmbeddedTmpl: |
              # no comment
                text
            # of the template
  # the end
"""


def test_yaml_gets_indentation_and_keeps_comments_quotes_and_numbers() -> None:
    formatted = format_yaml(UNFORMATTED_YAML)

    assert formatted == FORMATTED_YAML
    assert format_yaml(formatted) == formatted


@pytest.mark.parametrize("name", [file.name for file in FILES])
def test_the_format_of_yaml_does_not_change_the_document(name: str) -> None:
    text = convert(TEXTS[name], JobFormat.HCL, JobFormat.YAML).text
    widened = "\n".join(f"{' ' * (len(line) - len(line.lstrip()))}{line}" for line in text.split("\n"))
    try:
        value = parse_markup(widened, MarkupFormat.YAML).value
    except Exception:  # wider lines of block texts are still texts, but other lines may be wrong
        return

    formatted = format_yaml(widened)

    assert parse_markup(formatted, MarkupFormat.YAML).value == value
    assert format_yaml(formatted) == formatted


def test_comments_of_yaml_are_found_outside_of_texts_only() -> None:
    assert list_yaml_comments("a: 'b # c' # one\nd: |\n  # no\n# two\n") == ["# one", "# two"]


@pytest.mark.parametrize(
    "text", ["a:\n" + "- x\n" * MAX_FORMATTED_NODES, "a: " + "x" * MAX_FORMATTED_CHARS], ids=["values", "characters"]
)
def test_a_large_file_in_yaml_is_not_formatted(text: str) -> None:
    with pytest.raises(
        MarkupError, match="the limits of YAML files that are formatted: use the formatter of your editor"
    ):
        format_yaml(text)


def test_many_dollars_are_formatted_in_linear_time() -> None:
    text = f'a = "{"$" * 500_000}"\n'

    with limited_cpu(5.0, "formatting"):
        formatted = format_hcl(text)

    assert formatted == text


def test_signs_before_braces_do_not_change_the_format_of_other_lines() -> None:
    text = 'a = "$x${1}100 %{ if true }x%{ endif }$$${ }$"\nbb = { x = 1 }\n'

    assert format_hcl(text) == text.replace("a = ", "a  = ", 1)


@pytest.mark.parametrize(
    ("text", "line_end"),
    [("ID: a\r\nMeta:\r\n    b:   c   # x\r\n    # y\r\n", "\r\n"), ("ID: a\r\nMeta:\n    b: c # x\n", "\n")],
)
def test_line_ends_of_yaml_are_those_of_most_lines(text: str, line_end: str) -> None:
    formatted = format_yaml(text)

    assert formatted.count(line_end) == text.count("\n")
    assert formatted == format_yaml(text.replace("\r\n", "\n")).replace("\n", line_end)
    assert format_yaml(formatted) == formatted


def test_a_map_with_one_entry_in_a_list_keeps_its_braces() -> None:
    text = "Networks: [{DynamicPorts: [{Label: http}]}]\n"

    assert format_yaml(text) == text


def list_documented_files() -> list[tuple[str, str]]:
    """Return the texts in HCL of all pages without errors of syntax, each with the name of its page."""
    found: list[tuple[str, str]] = []
    for path in sorted([*Path("docs").rglob("*.md"), Path("README.md")]):
        for text in re.findall(r"^```hcl\n(.*?)^```", path.read_text(), re.MULTILINE | re.DOTALL):
            if path.name == "access.md" or "cuont" in text:
                continue  # Policies, and the file that shows errors.
            with contextlib.suppress(DocumentErrors):
                parse_document(text)
                found.append((str(path), text))
    return found


def test_the_files_of_the_pages_are_formatted() -> None:
    unformatted = [(page, text) for page, text in list_documented_files() if format_hcl(text) != text]

    assert unformatted == []
