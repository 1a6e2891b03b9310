"""Conversion of files with variables: what is computed from variables is the same job in every language."""

from typing import Any

import pytest

from tests.job_files.test_conversion import DATA_FORMATS, convert, read_job
from wharf.job_files.conversion import JobFormat
from wharf.languages.hcl.diagnostics import DocumentErrors

DECLARATIONS = """\
variable "n" {
  type    = number
  default = 3
}
variable "b" {
  default = true
}
variable "names" {
  type    = list(string)
  default = ["a", "b"]
}
variable "labels" {
  type    = map(string)
  default = { "a.b" = "x" }
}
"""
TASK_BODIES = {
    "a number of several parts": 'resources {\n  memory = "${var.n}00"\n}',
    "a number from a directive": 'resources {\n  cores = "%{ if var.n > 2 }1%{ else }2%{ endif }"\n}',
    "a number from a heredoc": "resources {\n  cores = trimspace(<<A\n${var.n}\nA\n  )\n}",
    "a bool of several parts": 'lifecycle {\n  hook    = "prestart"\n  sidecar = "%{ if var.b }tr%{ endif }ue"\n}',
    "a list of numbers": "identity {\n  aud = [for i in range(var.n) : i]\n}",
    "a list of texts": "identity {\n  aud = var.names\n}",
    "a map of numbers": "env = merge(var.labels, { X = 1 })",
    "a map of texts": "meta = var.labels",
    "a map from a loop": 'env = { for name in var.names : "X_${name}" => var.n }',
    "a list in a map of lists": 'service {\n  check {\n    type = "http"\n    header {\n      X = [for i in range(var.n) : i]\n    }\n  }\n}',
    "a short form of a constraint": "constraint {\n  distinct_hosts = var.b\n}",
    "a heredoc in an interpolation": "config {\n  a = <<A\n x\n ${upper(<<B\n  in ${var.n}\nB\n)}\n  y\nA\n}",
    "a heredoc in a call": "config {\n  a = upper(<<A\nx ${var.n}\nA\n  )\n}",
    "an indented heredoc in a list": "config {\n  a = [upper(<<-A\n    in ${var.n}\n   \n      b\n  A\n  )]\n}",
    "a heredoc in an object": 'config {\n  a = "${jsonencode({\n    x = <<-A\n      ${var.n}\n    A\n  })}"\n}',
}


def wrap_task(body: str) -> str:
    return (
        f'{DECLARATIONS}\njob "j" {{\n  group "g" {{\n    task "t" {{\n      driver = "any"\n{body}\n    }}\n  }}\n}}\n'
    )


@pytest.mark.parametrize("target", DATA_FORMATS)
@pytest.mark.parametrize("name", TASK_BODIES)
def test_a_computed_value_is_the_same_in_every_language_and_back_in_hcl(name: str, target: JobFormat) -> None:
    text = wrap_task(TASK_BODIES[name])
    original = read_job(text, JobFormat.HCL)

    converted = convert(text, JobFormat.HCL, target)
    returned = convert(converted.text, target, JobFormat.HCL)

    assert read_job(converted.text, target) == original
    assert read_job(returned.text, JobFormat.HCL) == original
    assert returned.losses == []


def test_a_variable_whose_type_fits_is_not_converted() -> None:
    text = wrap_task("identity {\n  aud = var.names\n}\nmeta = var.labels\nenv {\n  A = var.n\n}")

    converted = convert(text, JobFormat.HCL, JobFormat.YAML).text

    assert "Audience: ${var.names}\n" in converted
    assert "Meta: ${var.labels}\n" in converted
    assert "A: ${convert(var.n, string)}\n" in converted


def test_conversions_that_arguments_make_are_left_out_in_hcl() -> None:
    text = wrap_task("env {\n  A = var.n\n}")

    returned = convert(convert(text, JobFormat.HCL, JobFormat.YAML).text, JobFormat.YAML, JobFormat.HCL).text

    assert "A = var.n\n" in returned


