"""Steps of a run in job files: the short form of needs, and the lines of mistakes."""

import json

import pytest

from tests.builders import some_job_settings
from tests.job_files.hcl.job_texts import PORTS, parse_file
from wharf.contract.model.decoding import convert_object
from wharf.contract.model.jobs.canonical_form import canonicalize_job
from wharf.contract.model.jobs.job import Job
from wharf.contract.model.jobs.validation import validate_job
from wharf.job_files.conversion import JobFormat, convert_data_job, convert_hcl_job
from wharf.job_files.hcl.parsed_job import ParsedJob
from wharf.job_files.markup_jobs import parse_markup_job
from wharf.languages.hcl.diagnostics import DocumentErrors, SourceFile
from wharf.languages.hcl.documents import parse_document
from wharf.languages.hcl.variables import VariableInputs
from wharf.languages.markup import MarkupFormat

HCL = """job "nightly" {
  type    = "batch"
  depends = ["import"]

  group "build" {
    task "main" {
      driver = "mock"
    }
  }

  group "lint" {
    task "main" {
      driver = "mock"
    }
  }

  group "ship" {
    depends = ["build", "lint"]

    task "main" {
      driver = "mock"
    }
  }
}
"""
YAML = """ID: nightly
Type: batch
Depends: import
TaskGroups:
  - Name: build
    Tasks: [{Name: main, Driver: mock}]
  - Name: lint
    Tasks: [{Name: main, Driver: mock}]
  - Name: ship
    Depends: [build, lint]
    Tasks: [{Name: main, Driver: mock}]
"""
TOML = """ID = "nightly"
Type = "batch"
Depends = ["import"]

[[TaskGroups]]
Name = "build"
Tasks = [{ Name = "main", Driver = "mock" }]

[[TaskGroups]]
Name = "lint"
Tasks = [{ Name = "main", Driver = "mock" }]

[[TaskGroups]]
Name = "ship"
Depends = ["build", "lint"]
Tasks = [{ Name = "main", Driver = "mock" }]
"""
MAIN = {"main": {"driver": "mock"}}
JSON_OF_HCL = json.dumps(
    {
        "job": {
            "nightly": {
                "type": "batch",
                "depends": "import",
                "group": {
                    "build": {"task": MAIN},
                    "lint": {"task": MAIN},
                    "ship": {"depends": ["build", "lint"], "task": MAIN},
                },
            }
        }
    },
    indent=2,
)
TEXTS = {
    JobFormat.HCL: HCL,
    JobFormat.YAML: YAML,
    JobFormat.JSON: json.dumps(
        {
            "ID": "nightly", "Type": "batch", "Depends": ["import"],
            "TaskGroups": [
                {"Name": "build", "Tasks": [{"Name": "main", "Driver": "mock"}]},
                {"Name": "lint", "Tasks": [{"Name": "main", "Driver": "mock"}]},
                {"Name": "ship", "Depends": ["build", "lint"], "Tasks": [{"Name": "main", "Driver": "mock"}]},
            ],
        },
        indent=2,
    ),
    JobFormat.TOML: TOML,
}  # fmt: skip


def parse(text: str, format: JobFormat) -> ParsedJob:
    if format is JobFormat.HCL:
        return parse_file(text)
    return parse_markup_job(text, f"job.{format}", MarkupFormat(format), VariableInputs(), PORTS)


def read_job(parsed: ParsedJob) -> Job:
    return canonicalize_job(convert_object(Job, parsed.document).value, some_job_settings())


def list_needs(job: Job) -> dict[str, list[str]]:
    """Return the names in the needs of the job, under an empty name, and of its groups."""
    found = {"": [need.on for need in job.depends or ()]}
    return found | {group.name: [need.on for need in group.depends or ()] for group in job.groups}


NEEDS = {"": ["import"], "build": [], "lint": [], "ship": ["build", "lint"]}


@pytest.mark.parametrize("format", TEXTS)
def test_a_need_may_be_written_as_a_name(format: JobFormat) -> None:
    assert list_needs(read_job(parse(TEXTS[format], format))) == NEEDS


def test_a_need_may_be_written_as_a_name_in_the_json_form_of_hcl() -> None:
    assert list_needs(read_job(parse_file(JSON_OF_HCL))) == NEEDS


