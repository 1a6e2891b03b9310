"""Queries of templates: results, recorded queries, and missing sources."""

from collections.abc import Mapping, Sequence

import pytest

from wharf.languages.templates import MissingSource, NoSources, ParsedTemplate, RenderResult, TemplateError

# 2026-11-21 14:05:09.120 UTC, a Saturday.
NOW_NS = 1_795_269_909_120_000_000


class FakeSources(NoSources):
    """Sources with the data of a test."""

    def __init__(self, variables: Mapping[str, Mapping[str, str]] | None = None, instances: int = 0) -> None:
        self._variables = variables or {}
        self._instances = instances

    def now_ns(self) -> int:
        return NOW_NS

    def environment(self, name: str) -> str | None:
        return {"HOME": "/alone"}.get(name)

    def file(self, path: str) -> str:
        if path != "local/a.txt":
            raise MissingSource(f"the file {path}")
        return "inside"

    def variable(self, path: str) -> Mapping[str, str]:
        if path not in self._variables:
            raise MissingSource(f"variable {path}")
        return self._variables[path]

    def variables(self, prefix: str) -> Sequence[Mapping[str, object]]:
        return [{"Path": path, "Namespace": "default"} for path in sorted(self._variables) if path.startswith(prefix)]

    def services(self) -> Sequence[Mapping[str, object]]:
        return [{"Name": "db", "Tags": ["one"]}]

    def service(self, name: str) -> Sequence[Mapping[str, object]]:
        return [{"ID": f"{name}-{n}", "Address": f"10.0.0.{n}", "Port": 80 + n} for n in range(self._instances)]


def render(template: str, sources: FakeSources) -> RenderResult:
    return ParsedTemplate(template).render(None, sources)


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ('{{env "HOME"}}{{env "NONE"}}', "/alone"),
        ('{{envOrDefault "NONE" "x"}}', "x"),
        ('{{file "local/a.txt"}}', "inside"),
        ('{{with nomadVar "app/db"}}{{.user}}:{{.password}}{{end}}', "me:secret"),
        ('{{with variable "app/db"}}{{.Keys}} {{.Metadata.Path}}{{range .Tuples}} {{.K}}={{.V}}{{end}}{{end}}',
         "[password user] app/db password=secret user=me"),
        ('{{range $key, $value := variable "app/db"}}{{$key}}={{$value | toUpper}};{{end}}', "password=SECRET;user=ME;"),
        ('{{range nomadVarList "app"}}{{.Path}} {{end}}', "app/db app/web "),
        ('{{nomadVarExists "app/db"}} {{nomadVarExists "none"}}', "true false"),
        ("{{range services}}{{.Name}}{{.Tags}}{{end}}", "db[one]"),
        ('{{range nomadService "db"}}{{.Address}}:{{.Port}} {{end}}', "10.0.0.0:80 10.0.0.1:81 10.0.0.2:82 "),
        ("{{timestamp}}", "2026-11-21T14:05:09Z"),
        ('{{timestamp "Mon Jan _2 03:04:05.000 PM 2006"}}', "Sat Nov 21 02:05:09.120 PM 2026"),
        ('{{timestamp "2/1/06 15h"}}', "21/11/26 14h"),
        ('{{timestamp "unix"}}', "1795269909"),
        ('{{timestamp "unixMilli"}} {{timestamp "unixNano"}}', "1795269909120 1795269909120000000"),
        ('{{timestamp "Monday, January 2, 2006 3:4:5 pm.999 MST -0700"}}', "Saturday, November 21, 2026 2:5:9 pm.12 UTC +0000"),
        ('{{timestamp "002 Z07:00 -07 .00,999"}}', "325 Z +00 .12,12"),
        ('{{with variable "app/db"}}{{.Values}}{{range .}}{{.K}}={{.V}} {{.Key}}={{.Value}} {{end}}{{end}}',
         "[secret me]password=secret password=secret user=me user=me "),
        ('{{range service -1 "key" "db"}}{{.ID}}{{end}}', ""),
    ],
)  # fmt: skip
def test_templates_query_their_sources(template: str, expected: str) -> None:
    sources = FakeSources({"app/db": {"user": "me", "password": "secret"}, "app/web": {}}, instances=3)

    assert (expected, ()) == render(template, sources)[::2]


def test_the_queries_of_a_template_are_reported() -> None:
    rendered = render('{{env "HOME"}}{{range service "db"}}{{end}}{{with variable "a/b"}}{{end}}', FakeSources())

    assert {("environment", "HOME"), ("service", "db"), ("variable", "a/b")} == rendered.queries


def test_rendering_continues_after_a_missing_source_and_reports_all_of_them() -> None:
    rendered = render(
        '{{with variable "a"}}{{.x}}{{end}}{{file "b"}}{{range nomadVarListSafe "c"}}{{end}}', FakeSources()
    )

    assert ("variable a", "the file b", "variables under c") == rendered.missing


def test_a_selection_of_instances_is_stable_while_they_exist() -> None:
    template = '{{range service 2 "me" "db"}}{{.ID}} {{end}}'
    of_five, of_six = (set(render(template, FakeSources(instances=count)).text.split()) for count in (5, 6))

    assert 2 == len(of_five)
    assert len(of_five - of_six) <= 1
    assert of_six - of_five <= {"db-5"}


def test_a_required_environment_variable_that_is_not_set_is_an_error() -> None:
    with pytest.raises(TemplateError, match="line 1, column 3: the environment variable NONE is not set"):
        render('{{mustEnv "NONE"}}', FakeSources())


def test_a_variable_has_only_its_own_fields() -> None:
    with pytest.raises(TemplateError, match=r"me has no field \.X"):
        render('{{range variable "a"}}{{.X}}{{end}}', FakeSources({"a": {"user": "me"}}))


def test_a_selection_of_instances_needs_a_count_a_key_and_a_name() -> None:
    with pytest.raises(TemplateError, match="service takes a name, or a count, a key and a name"):
        render('{{service "db" "key" 1}}', FakeSources())


def test_a_template_without_sources_cannot_read_the_time() -> None:
    with pytest.raises(MissingSource, match="the time"):
        ParsedTemplate("{{timestamp}}").render()


@pytest.mark.parametrize(
    ("template", "missing"),
    [
        ('{{file "a"}}', "the file a"),
        ('{{variable "a"}}', "the variable a"),
        ("{{services}}", "the services"),
        ('{{service "db"}}', "the service db"),
        ('{{nomadVarListSafe "a"}}', "variables under a"),
    ],
)
def test_a_template_without_sources_reports_what_is_missing(template: str, missing: str) -> None:
    assert (missing,) == ParsedTemplate(template).render().missing


def test_a_template_without_sources_finds_no_variables() -> None:
    rendered = ParsedTemplate('{{variables "a"}}{{variableExists "a"}}').render()

    assert ("[]false", ()) == (rendered.text, rendered.missing)