def test_a_text_with_null_characters_is_the_same_in_hcl() -> None:
    text = 'variables: {n: 1}\nID: j\nMeta: {a: "x\\n\\0y\\n", b: "${var.n}"}\n'

    returned = convert(text, JobFormat.YAML, JobFormat.HCL).text

    assert read_job(returned, JobFormat.HCL)["Meta"]["a"] == "x\n\0y\n"


def test_braces_and_quotes_in_an_interpolation_do_not_end_it() -> None:
    text = """variables: {n: 1}\nID: j\nMeta:\n  a: |-\n    x ${upper(<<A\n    it's a } and a "\n    A\n    )} y\n"""

    returned = convert(text, JobFormat.YAML, JobFormat.HCL).text

    assert read_job(returned, JobFormat.HCL)["Meta"] == read_job(text, JobFormat.YAML)["Meta"]


@pytest.mark.parametrize("form", ["${var.n}-${var.n}", "${~ var.n ~}"])
def test_a_template_of_the_json_form_is_the_same_in_yaml(form: str) -> None:
    text = f'{{"variable": {{"n": {{"type": "number", "default": 3}}}}, "job": {{"j": {{"meta": {{"a": "{form}"}}}}}}}}'

    converted = convert(text, JobFormat.HCL, JobFormat.YAML).text

    assert read_job(converted, JobFormat.YAML) == read_job(text, JobFormat.HCL)


VALIDATION = """\
variable "n" {
  default     = 3
  description = "$${x} and $${var.n}"
  validation {
    condition     = var.n > 1
    error_message = "not $${x} or ${var.n}"
  }
}
job "j" {
  priority = var.n
}
"""


@pytest.mark.parametrize("target", DATA_FORMATS)
def test_texts_of_declarations_have_no_references_for_nodes(target: JobFormat) -> None:
    converted = convert(VALIDATION, JobFormat.HCL, target)
    returned = convert(converted.text, target, JobFormat.HCL)

    assert read_job(converted.text, target)["Priority"] == 3
    assert 'description = "$${x} and $${var.n}"\n' in returned.text
    assert 'error_message = "not $${x} or ${var.n}"\n' in returned.text


LONG_CONDITION = """\
variables:
  n:
    default: 3
    type: |
      number
    validation:
      condition: |
        ${ var.n > 1
           && var.n < 5 }
      error_message: bad
ID: j
Priority: |-
  ${var.n > 1
    ? 60 : 70}
"""


@pytest.mark.parametrize("target", JobFormat)
def test_expressions_of_several_lines_are_the_same_in_every_language(target: JobFormat) -> None:
    converted = convert(LONG_CONDITION, JobFormat.YAML, target).text

    assert read_job(converted, target)["Priority"] == 60


COMPUTED_NAMES = """\
variables: {n: 3, name: web}
ID: job-${var.name}
TaskGroups:
  - Name: g-${var.n}
    Networks:
      - DynamicPorts: [{Label: 'p-${var.n}', To: '${var.n}'}]
        ReservedPorts: [{Label: '$${x}', Value: 80}]
    Volumes:
      v-${var.n}: {Type: host, Source: 's-${var.name}'}
    Tasks:
      - Name: t-${var.name}
        Driver: any
        Resources:
          Devices: [{Name: 'nvidia/${var.name}', Constraints: ['${device.attr.memory} > 5']}]
      - Name: u
        Driver: any
"""


def test_computed_names_are_labels_of_dynamic_blocks_in_hcl() -> None:
    converted = convert(COMPUTED_NAMES, JobFormat.YAML, JobFormat.HCL)

    assert read_job(converted.text, JobFormat.HCL) == read_job(COMPUTED_NAMES, JobFormat.YAML)
    assert converted.losses == []
    assert (
        'dynamic "group" {\n    for_each = ["g-${var.n}"]\n    iterator = label\n    labels   = [label.value]\n'
        in converted.text
    )
    assert 'task "u" {' in converted.text


