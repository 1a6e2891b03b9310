"""Sensitive variables: no text for users contains their values (record 0245)."""

import pytest

from tests.job_files.hcl.job_texts import PORTS, find_error_text
from wharf.job_files.conversion import JobFormat, convert_data_job, convert_hcl_job
from wharf.job_files.hcl import evaluate_hcl_job
from wharf.job_files.markup_jobs import parse_markup_job
from wharf.languages.hcl.diagnostics import HIDDEN, DocumentErrors, HiddenValues, SourceFile
from wharf.languages.hcl.documents import list_sensitive_names, parse_document, parse_values
from wharf.languages.hcl.variables import VariableInputs
from wharf.languages.markup import MarkupFormat

DECLARATION = 'variable "db" {\n  type = string\n  sensitive = true\n}\n'
VALUE = "correct-horse-battery"
YAML = "variables:\n  db: {type: string, sensitive: true}\nID: web\nTaskGroups:\n  - Name: g\n    Count: ${var.db}\n"
JSON = '{"variables": {"db": {"type": "string", "sensitive": true}}, "ID": "web", "Meta": {"a": "${var.db + 1}"}}'
TOML = 'ID = "web"\n[variables.db]\nsensitive = true\n[Meta]\na = "${file(var.db)}"\n'


@pytest.mark.parametrize(
    "body",
    [
        "count = var.db",
        "meta = { a = { b = 1 }[var.db] }",
        "priority = parseint(var.db, 10)",
        'meta = { a = { b = 1 }["x-${var.db}"] }',
        "meta = { a = { b = 1 }[upper(var.db)] }",
        "meta = { a = { b = 1 }[local.url] }",
        "meta = { a = { b = 1 }[local.copy] }",
    ],
)
def test_no_error_contains_the_value(body: str) -> None:
    text = f'{DECLARATION}locals {{\n  url = "pg://${{var.db}}@host"\n  copy = lower(local.url)\n}}\njob "j" {{\n{body}\n}}\n'

    errors = find_error_text(text, flags=[("db", VALUE)])

    assert errors
    assert VALUE not in errors
    assert VALUE.upper() not in errors


@pytest.mark.parametrize(
    "body",
    [
        "meta = { a = { b = 1 }[var.db_password] }",
        'meta = { a = { b = 1 }["x-${var.db_password}"] }',
        "meta = { a = { b = 1 }[local.copy] }",
        'meta = { a = regex_replace("x", "(${var.db_password}", "") }',
    ],
)
def test_no_error_contains_the_value_of_a_variable_with_the_name_of_a_secret(body: str) -> None:
    text = f'variable "db_password" {{\n  type = string\n}}\nlocals {{\n  copy = lower(var.db_password)\n}}\njob "j" {{\n{body}\n}}\n'

    errors = find_error_text(text, flags=[("db_password", VALUE)])

    assert errors
    assert VALUE not in errors


@pytest.mark.parametrize("value", [f"{VALUE.replace('-', '')}(1)", f"{{({VALUE.replace('-', '')}) = 1}}"])
@pytest.mark.parametrize("name", ["db", "db_password"])
def test_a_wrong_value_of_a_secret_from_outside_is_not_shown(name: str, value: str) -> None:
    text = (
        f'variable "{name}" {{\n  type = map(string)\n  sensitive = {str(name == "db").lower()}\n}}\njob "j" {{\n}}\n'
    )

    errors = find_error_text(text, flags=[(name, value)])

    assert errors
    assert VALUE.replace("-", "") not in errors


@pytest.mark.parametrize("values", [f'db = "{VALUE}', f'db = ["{VALUE}"]', f"db = {VALUE}(", f"db = [\n{VALUE}\n"])
def test_no_error_of_a_values_file_contains_the_value(values: str) -> None:
    document = parse_document(f'{DECLARATION}job "j" {{\n}}\n')
    names = list_sensitive_names(document)

    with pytest.raises(DocumentErrors) as caught:
        evaluate_hcl_job(document, VariableInputs(files=(parse_values(values, "values", names),)), PORTS)

    assert VALUE not in caught.value.text


def test_a_failed_validation_does_not_show_the_value() -> None:
    rule = 'validation {\n    condition = var.db == "x"\n    error_message = "not ${var.db}"\n  }\n}'
    text = DECLARATION.replace("true\n}", f"true\n  {rule}")

    errors = find_error_text(text + 'job "j" {\n}\n', flags=[("db", VALUE)])

    assert errors.startswith('--var db: invalid value for variable "db": its value is refused\n')


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ([("n", "20")], '--var n: invalid value 20 for variable "n": too large'),
        ([], 'job.hcl:3:13: invalid value 11 for variable "n": too large'),
    ],
)
def test_a_failed_validation_shows_a_value_that_is_not_sensitive(flags: list[tuple[str, str]], message: str) -> None:
    rule = 'validation {\n    condition = var.n < 10\n    error_message = "too large"\n  }'
    text = f'variable "n" {{\n  type = number\n  default = 11\n  {rule}\n}}\njob "j" {{\n}}\n'

    assert find_error_text(text, flags=flags).splitlines()[0] == message


def test_the_default_of_a_sensitive_variable_is_not_shown() -> None:
    text = f'variable "db" {{\n  type = number\n  default = "{VALUE}"\n  sensitive = true\n}}\njob "j" {{\n}}\n'

    assert VALUE not in find_error_text(text)


def test_sensitive_is_true_or_false() -> None:
    text = 'variable "db" {\n  default = "a"\n  sensitive = "maybe"\n}\njob "j" {\n}\n'

    assert "sensitive is true or false" in find_error_text(text)


@pytest.mark.parametrize(
    ("text", "format"), [(YAML, MarkupFormat.YAML), (JSON, MarkupFormat.JSON), (TOML, MarkupFormat.TOML)]
)
def test_other_formats_hide_the_value_too(text: str, format: MarkupFormat) -> None:
    inputs = VariableInputs(flags=[("db", VALUE)])
    try:
        parsed = parse_markup_job(text, "web", format, inputs, PORTS)
        shown = parsed.render_problem("TaskGroups[0].Count", f'expected a whole number, got "{VALUE}"')
    except DocumentErrors as errors:
        shown = errors.text

    assert VALUE not in shown


@pytest.mark.parametrize("target", [JobFormat.YAML, JobFormat.JSON, JobFormat.TOML])
def test_a_converted_file_has_a_mark_instead_of_the_value(target: JobFormat) -> None:
    text = f'{DECLARATION}job "j" {{\n  meta = {{ url = "pg://${{var.db}}@host" }}\n}}\n'
    inputs = VariableInputs(flags=[("db", VALUE)])

    conversion = convert_hcl_job(parse_document(text), target, inputs, PORTS, evaluates=True)

    assert f"pg://{HIDDEN}@host" in conversion.text
    assert VALUE not in conversion.text
    assert any("sensitive variables (db)" in loss for loss in conversion.losses)


def test_a_conversion_to_hcl_keeps_the_declaration() -> None:
    conversion = convert_data_job(SourceFile("web", YAML), JobFormat.YAML, JobFormat.HCL, VariableInputs(), PORTS)

    assert "sensitive = true" in conversion.text


def test_a_cut_value_is_hidden_too() -> None:
    hidden = HiddenValues()
    hidden.add({"a": ["x" * 30 + VALUE]})

    assert hidden.hide(f"no key {'x' * 30}{VALUE[:5]}... exists") == f"no key {HIDDEN}... exists"
