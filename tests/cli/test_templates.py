"""Templates of `--format`: what they show, what they refuse, and that they can do nothing else."""

from typing import Any

import pytest

from wharf.cli.templates import TemplateError, plain, render
from wharf.model.evaluation import Evaluation, EvaluationStatus, EvaluationTrigger, SchedulerType

JOBS = [
    {"ID": "web", "Count": 2, "Tags": ["a", "b"], "Stop": False, "Meta": {"owner": "shop"}},
    {"ID": "sums", "Count": 0, "Tags": [], "Stop": True, "Meta": None},
]


@pytest.mark.parametrize(
    ("template", "shown"),
    [
        ("{{len .}} jobs", "2 jobs"),
        ("{{range .}}{{.ID}} {{end}}", "web sums "),
        ("{{range $i, $job := .}}{{$i}}={{$job.ID}};{{end}}", "0=web;1=sums;"),
        ("{{range .}}{{if .Stop}}stopped{{else}}runs{{end}} {{end}}", "runs stopped "),
        ('{{range .}}{{if eq .ID "x"}}x{{else if .Tags}}tags{{else}}none{{end}} {{end}}', "tags none "),
        ("{{range .}}{{with .Meta}}{{.owner}}{{else}}nobody{{end}} {{end}}", "shop nobody "),
        ('{{range .}}[{{join .Tags ", "}}]{{end}}', "[a, b][]"),
        ('{{range .}}[{{.Tags | join "+"}}]{{end}}', "[a+b][]"),
        ("{{with index . 0}}{{index .Tags 1}}{{end}}", "b"),
        ("{{(index . 0).ID}}, {{(index . 1).ID | upper}}, {{len (index . 0).Tags}}", "web, SUMS, 2"),
        ("{{((index . 0).Meta).owner}}", "shop"),
        ('{{range .}}{{printf "%-5s|%3d|%q" .ID .Count .ID}}{{println}}{{end}}', 'web  |  2|"web"\nsums |  0|"sums"\n'),
        ("{{range .}}{{range .Tags}}{{.}}{{else}}-{{end}}{{end}}", "ab-"),
        ("a {{- /* a remark */ -}} b", "ab"),
        ("{{range . -}}  {{.ID}}  {{- end}}", "websums"),
        ("{{$all := len .}}{{range .}}{{$all}}{{end}}", "22"),
        ("{{range .}}{{and .Stop .ID}} {{or .Stop .ID}} {{not .Stop}};{{end}}", "false web true;sums true false;"),
        ("{{range .}}{{.Meta}}{{end}}", "map[owner:shop]<no value>"),
        ('{{range .}}{{.ID | upper | printf "<%s>"}}{{end}}', "<WEB><SUMS>"),
    ],
)
def test_a_template_shows_what_it_says(template: str, shown: str) -> None:
    assert render(template, JOBS) == shown


@pytest.mark.parametrize(
    ("template", "told"),
    [
        ("{{.ID", "the template opens {{ at character 1 and does not close it"),
        ("{{range .}}{{.ID}}", "the template lacks the {{end}} of {{range .}}"),
        ("{{end}}", "the template has {{end}} at character 1 and nothing that it ends"),
        ("{{joim .}}", "the template calls joim, which is no function: did you mean join?"),
        ("{{}}", "the template has {{}} at character 1: something to show is missing"),
        ("{{.A ; .B}}", "the template has ; at character 1, in {{.A ; .B}}: that means nothing here"),
        ("{{$x}}", "the template never set $x"),
        ("{{(index . 0}}", "the template lacks a ) in {{(index . 0}}"),
        ("{{.ID}}", "the template asks for .ID of a list: {{range .}} goes over it"),
        ("{{range .}}{{.ID.X}}{{end}}", "the template asks for .X of web, which has no fields"),
        ("{{range .}}{{range .ID}}{{end}}{{end}}", "range goes over a list or a map, and this is web"),
        ("{{index . 7}}", "the function index cannot be used so: index("),
    ],
)
def test_a_template_that_is_wrong_says_where(template: str, told: str) -> None:
    with pytest.raises(TemplateError) as refused:
        render(template, JOBS)

    assert str(refused.value).startswith(told)


def test_a_record_has_all_of_its_fields_also_the_empty_ones() -> None:
    record = Evaluation(
        id="e1", type=SchedulerType.BATCH, triggered_by=EvaluationTrigger.SCHEDULED, status=EvaluationStatus.BLOCKED
    )

    assert render("{{.ID}} {{.Status}} [{{.JobID}}]", plain(record)) == "e1 blocked []"
    with pytest.raises(TemplateError, match=r"there is no field \.JobId: did you mean \.JobID\?"):
        render("{{.JobId}}", plain(record))


@pytest.mark.parametrize("name", ["__class__", "__init__", "keys", "append", "format"])
def test_a_template_reaches_no_attribute_of_an_object(name: str) -> None:
    values: list[Any] = ["text", [1], 3]

    for value in values:
        with pytest.raises(TemplateError):
            render("{{." + name + "}}", value)
    assert render("{{." + name + "}}", {"a": 1}) == "<no value>"


def test_a_template_ends() -> None:
    many = list(range(1_100))

    with pytest.raises(TemplateError, match="goes on for more than"):
        render("{{range .}}{{range $}}{{.}}{{end}}{{end}}", many)