@pytest.mark.parametrize("format", TEXTS)
def test_a_job_with_steps_is_the_same_in_every_language(format: JobFormat) -> None:
    source = TEXTS[format]
    for target in TEXTS:
        converted = (
            convert_hcl_job(parse_document(source), target, VariableInputs(), PORTS)
            if format is JobFormat.HCL
            else convert_data_job(SourceFile(f"job.{format}", source), format, target, VariableInputs(), PORTS)
        )

        assert read_job(parse(converted.text, target)) == read_job(parse(source, format))


def test_needs_with_only_a_name_are_written_in_their_short_form() -> None:
    converted = convert_data_job(SourceFile("job.yaml", YAML), JobFormat.YAML, JobFormat.HCL, VariableInputs(), PORTS)

    assert converted.text == HCL


def test_a_need_with_more_than_a_name_is_written_as_a_block() -> None:
    text = YAML.replace("[build, lint]", "[build, {On: lint, When: any}]")

    converted = convert_data_job(SourceFile("job.yaml", text), JobFormat.YAML, JobFormat.HCL, VariableInputs(), PORTS)

    assert 'depends {\n      on = "build"\n    }\n\n    depends {\n      on   = "lint"\n      when = "any"\n    }' in (
        converted.text
    )


def test_the_key_on_is_a_name_in_yaml_and_not_a_bool() -> None:
    text = YAML.replace("[build, lint]", "\n    - on: build\n    - On: lint")

    assert list_needs(read_job(parse(text, JobFormat.YAML))) == NEEDS


def test_a_list_of_other_values_is_refused_in_hcl_with_the_block_to_write() -> None:
    text = HCL.replace('["build", "lint"]', '["build", { on = "lint" }]')

    with pytest.raises(DocumentErrors) as raised:
        parse_file(text)

    (problem,) = raised.value.diagnostics
    assert problem.message == '"depends" takes a list of texts, with an object in it'
    assert text[problem.place.start : problem.place.end] == '{ on = "lint" }'
    assert problem.fix == "write depends { on = ... }"


def test_depends_is_an_argument_or_blocks_but_not_both() -> None:
    text = HCL.replace('depends = ["build", "lint"]', 'depends = ["build"]\n    depends {\n      on = "lint"\n    }')

    with pytest.raises(DocumentErrors, match='"depends" is a block here, and an argument before'):
        parse_file(text)


def test_a_variable_may_hold_the_needs() -> None:
    text = HCL.replace('["build", "lint"]', "var.needs") + 'variable "needs" {\n  default = ["build", "lint"]\n}\n'

    assert list_needs(read_job(parse(text, JobFormat.HCL))) == NEEDS


CIRCLE = "Steps wait for each other in a circle: build -> ship -> build"
LINES = {
    JobFormat.HCL: (HCL.replace('group "build" {', 'group "build" {\n    depends = ["ship"]\n'), 20),
    JobFormat.YAML: (YAML.replace("- Name: build\n", "- Name: build\n    Depends: [{On: ship}]\n"), 11),
    JobFormat.JSON: (TEXTS[JobFormat.JSON].replace('"Name": "build",', '"Name": "build", "Depends": ["ship"],'), 29),
    JobFormat.TOML: (TOML.replace('Name = "build"\n', 'Name = "build"\nDepends = ["ship"]\n'), 16),
}


@pytest.mark.parametrize("format", LINES)
def test_the_error_about_a_circle_has_the_line_of_the_need(format: JobFormat) -> None:
    text, line = LINES[format]
    parsed = parse(text, format)

    (problem,) = validate_job(read_job(parsed), some_job_settings()).problems

    place = parsed.places[problem.path]
    assert problem.message == CIRCLE
    assert text[: place.start].count("\n") + 1 == line


def test_the_error_about_an_unknown_step_has_the_line_and_the_name_that_was_meant() -> None:
    parsed = parse(HCL.replace('"lint"]', '"lnit"]'), JobFormat.HCL)

    (problem,) = validate_job(read_job(parsed), some_job_settings()).problems

    place = parsed.places[problem.path]
    assert (problem.message, problem.fix) == ('The job has no group "lnit"', 'did you mean "lint"?')
    assert HCL.replace('"lint"]', '"lnit"]')[place.start : place.end] == '"lnit"'
