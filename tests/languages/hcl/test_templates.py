"""Templates in strings and heredocs (reference sections 2.2 and 2.3)."""

import pytest

from tests.languages.hcl.evaluations import FREE_SCHEMA, evaluate, find_errors, find_failure, list_errors, read_body

LONG = "1" + "0" * 30


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('"a${1.50}b"', "a1.5b"),
        ('"a${1e30}"', f"a{LONG}"),
        ('"${true}!"', "true!"),
        ('"${"x"}y"', "xy"),
        ('"${1}${2}"', "12"),
        ('"${"a ${"b"}"}"', "a b"),
        ('"a${"}"}b"', "a}b"),
        ('"${ {a = 1}.a }x"', "1x"),
    ],
)
def test_an_interpolation_is_the_text_of_its_value(text: str, value: str) -> None:
    assert value == evaluate(text)


@pytest.mark.parametrize("text", ['"a${null}"', '"a${[1]}"', '"a${{}}"'])
def test_null_and_collections_have_no_text(text: str) -> None:
    assert find_failure(text).messages


@pytest.mark.parametrize(
    ("text", "value"), [('"${[1]}"', [1]), ('"${1}"', 1), ('"${null}"', None), ('"${true}"', True)]
)
def test_a_single_interpolation_keeps_the_type(text: str, value: object) -> None:
    assert value == evaluate(text)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('"%{ if true }a%{ else }b%{ endif }"', "a"),
        ('"%{ if false }a%{ else }b%{ endif }"', "b"),
        ('"%{ if false }a%{ endif }"', ""),
        ('"x%{ if "true" }a%{ endif }y"', "xay"),
        ('"%{ for x in [1, 2] }${x},%{ endfor }"', "1,2,"),
        ('"%{ for k, v in ["a", "b"] }${k}${v} %{ endfor }"', "0a 1b "),
        ('"%{ for k, v in {b = 1, a = 2} }${k}${v} %{ endfor }"', "a2 b1 "),
        ('"%{ for x in [1] }%{ if x == 1 }one%{ endif }%{ endfor }"', "one"),
        ('"%{for x in []}x%{endfor}"', ""),
    ],
)
def test_directives_choose_and_repeat_text(text: str, value: str) -> None:
    assert value == evaluate(text)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('"a  ${~ "x" ~}  b"', "axb"),
        ('"a \\n ${~ "x" }  b"', "ax  b"),
        ('"a ${ "x" ~} \\n\\t b"', "a xb"),
        ('"a %{~ if true ~} b %{~ endif ~} c"', "abc"),
        ('"${"a" ~} ${~ "b"}"', "ab"),
    ],
)
def test_a_tilde_strips_blanks_in_a_quoted_string(text: str, value: str) -> None:
    assert value == evaluate(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('"%{ if true }a"', "the directive %{ if } has no end"),
        ('"%{ for x in [1] }a"', "the directive %{ for } has no end"),
        ('"a%{ endif }"', "endif without a directive %{ if } before it"),
        ('"a%{ endfor }"', "endfor without a directive %{ for } before it"),
        ('"a%{ else }"', "else without a directive %{ if } before it"),
        ('"%{ if true }%{ endfor }"', "expected endif, found endfor"),
        ('"%{ for x in [1] }%{ endif }"', "expected endfor, found endif"),
        ('"%{ if true }%{ else }%{ else }%{ endif }"', "a second else"),
        ('"%{ foo }"', 'expected a directive (if, else, endif, for or endfor), found "foo"'),
    ],
)
def test_an_unbalanced_or_unknown_directive_is_an_error(text: str, message: str) -> None:
    assert [message] == find_failure(text).messages


@pytest.mark.parametrize("text", ['"${X:-y}"', '"${#x}"', '"${x%%y}"', '"${!x:0:3}"', '"${}"', '"${x:0:3}"'])
def test_shell_text_gets_the_advice_to_double_the_sign(text: str) -> None:
    assert ["for shell text, write $${ instead of ${"] == find_failure(text).fixes


def test_an_interpolation_without_a_brace_gets_the_advice_to_close_it() -> None:
    assert ["write } at its end"] == find_failure('"${x"').fixes


def test_a_percent_sign_of_another_language_gets_the_advice_to_double_it() -> None:
    assert ["for a plain %{, write %%{"] == find_failure('"curl -w %{http_code}"').fixes


# -- heredocs


@pytest.mark.parametrize(
    ("lines", "value"),
    [
        (["<<EOF", "hello", "EOF"], "hello\n"),
        (["<<EOF", "EOF"], ""),
        (["<<EOF", "", "EOF"], "\n"),
        (["<<eof", "x", "eof"], "x\n"),
        (["<<E-1", "x", "E-1"], "x\n"),
        (["<<EOF", "  x", "  EOF  "], "  x\n"),
        (["<<EOF", "EOF.", "EOF ,", "xEOF", "EOF"], "EOF.\nEOF ,\nxEOF\n"),
        (["<<EOF", '\\n "q" \\', "EOF"], '\\n "q" \\\n'),
        (["<<EOF", "${1 + 1} $${x} %%{y} $ %", "EOF"], "2 ${x} %{y} $ %\n"),
        (["<<EOF", "%{ if true }a%{ endif }", "EOF"], "a\n"),
        (["<<EOF", "${1}", "EOF"], "1\n"),
        (["<<EOF", "a${", "1", "}b", "EOF"], "a1b\n"),
        # The closing name inside an interpolation does not end the text.
        (["<<EOF", "a${upper(", "EOF", ")}b", "EOF"], "a${EOF}b\n"),
    ],
)
def test_a_heredoc_holds_the_lines_up_to_its_name(lines: list[str], value: str) -> None:
    assert {"a": value} == read_body("\n".join(["a = " + lines[0], *lines[1:], ""]))


