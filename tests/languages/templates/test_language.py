"""The language of templates: rendered text, errors with locations, and limits."""

from typing import Any

import pytest

from wharf.languages.templates import ParsedTemplate, RecordFields, RenderLimits, TemplateError
from wharf.languages.templates.functions import FUNCTION_ARITIES
from wharf.languages.templates.parser import find_template_errors

JOBS: Any = [
    {"ID": "web", "Count": 2, "Tags": ["a", "b"], "Stop": False, "Meta": {"owner": "shop"}},
    {"ID": "sums", "Count": 0, "Tags": [], "Stop": True, "Meta": None},
]


def render(template: str, value: Any = None) -> str:
    return ParsedTemplate(template).render(value).text


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("plain { text }", "plain { text }"),
        ("{{len .}} jobs", "2 jobs"),
        ("{{range .}}{{.ID}} {{end}}", "web sums "),
        ("{{range $i, $job := .}}{{$i}}={{$job.ID}};{{end}}", "0=web;1=sums;"),
        ("{{range $job := .}}{{$job.ID}}{{end}}", "websums"),
        ("{{(index . 0).Meta.owner}}", "shop"),
        ("{{range .}}{{if .Stop}}stopped{{else}}runs{{end}} {{end}}", "runs stopped "),
        ('{{range .}}{{if eq .ID "x"}}x{{else if .Tags}}tags{{else}}none{{end}} {{end}}', "tags none "),
        ("{{range .}}{{with .Meta}}{{.owner}}{{else}}nobody{{end}} {{end}}", "shop nobody "),
        ("{{range .}}{{with .Meta}}{{.owner}}{{else with .ID}}{{.}}{{end}} {{end}}", "shop sums "),
        ("{{range .}}{{with $m := .Meta}}{{$m.owner}}{{end}} {{end}}", "shop  "),
        ("{{range .}}{{range .Tags}}{{.}}{{else}}-{{end}}{{end}}", "ab-"),
        ("{{range .}}{{if .Stop}}{{break}}{{end}}{{.ID}}{{end}}", "web"),
        ("{{range .}}{{if not .Stop}}{{continue}}{{end}}{{.ID}}{{end}}", "sums"),
        ("{{range 3}}{{.}}{{end}}", "012"),
        ("a {{- /* a remark */ -}} b", "ab"),
        ("a {{/* a remark with }} in it */}} b", "a  b"),
        ("{{range . -}}  {{.ID}}  {{- end}}", "websums"),
        ("{{$all := len .}}{{range .}}{{$all}}{{end}}", "22"),
        ("{{$n := 0}}{{range .}}{{$n = add 1 $n}}{{end}}{{$n}}", "2"),
        ("{{$n := 1}}{{if true}}{{$n := 2}}{{end}}{{$n}}", "1"),
        ("{{range .}}{{and .Stop .ID}} {{or .Stop .ID}} {{not .Stop}};{{end}}", "false web true;sums true false;"),
        ('{{"quoted }} braces"}}', "quoted }} braces"),
        ("{{`raw \\n text`}}", "raw \\n text"),
        ('{{"tab\\tand \\u00e9 and \\x41"}}', "tab\tand é and A"),
        ("{{0x10}} {{1_000}} {{-2}} {{1.50}} {{1e3}}", "16 1000 -2 1.5 1000"),
        ("{{nil}} {{true}}", "<no value> true"),
        ('{{define "one"}}<{{.}}>{{end}}{{template "one" 5}}{{template "one"}}', "<5><<no value>>"),
        ('{{block "name" 7}}[{{.}}]{{end}}', "[7]"),
        ('{{define "x"}}{{.ID}}{{end}}{{range .}}{{executeTemplate "x" . | toUpper}}{{end}}', "WEBSUMS"),
        ("{{range .}}{{.Meta}}{{end}}", "map[owner:shop]<no value>"),
        ("{{ range . }}\n{{- .ID }}\n{{ end -}}\n", "web\nsums\n"),
        ("{{range $k, $v := (index . 0).Meta}}{{$k}}:{{$v}}{{end}}", "owner:shop"),
        ("{{range nil}}a{{else}}b{{end}}{{range -1}}c{{end}}", "b"),
        ("{{'a'}} {{'\\n'}}", "97 10"),
        ("{{(index . 0).ID | printf `%s:%s` `x`}}", "x:web"),
        ("{{range .}}{{range $}}{{.ID}}{{end}} {{end}}", "websums websums "),
        ("{{(index . 1).Meta.owner}}", "<no value>"),
        ('{{define "x"}}{{end}}{{executeTemplate "x"}}', ""),
    ],
)
def test_a_template_renders_its_text(template: str, expected: str) -> None:
    assert expected == render(template, JOBS)


