"""Comments of job files: each one stays beside its field in every conversion."""

import re

import pytest

from tests.job_files.test_conversion import FILES, HCL_TEMPLATE, convert
from wharf.job_files.comments import find_markup_comments
from wharf.job_files.conversion import JobFormat
from wharf.job_files.hcl_formatter import find_hcl_comments, format_hcl
from wharf.languages.markup import MarkupFormat, parse_markup

COMMENT_FORMATS = [JobFormat.HCL, JobFormat.YAML, JobFormat.TOML]
DATA_FORMATS = [JobFormat.YAML, JobFormat.TOML]
TEXTS = {file.name: file.read_text() for file in FILES if not file.read_text().startswith("{")} | {
    "template": HCL_TEMPLATE
}
_LINE = re.compile(r'[ \t]*(?:[\w-]+ *= *(?:"[^"]*"|[\w.]+|\[[^\n]*\])|[\w-]+(?: "[^"]*")* \{(?: \})?|\})$')


def list_comments(text: str, format: JobFormat) -> list[str]:
    ranges = (
        find_hcl_comments(text)
        if format is JobFormat.HCL
        else find_markup_comments(text, parse_markup(text, MarkupFormat(format)))
    )
    return [text[start:end] for start, end in ranges]


def add_comments(text: str) -> str:
    """Return a file in HCL with a comment before and beside each of its simple lines."""
    bare = text
    for start, end in reversed(find_hcl_comments(text)):
        bare = bare[:start] + bare[end:]
    lines: list[str] = []
    heredoc = ""
    for number, line in enumerate(format_hcl(bare).split("\n")):
        opening = re.search(r"<<-?(\w+)$", line)
        if heredoc or _LINE.match(line) is None:
            heredoc = "" if line.strip() == heredoc else opening[1] if opening else heredoc
            lines.append(line)
            continue
        lines += [f"# before {number}", f"{line} # beside {number}"]
    return "\n".join([*lines, "# end", ""])


@pytest.mark.parametrize("target", DATA_FORMATS)
@pytest.mark.parametrize("name", TEXTS)
def test_no_comment_of_a_file_in_hcl_is_lost_or_repeated(name: str, target: JobFormat) -> None:
    text = add_comments(TEXTS[name])

    converted = convert(text, JobFormat.HCL, target).text
    returned = convert(converted, target, JobFormat.HCL).text

    comments = sorted(list_comments(text, JobFormat.HCL))
    assert sorted(list_comments(converted, target)) == comments
    assert sorted(list_comments(returned, JobFormat.HCL)) == comments


@pytest.mark.parametrize("source", COMMENT_FORMATS)
@pytest.mark.parametrize("target", COMMENT_FORMATS)
@pytest.mark.parametrize("name", TEXTS)
def test_comments_keep_their_order_in_round_trips(name: str, source: JobFormat, target: JobFormat) -> None:
    # The first conversions put the fields into the order of the languages.
    text = convert(add_comments(TEXTS[name]), JobFormat.HCL, JobFormat.YAML).text
    text = convert(convert(text, JobFormat.YAML, target).text, target, source).text
    text = convert(convert(text, source, target).text, target, source).text

    returned = convert(convert(text, source, target).text, target, source).text

    assert list_comments(returned, source) == list_comments(text, source)


HCL = """\
# about the file

# about the job
job "a" {
  type = "batch" # beside the type

  // before the group
  group "g" { # beside the group
    /* two
       lines */
    task "t" {
      driver = "mine"
      config {
        args = [
          "a", # first
          # before b
          "b",
        ] # list
      }
    } # end of the task
    # end of the group
  }
}
# end of the file
"""
YAML = """\
# about the file

# about the job
ID: a
Type: batch  # beside the type
TaskGroups:
  # before the group
  - Name: g  # beside the group
    Tasks:
      # two
      # lines
      - Name: t
        Driver: mine
        Config:
          args:  # list
            - a  # first
            # before b
            - b
      # end of the task
  # end of the group
# end of the file
"""
RETURNED = """\
# about the file

# about the job
job "a" {
  type = "batch" # beside the type

  # before the group
  group "g" { # beside the group
    # two
    # lines
    task "t" {
      driver = "mine"

      config {
        # first
        # before b
        args = ["a", "b"] # list
      }
      # end of the task
    }
    # end of the group
  }
}
# end of the file
"""


def test_comments_stay_beside_their_fields() -> None:
    assert convert(HCL, JobFormat.HCL, JobFormat.YAML).text == YAML


def test_comments_of_yaml_are_those_of_hcl() -> None:
    assert convert(YAML, JobFormat.YAML, JobFormat.HCL).text == RETURNED


def test_a_sign_in_a_text_is_no_comment() -> None:
    text = "ID: a\nMeta: {a: 'b # c', d: e#f}\nName: \"# g\" # h\n"

    assert list_comments(text, JobFormat.YAML) == ["# h"]
    assert list_comments('a = "# b" # c\nd = """\n# e\n"""\n', JobFormat.TOML) == ["# c"]
    assert list_comments('a = "# b" # c\nd = <<E\n# e\nE\n', JobFormat.HCL) == ["# c"]


def test_json_has_no_comments() -> None:
    assert convert(YAML, JobFormat.YAML, JobFormat.JSON).losses == ["comments are left out"]