def test_after_a_wrong_heredoc_without_an_end_the_next_line_is_parsed() -> None:
    assert ['job.hcl:2:1: "b" has no value on its line'] == list_errors("a = 1 << EOF\nb =\n", FREE_SCHEMA)[1:]


@pytest.mark.parametrize("opening", ["<<EOF x", '<<"EOF"', "<< EOF", "<<EOF # c", "<<'EOF'"])
def test_a_heredoc_with_a_wrong_opening_has_one_error(opening: str) -> None:
    assert 1 == len(list_errors(f"a = {opening}\nx\n${{\n }}\n  EOF\nb = 1\n", FREE_SCHEMA))


@pytest.mark.parametrize("opening", ["<<EOF x", '<<"EOF"', "<< EOF", "<<EOF # c", "<<'EOF'", "<<1"])
def test_a_heredoc_starts_with_its_name_and_the_line_end(opening: str) -> None:
    assert "a heredoc starts with <<NAME and the end of the line" in find_errors(
        f"a = {opening}\nx\nEOF\n", FREE_SCHEMA
    )


@pytest.mark.parametrize(
    ("lines", "value"),
    [
        (["    a", "      b", "    c"], "a\n  b\nc\n"),
        # A tab counts as one, like a space.
        (["\ta", "\t\tb"], "a\n\tb\n"),
        (["\ta", "  b"], "a\n b\n"),
        # Lines of blanks do not count and keep their blanks.
        (["    a", "", " ", "    b"], "a\n\n \nb\n"),
        (["    a", "      ", "    b"], "a\n      \nb\n"),
        # A line that starts with an interpolation counts with the blanks before it.
        (["    ${1}", "      b"], "1\n  b\n"),
        (["  ${1}", "    b"], "1\n  b\n"),
        (["${1}", "    b"], "1\n    b\n"),
        (["    %{ if true }", "      b", "    %{ endif }"], "\n  b\n\n"),
        # Only the source counts, not what an interpolation gives.
        (["    a", '    ${"  x"}'], "a\n  x\n"),
        (["    $${a}", "      b"], "${a}\n  b\n"),
    ],
)
def test_an_indented_heredoc_loses_the_smallest_indentation(lines: list[str], value: str) -> None:
    assert {"a": value} == read_body("\n".join(["a = <<-EOF", *lines, "  EOF", ""]))


@pytest.mark.parametrize(
    ("lines", "value"),
    [
        # `~}` at a line end takes the line break, but not the next line's indentation.
        (["a${1 ~}", "  b"], "a1  b\n"),
        (["a${1 ~}   ", "  b"], "a1  b\n"),
        (["a${1 ~}  c", "  b"], "a1c\n  b\n"),
        # `${~` takes the blanks before it, but not the line break.
        (["a", "  ${~ 1}"], "a\n1\n"),
        (["a  ${~ 1}"], "a1\n"),
        (["%{ for x in [1, 2] ~}", "- ${x}", "%{ endfor ~}"], "- 1\n- 2\n"),
        (["%{ if true ~}", "x", "%{ endif ~}", "y"], "x\ny\n"),
    ],
)
def test_a_tilde_in_a_heredoc_strips_never_past_the_line(lines: list[str], value: str) -> None:
    assert {"a": value} == read_body("\n".join(["a = <<EOF", *lines, "EOF", ""]))


@pytest.mark.parametrize(
    ("lines", "value"),
    [
        # After `~}` at a line end, the next line is no line start: its indentation stays and does not count.
        (["    a${1 ~}", "  b", "    c"], "a1  b\nc\n"),
        # A line whose blanks were stripped counts as indentation 0.
        (["    a", "    %{~ if true }b%{ endif }"], "    a\nb\n"),
    ],
)
def test_strip_markers_act_before_the_indentation_is_removed(lines: list[str], value: str) -> None:
    assert {"a": value} == read_body("\n".join(["a = <<-EOF", *lines, "EOF", ""]))


def test_an_expression_goes_on_after_the_closing_line() -> None:
    assert {"a": "HI\n", "b": ["x\n", 2]} == read_body("a = upper(<<EOF\nhi\nEOF\n)\nb = [<<EOF\nx\nEOF\n, 2]\n")


def test_a_heredoc_without_an_end_names_its_beginning() -> None:
    text = find_errors("a = 1\nb = <<EOF\nx\n EOFX\n", FREE_SCHEMA)

    assert text.startswith("job.hcl:5:1: this heredoc has no end")
    assert "the heredoc begins at: job.hcl:2:5" in text


def test_heredocs_nest_inside_interpolations() -> None:
    assert {"a": "x[y\n]\n"} == read_body("a = <<EOF\nx[${<<EOF\ny\nEOF\n}]\nEOF\n")