def test_the_delimiters_can_be_changed() -> None:
    assert "{{x}} 3" == ParsedTemplate("{{x}} [[add 1 2]]", left="[[", right="]]").render().text


@pytest.mark.parametrize(
    ("template", "error"),
    [
        ("one\n  {{.ID", "line 2, column 3: {{ opens here and is not closed: write }}"),
        ("{{range .}}\n{{.ID}}", "line 1, column 3: this range block has no end: write {{ end }} after it"),
        ("{{if .}}a{{else}}b{{else}}c{{end}}", "line 1, column 19: this block already has an else"),
        ("{{end}}", "line 1, column 1: end without an open block: write if, range or with before it, or delete it"),
        ("{{else}}", "line 1, column 1: else without an open block: write if, range or with before it, or delete it"),
        ("{{joim . 1}}", "line 1, column 3: joim is not a function: did you mean join?"),
        (
            "{{ID}}",
            "line 1, column 3: ID is not a function: write a dot before a field, and quotes around text; the documentation page Templates lists the functions",
        ),
        (
            "{{}}",
            'line 1, column 1: expected a field, a variable, a text or a function: add it, such as .Name, $name, "text" or env "NAME"',
        ),
        ("{{len 1\n{{len 2}}", "line 1, column 1: {{ opens here and is not closed: write }}"),
        ('{{evn "A"}}', "line 1, column 3: evn is not a function: did you mean env?"),
        ("{{.A ; .B}}", "line 1, column 6: unexpected ;"),
        ("{{.A .B}}", "line 1, column 6: .A is not a function, so .B cannot follow it"),
        ("{{len 1 2}}", "line 1, column 3: len takes 1 argument, got 2"),
        ("{{slice}}", "line 1, column 3: slice takes 1 to 3 arguments, got 0"),
        ("{{eq 1}}", "line 1, column 3: eq takes at least 2 arguments, got 1"),
        ("{{$x}}", "line 1, column 3: variable $x is not defined here"),
        ("{{if true}}{{$x := 1}}{{end}}{{$x}}", "line 1, column 32: variable $x is not defined here"),
        ("{{$name := 1}}{{$nam}}", "line 1, column 17: variable $nam is not defined here: did you mean $name?"),
        ("{{$x = 1}}", "line 1, column 3: variable $x is not defined here"),
        ('{{"no end}}', 'line 1, column 3: this text has no end: write " after it'),
        ("{{/* no end", "line 1, column 3: this comment has no end: write */"),
        ('{{"\\q"}}', "line 1, column 4: unknown escape \\q: write \\\\ for a backslash"),
        ("{{(len .}}", "line 1, column 3: this ( has no matching )"),
        ("{{len . | 5}}", "line 1, column 11: only a function can follow |"),
        ("{{break}}", "line 1, column 3: break outside of range"),
        ('{{template "x"}}', 'line 1, column 3: no template is named "x"'),
        ('{{define "x"}}{{end}}{{define "x"}}{{end}}', 'line 1, column 24: a template named "x" already exists'),
        (
            "{{" + "(" * 200 + "1" + ")" * 200 + "}}",
            "line 1, column 103: parentheses are nested more than 100 deep",
        ),
        ("{{if 1}}" * 200 + "{{end}}" * 200, "line 1, column 803: blocks are nested more than 100 deep"),
        ("{{08}}", "line 1, column 3: 08 is not a number: write 8 or 0o10"),
        ("{{$a, $b := 1}}", "line 1, column 1: only range sets two variables at once"),
        ("{{if $a, $b := 1}}{{end}}", "line 1, column 3: only range sets two variables at once"),
        ("{{$ := 1}}", "line 1, column 3: a variable needs a name, such as $name"),
        ('{{define "x"}}{{else}}{{end}}', "line 1, column 3: define cannot have an else"),
        ("{{define x}}{{end}}", "line 1, column 10: define needs a name in quotes"),
        ("{{if 1}}{{end 1}}", "line 1, column 15: unexpected 1"),
        ("{{len len}}", "line 1, column 7: put parentheses around len and its arguments"),
        ("{{len |}}", "line 1, column 3: len takes 1 argument, got 0"),
        ("{{/* a */ b}}", "line 1, column 11: only }} can follow a comment"),
        ("{{" + "1" * 101 + "}}", "line 1, column 3: a number has at most 100 characters"),
        ('{{"\\U00110000"}}', "line 1, column 4: \\U00110000 is not a Unicode character"),
    ],
)
def test_a_template_that_cannot_be_parsed_is_rejected_with_its_location(template: str, error: str) -> None:
    with pytest.raises(TemplateError) as raised:
        ParsedTemplate(template)

    assert error == str(raised.value)


