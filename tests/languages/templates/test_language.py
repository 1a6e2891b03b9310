"""The language of templates: what it makes of values, and where it says that it cannot."""

from typing import Any

import pytest

from wharf.languages.templates import ParsedTemplate, RecordFields, RenderLimits, TemplateError

JOBS: Any = [
    {"ID": "web", "Count": 2, "Tags": ["a", "b"], "Stop": False, "Meta": {"owner": "shop"}},
    {"ID": "sums", "Count": 0, "Tags": [], "Stop": True, "Meta": None},
]


def render(template: str, value: Any = None) -> str:
    return ParsedTemplate(template).render(value).text


@pytest.mark.parametrize(
    ("template", "made"),
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
    ],
)
def test_a_template_makes_the_text_that_it_says(template: str, made: str) -> None:
    assert made == render(template, JOBS)


def test_other_signs_can_stand_for_the_braces() -> None:
    assert "{{x}} 3" == ParsedTemplate("{{x}} [[add 1 2]]", left="[[", right="]]").render().text


@pytest.mark.parametrize(
    ("template", "told"),
    [
        ("one\n  {{.ID", "line 2, column 3: {{ opens here and is not closed: write }}"),
        ("{{range .}}\n{{.ID}}", "line 1, column 3: range opens a block here that has no end"),
        ("{{if .}}a{{else}}b{{else}}c{{end}}", "line 1, column 19: this block has an else already"),
        ("{{end}}", "line 1, column 1: this end ends nothing"),
        ("{{else}}", "line 1, column 1: this else ends nothing"),
        ("{{joim . 1}}", "line 1, column 3: joim is no function: did you mean join?"),
        ("{{ID}}", "line 1, column 3: ID is no function: a field begins with a dot, a text stands in quotes"),
        ("{{}}", "line 1, column 1: something is missing here: a field, a variable, a text or a function"),
        ("{{.A ; .B}}", "line 1, column 6: ; means nothing here"),
        ("{{.A .B}}", "line 1, column 6: .A is no function, so .B cannot follow it"),
        ("{{len 1 2}}", "line 1, column 3: len takes 1 argument, and has 2"),
        ("{{slice}}", "line 1, column 3: slice takes 1 to 3 arguments, and has 0"),
        ("{{eq 1}}", "line 1, column 3: eq takes at least 2 arguments, and has 1"),
        ("{{$x}}", "line 1, column 3: $x was never set here"),
        ("{{if true}}{{$x := 1}}{{end}}{{$x}}", "line 1, column 32: $x was never set here"),
        ("{{$name := 1}}{{$nam}}", "line 1, column 17: $nam was never set here: did you mean $name?"),
        ("{{$x = 1}}", "line 1, column 3: $x was never set here"),
        ('{{"no end}}', "line 1, column 3: this text in quotes has no end"),
        ("{{/* no end", "line 1, column 3: this remark has no end: write */"),
        ('{{"\\q"}}', "line 1, column 4: \\q means nothing: write \\\\ for a backslash"),
        ("{{(len .}}", "line 1, column 3: this ( has no )"),
        ("{{len . | 5}}", "line 1, column 11: only a function can stand after |"),
        ("{{break}}", "line 1, column 3: break stands in no range"),
        ('{{template "x"}}', 'line 1, column 3: no template is named "x"'),
        ('{{define "x"}}{{end}}{{define "x"}}{{end}}', 'line 1, column 24: there is a template named "x" already'),
        (
            "{{" + "(" * 200 + "1" + ")" * 200 + "}}",
            "line 1, column 103: parentheses stand in each other at most 100 deep",
        ),
        ("{{if 1}}" * 200 + "{{end}}" * 200, "line 1, column 803: blocks stand in each other at most 100 deep"),
        ("{{08}}", "line 1, column 3: 08 is no number: write 8 or 0o10"),
    ],
)
def test_a_template_that_is_none_is_refused_with_its_place(template: str, told: str) -> None:
    with pytest.raises(TemplateError) as refused:
        ParsedTemplate(template)

    assert told == str(refused.value)


@pytest.mark.parametrize(
    ("template", "told"),
    [
        ("{{.ID}}", "line 1, column 3: .ID is asked of a list: {{range .}} goes over it"),
        ("{{range .}}\n{{.ID.X}}{{end}}", "line 2, column 6: .X is asked of web, which has no fields"),
        (
            "{{range .}}{{range .ID}}{{end}}{{end}}",
            "line 1, column 14: range goes over a list, a map or a number, and not over web",
        ),
        ("{{index . 7}}", "line 1, column 3: there is no 7 in a list of 2"),
        ('{{eq 1 "1"}}', "line 1, column 3: 1 is a number and 1 is a text: they cannot be compared"),
        ("{{lt nil 1}}", "line 1, column 3: nothing has no order"),
        ("{{divide 0 5}}", "line 1, column 3: nothing can be divided by zero"),
        (
            '{{define "x"}}{{template "x"}}{{end}}{{template "x"}}',
            "line 1, column 17: templates include each other more than 100 deep",
        ),
    ],
)
def test_what_cannot_be_rendered_says_where(template: str, told: str) -> None:
    read = ParsedTemplate(template)

    with pytest.raises(TemplateError) as refused:
        read.render(JOBS)

    assert told == str(refused.value)


def test_a_record_knows_its_fields() -> None:
    with pytest.raises(TemplateError, match=r"there is no field \.JobId: did you mean \.JobID\?"):
        render("{{.JobId}}", RecordFields(JobID="a"))


def test_a_strict_template_refuses_a_missing_key() -> None:
    assert "<no value>" == render("{{.b}}", {"a": 1})
    with pytest.raises(TemplateError, match="there is no key b: there are a"):
        ParsedTemplate("{{.b}}", is_strict=True).render({"a": 1})


@pytest.mark.parametrize("name", ["__class__", "__init__", "keys", "append", "format"])
def test_a_template_reaches_no_attribute_of_an_object(name: str) -> None:
    values: list[Any] = ["text", [1], 3, True]

    for value in values:
        with pytest.raises(TemplateError):
            render("{{." + name + "}}", value)
    assert "<no value>" == render("{{." + name + "}}", {"a": 1})


@pytest.mark.parametrize(
    ("template", "told"),
    [
        ("{{range loop 100000}}{{range loop 1000}}{{end}}{{end}}", "goes on for more than 1,000,000 steps"),
        ("{{loop 1000000000}}", "loop goes over at most 100,000 numbers"),
        ('{{$x := "aaaaaaaaaa"}}{{range 40}}{{$x = print $x $x}}{{end}}', "more text than a template may"),
        ('{{range 100000}}{{printf "%500s" ""}}{{end}}', "the text grows over 16,777,216 characters"),
        ("{{range 99999999999}}{{end}}", "range goes over a list, a map or a number"),
    ],
)
def test_a_template_ends_whatever_it_says(template: str, told: str) -> None:
    with pytest.raises(TemplateError, match=told):
        render(template)


def test_bounds_can_be_narrower() -> None:
    with pytest.raises(TemplateError, match="the text grows over 10 characters"):
        ParsedTemplate("{{range 20}}x{{end}}").render(limits=RenderLimits(max_text_chars=10))