@pytest.mark.parametrize("target", JobFormat)
def test_a_computed_id_is_the_same_in_every_language_and_back(target: JobFormat) -> None:
    text = 'variables {\n  n = 3\n}\njob "j" {\n  id   = "x-${var.n}"\n  name = "y-${var.n}"\n}\n'

    converted = convert(text, JobFormat.HCL, target).text
    returned = convert(converted, target, JobFormat.HCL).text

    expected: Any = read_job(text, JobFormat.HCL)
    assert ("x-3", "y-3") == (expected["ID"], expected["Name"])
    assert read_job(converted, target) == expected
    assert read_job(returned, JobFormat.HCL) == expected


@pytest.mark.parametrize("target", DATA_FORMATS)
def test_the_identity_of_a_service_is_the_same_in_every_language(target: JobFormat) -> None:
    text = wrap_task('service {\n  name = "s"\n  identity {\n    aud = ["x"]\n  }\n}')

    converted = convert(text, JobFormat.HCL, target).text

    assert read_job(converted, target) == read_job(text, JobFormat.HCL)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("locals: [a]\nID: j\n", "job.yaml:1:1: locals is a map of names to values"),
        ("variables: 5\nID: j\n", "job.yaml:1:1: variables is a map of names to declarations"),
        ("variables: {a b: 1}\nID: j\n", 'job.yaml:1:13: "a b" is not a name for a variable'),
        ("locals: {a b: 1}\nID: j\n", 'job.yaml:1:10: "a b" is not a name for a local value'),
        ("locals: {a: 1}\nID: ${local.b}\n", 'job.yaml:2:7: no local value "b" is declared'),
        ("variables: {a: {type: number}}\nID: ${upper(var.a}\n", 'job.yaml:2:18: expected "," or ")", found "}"'),
    ],
)
def test_a_file_with_wrong_declarations_or_templates_is_not_converted(text: str, message: str) -> None:
    with pytest.raises(DocumentErrors) as caught:
        convert(text, JobFormat.YAML, JobFormat.HCL)

    assert caught.value.text.startswith(message)


@pytest.mark.parametrize("target", JobFormat)
def test_null_in_a_map_of_texts_is_an_empty_text(target: JobFormat) -> None:
    text = "ID: j\nMeta: {a: null, b: x}\n"

    assert read_job(convert(text, JobFormat.YAML, target).text, target)["Meta"] == {"a": "", "b": "x"}


@pytest.mark.parametrize(
    ("field", "path"),
    [
        ("TaskGroups: '${local.all}'", "TaskGroups"),
        ("TaskGroups: [{Name: g, Tasks: '${local.all}'}]", "TaskGroups[0].Tasks"),
        ("Constraints: '${local.all}'", "Constraints"),
        ("Constraints: ['${local.all[0]}']", "Constraints[0]"),
        ("'${local.name}': 5", "[${local.name}]"),
    ],
)
def test_what_a_template_computes_and_hcl_cannot_express_is_named(field: str, path: str) -> None:
    text = f"locals: {{all: [], name: Priority}}\nID: j\n{field}\n"

    converted = convert(text, JobFormat.YAML, JobFormat.HCL)

    assert converted.losses == [f"HCL cannot express {path}, which a template computes: it is left out"]
    assert converted.text.endswith(('job "j" {}\n', 'group "g" {}\n}\n'))


def test_an_unknown_field_of_a_file_with_variables_is_not_converted_to_hcl() -> None:
    with pytest.raises(DocumentErrors) as caught:
        convert("variables: {n: 1}\nID: j\nPrioritty: 5\n", JobFormat.YAML, JobFormat.HCL)

    assert caught.value.text.startswith("job.yaml:3:1: Prioritty is not a known field")


def test_a_volume_without_fields_is_written_in_hcl() -> None:
    text = "ID: j\nTaskGroups: [{Name: g, Volumes: {a: {}}}]\n"

    assert 'volume "a" {}' in convert(text, JobFormat.YAML, JobFormat.HCL).text
    assert 'volume "a" {}' in convert(text.replace("{}", "null"), JobFormat.YAML, JobFormat.HCL).text