@pytest.mark.parametrize(
    ("template", "problems"),
    [
        ('{{evn "A"}}\n{{.A}}\n{{joim .}}', ["1:3 evn is not a function", "3:3 joim is not a function"]),
        ('{{if evn "A"}}{{joim .}}{{else if evn "B"}}{{end}}', ["1:6 evn is not a function", "1:17 joim is not a function",
                                                              "1:35 evn is not a function"]),
        ('{{$a := evn "A"}}{{$a}}{{with $b := evn "B"}}{{$b}}{{end}}{{range $i, $c := evn "C"}}{{$i}}{{$c}}{{end}}',
         ["1:9 evn is not a function", "1:37 evn is not a function", "1:77 evn is not a function"]),
        ('{{if "a}}{{end}}{{end}}', ["1:6 this text has no end", "1:17 end without an open block"]),
        ("{{if .\n{{joim .}}{{end}}", ["1:1 {{ opens here and is not closed", "2:3 joim is not a function"]),
        ("{{range .}}{{if .}}", ["1:3 this range block has no end", "1:14 this if block has no end"]),
        ("{{if .}}{{else}}{{else}}{{joim .}}{{end}}", ["1:17 this block already has an else", "1:27 joim is not a function"]),
        ('{{define x}}{{joim .}}{{end}}{{template "x"}}', ["1:10 define needs a name in quotes", "1:15 joim is not a function"]),
        ("{{end}}{{/* a */ b}}{{end x}}", ["1:1 end without an open block", "1:18 only }} can follow a comment",
                                          "1:21 end without an open block"]),
        ("{{if .}}" * 101 + "{{joim .}}", ["1:803 blocks are nested more than 100 deep"]),
        ("{{x}}" * 9, [f"1:{3 + 5 * at} x is not a function" for at in range(5)]),
        ("{{if .}}a{{end}}", []),
    ],
)  # fmt: skip
def test_all_errors_of_a_template_are_found_without_their_consequences(template: str, problems: list[str]) -> None:
    errors = find_template_errors(template, FUNCTION_ARITIES, max_errors=5)

    assert problems == [f"{error.line}:{error.column} {error.problem}" for error in errors]


@pytest.mark.parametrize(
    ("template", "error"),
    [
        ("{{.ID}}", "line 1, column 3: a list has no field .ID: use {{range .}} to visit its elements"),
        ("{{range .}}\n{{.ID.X}}{{end}}", "line 2, column 6: web has no field .X"),
        (
            "{{range .}}{{range .ID}}{{end}}{{end}}",
            "line 1, column 14: range takes a list, a map or a number, got web",
        ),
        ("{{index . 7}}", "line 1, column 3: index 7 is out of range: the list has length 2"),
        ('{{eq 1 "1"}}', "line 1, column 3: cannot compare 1 (a number) with 1 (a text)"),
        ("{{lt nil 1}}", "line 1, column 3: only numbers and texts can be ordered, got a null value"),
        ("{{divide 0 5}}", "line 1, column 3: division by zero"),
        ('{{executeTemplate "x"}}', 'line 1, column 3: no template is named "x"'),
        ("{{range true}}{{end}}", "line 1, column 3: range takes a list, a map or a number, got true"),
        (
            '{{define "x"}}{{template "x"}}{{end}}{{template "x"}}',
            "line 1, column 17: templates include each other more than 100 deep",
        ),
    ],
)
def test_an_error_of_rendering_has_its_location(template: str, error: str) -> None:
    read = ParsedTemplate(template)

    with pytest.raises(TemplateError) as raised:
        read.render(JOBS)

    assert error == str(raised.value)


def test_an_unknown_field_of_a_record_is_an_error() -> None:
    with pytest.raises(TemplateError, match=r"there is no field \.JobId: did you mean \.JobID\?"):
        render("{{.JobId}}", RecordFields(JobID="a"))


def test_an_unknown_field_without_a_similar_one_lists_the_fields() -> None:
    with pytest.raises(TemplateError, match=r"there is no field \.Zone: the fields are ID, Name"):
        render("{{.Zone}}", RecordFields(ID="a", Name="b"))


def test_a_strict_template_rejects_a_field_of_null() -> None:
    assert "<no value>" == render("{{.a.b}}", {"a": None})
    with pytest.raises(TemplateError, match=r"a null value has no field \.b"):
        ParsedTemplate("{{.a.b}}", is_strict=True).render({"a": None})


def test_a_strict_template_rejects_a_missing_key() -> None:
    assert "<no value>" == render("{{.b}}", {"a": 1})
    with pytest.raises(TemplateError, match="there is no key b: the keys are a"):
        ParsedTemplate("{{.b}}", is_strict=True).render({"a": 1})


@pytest.mark.parametrize("name", ["__class__", "__init__", "keys", "append", "format"])
def test_a_template_cannot_read_attributes_of_objects(name: str) -> None:
    values: list[Any] = ["text", [1], 3, True]

    for value in values:
        with pytest.raises(TemplateError):
            render("{{." + name + "}}", value)
    assert "<no value>" == render("{{." + name + "}}", {"a": 1})


@pytest.mark.parametrize(
    ("template", "error"),
    [
        ("{{range loop 100000}}{{range loop 1000}}{{end}}{{end}}", "takes more than 1,000,000 steps"),
        ("{{loop 1000000000}}", "loop lists at most 100,000 numbers"),
        (
            '{{$x := "aaaaaaaaaa"}}{{range 40}}{{$x = print $x $x}}{{end}}',
            "functions of the template produce too much text",
        ),
        ('{{range 100000}}{{printf "%500s" ""}}{{end}}', "the text has more than 16,777,216 characters"),
        ("{{range 99999999999}}{{end}}", "range takes a list, a map or a number"),
    ],
)
def test_every_template_ends_within_its_limits(template: str, error: str) -> None:
    with pytest.raises(TemplateError, match=error):
        render(template)


def test_limits_can_be_lower() -> None:
    with pytest.raises(TemplateError, match="the text has more than 10 characters"):
        ParsedTemplate("{{range 20}}x{{end}}").render(limits=RenderLimits(max_text_chars=10))
