"""Sensitive variables: no text for users contains their values (records 0245, 0249 and 0250)."""

import pytest

from tests.job_files.hcl.job_texts import PORTS, find_error_text, parse_file
from wharf.job_files.conversion import JobFormat, convert_data_job, convert_hcl_job
from wharf.job_files.data_writer import UnwritableValue
from wharf.job_files.hcl.parsing import evaluate_hcl_job
from wharf.job_files.hcl.places import find_path_value
from wharf.job_files.markup_jobs import parse_markup_job
from wharf.languages.hcl.diagnostics import HIDDEN, DocumentErrors, HiddenValues, SourceFile
from wharf.languages.hcl.documents import list_declared_names, parse_document, parse_values
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
@pytest.mark.parametrize(("name", "argument"), [("db", "sensitive = true"), ("db_password", "")])
def test_a_wrong_value_of_a_secret_from_outside_is_not_shown(name: str, argument: str, value: str) -> None:
    text = f'variable "{name}" {{\n  type = map(string)\n  {argument}\n}}\njob "j" {{\n}}\n'

    errors = find_error_text(text, flags=[(name, value)])

    assert errors
    assert VALUE.replace("-", "") not in errors


@pytest.mark.parametrize("values", [f'db = "{VALUE}', f'db = ["{VALUE}"]', f"db = {VALUE}(", f"db = [\n{VALUE}\n"])
def test_no_error_of_a_values_file_contains_the_value(values: str) -> None:
    document = parse_document(f'{DECLARATION}job "j" {{\n}}\n')
    names = list_declared_names(document)

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
        shown = parsed.render_problem("TaskGroups[0].Count", "Count", f'expected a whole number, got "{VALUE}"')
    except DocumentErrors as errors:
        shown = errors.text

    assert VALUE not in shown


@pytest.mark.parametrize("target", [JobFormat.YAML, JobFormat.JSON, JobFormat.TOML])
def test_a_file_is_not_converted_if_the_result_would_contain_a_sensitive_value(target: JobFormat) -> None:
    text = f'{DECLARATION}job "j" {{\n  meta = {{ url = "pg://${{var.db}}@host" }}\n}}\n'
    inputs = VariableInputs(flags=[("db", VALUE)])

    with pytest.raises(UnwritableValue, match=r"meta\.url comes from a sensitive variable \(db\)"):
        convert_hcl_job(parse_document(text), target, inputs, PORTS, evaluates=True)


def test_a_file_is_converted_if_no_field_comes_from_its_sensitive_variable() -> None:
    text = f'{DECLARATION}job "j" {{\n  meta = {{ a = "b" }}\n}}\n'
    inputs = VariableInputs(flags=[("db", VALUE)])

    conversion = convert_hcl_job(parse_document(text), JobFormat.YAML, inputs, PORTS, evaluates=True)

    assert "a: b" in conversion.text
    assert VALUE not in conversion.text


@pytest.mark.parametrize("target", [JobFormat.YAML, JobFormat.JSON, JobFormat.TOML])
def test_a_conversion_keeps_a_sensitive_variable_and_needs_no_value_of_it(target: JobFormat) -> None:
    text = f'{DECLARATION}job "j" {{\n  meta = {{ url = "pg://${{var.db}}@host" }}\n}}\n'

    conversion = convert_hcl_job(parse_document(text), target, VariableInputs(), PORTS)

    assert "pg://${var.db}@host" in conversion.text
    assert "sensitive" in conversion.text


def test_a_conversion_to_hcl_keeps_the_declaration() -> None:
    conversion = convert_data_job(SourceFile("web", YAML), JobFormat.YAML, JobFormat.HCL, VariableInputs(), PORTS)

    assert "sensitive = true" in conversion.text


def test_a_cut_value_is_hidden_too() -> None:
    hidden = HiddenValues()
    hidden.add({"a": ["x" * 30 + VALUE]})

    assert hidden.hide(f"no key {'x' * 30}{VALUE[:5]}... exists") == f"no key {HIDDEN}... exists"


# -- the paths of sensitive fields

HCL_JOB = (
    DECLARATION
    + """locals {
  env = { USER = "app", PASSWORD = var.db }
}
job "j" {
  meta     = { plain = "x", half = substr(var.db, 0, 5) }
  priority = length(split("-", var.db))
  constraint {
    attribute = "${attr.kernel.name}"
    set_contains = var.db
  }
  vault {
    role = var.db
  }
  group "g" {
    task "t" {
      driver = "docker"
      config {
        image = "web:2"
        args  = ["-p", base64encode(var.db)]
        auth {
          username = "app"
          password = var.db
        }
        labels = { a = "b", c = var.db }
      }
      env  = merge(local.env, { MODE = "x" })
      meta {
        m = title(var.db)
        n = "y"
      }
      dynamic "template" {
        for_each = [local.env.PASSWORD, "plain"]
        content {
          data        = "x=${template.value}"
          destination = "local/${template.key}"
        }
      }
    }
  }
}
"""
)
YAML_JOB = """variables:
  db: {type: string, sensitive: true}
locals:
  env: {USER: app, PASSWORD: "${var.db}"}
ID: j
constraint: ["${attr.kernel.name} = ${var.db}", "${attr.kernel.name} = linux"]
group:
  g:
    task:
      t:
        driver: raw_exec
        kill_timeout: "${strlen(var.db)}s"
        env: "${local.env}"
        config:
          command: /bin/echo
          args: ["-p", "${upper(var.db)}"]
"""
TASK = ("TaskGroups", 0, "Tasks", 0)


def test_the_sensitive_fields_of_a_file_in_hcl_are_known_by_their_paths() -> None:
    parsed = parse_file(HCL_JOB, flags=[("db", VALUE)])

    assert set(parsed.sensitive_paths) == {
        ("Meta", "half"),
        ("Priority",),
        ("Constraints", 0, "RTarget"),
        (*TASK, "Vault", "Role"),
        (*TASK, "Config", "args", 1),
        (*TASK, "Config", "auth", 0, "password"),
        (*TASK, "Config", "labels", 0, "c"),
        (*TASK, "Env", "PASSWORD"),
        (*TASK, "Meta", "m"),
        (*TASK, "Templates", 0, "EmbeddedTmpl"),
    }


def test_the_sensitive_fields_of_a_file_in_yaml_are_known_by_their_paths() -> None:
    parsed = parse_markup_job(YAML_JOB, "j.yaml", MarkupFormat.YAML, VariableInputs(flags=[("db", VALUE)]), PORTS)

    assert set(parsed.sensitive_paths) == {
        ("Constraints", 0),
        (*TASK, "KillTimeout"),
        (*TASK, "Env", "PASSWORD"),
        (*TASK, "Config", "args", 1),
    }


@pytest.mark.parametrize("place", ["job", "group"])
def test_a_block_that_tasks_inherit_is_sensitive_in_each_task(place: str) -> None:
    vault = "vault {\n  role = var.db\n}\n"
    group = f'group "g" {{\n{vault if place == "group" else ""}task "a" {{\n}}\ntask "b" {{\n}}\n}}\n'
    parsed = parse_file(f'{DECLARATION}job "j" {{\n{vault if place == "job" else ""}{group}}}\n', flags=[("db", VALUE)])

    assert parsed.sensitive_paths == [("TaskGroups", 0, "Tasks", at, "Vault", "Role") for at in (0, 1)]


def test_every_sensitive_path_leads_to_a_value_of_the_job() -> None:
    parsed = parse_file(HCL_JOB, flags=[("db", VALUE)])

    assert [path for path in parsed.sensitive_paths if find_path_value(parsed.document, path) is None] == []


def test_a_file_without_sensitive_variables_has_no_sensitive_fields() -> None:
    assert (
        list(parse_file(HCL_JOB.replace("sensitive = true", "sensitive = false"), flags=[("db", "a")]).sensitive_paths)
        == []
    )


@pytest.mark.parametrize(
    "config",
    [
        "config { exit_code = title(var.db) }",
        'template { data = "{{ ${replace(title(var.db), "-", " ")} }}" }',
        "env = { (title(var.db)) = [1] }",
        "kill_timeout = title(var.db)",
        'scaling "cpu" { type = title(var.db) }',
    ],
)
def test_no_error_of_a_task_contains_a_computed_value(config: str) -> None:
    text = f'{DECLARATION}job "j" {{\ngroup "g" {{\ntask "t" {{\ndriver = "mock"\n{config}\n}}\n}}\n}}\n'
    document = parse_document(text)

    with pytest.raises(DocumentErrors) as caught:
        evaluate_hcl_job(document, VariableInputs(flags=[("db", VALUE)]), PORTS, checks_tasks=True)

    shown = caught.value.text.replace(config, "")
    assert [word for word in ("correct", "horse", "battery", VALUE[::-1]) if word in shown.lower()] == []


# -- variables with the name of a secret


@pytest.mark.parametrize(
    ("argument", "is_sensitive"), [("", True), ("sensitive = true", True), ("sensitive = false", False)]
)
def test_a_variable_with_the_name_of_a_secret_is_sensitive_unless_it_is_declared_otherwise(
    argument: str, is_sensitive: bool
) -> None:
    text = f'variable "api_key" {{\n  type = string\n  {argument}\n}}\njob "j" {{\n  meta = {{ a = var.api_key }}\n}}\n'

    parsed = parse_file(text, flags=[("api_key", VALUE)])

    assert (parsed.sensitive_paths == [("Meta", "a")], parsed.hidden.names == {"api_key"}) == (
        is_sensitive,
        is_sensitive,
    )


def test_a_note_says_that_a_variable_is_sensitive_because_of_its_name() -> None:
    text = 'variable "api_key" {\n  default = "a"\n}\nvariable "db" {\n  default = "b"\n  sensitive = true\n}\njob "j" {\n}\n'

    assert parse_file(text).warnings == [
        'job.hcl:1:10: the variable "api_key" is treated as sensitive because of its name: write sensitive = true, or '
        "sensitive = false to show its value"
    ]


@pytest.mark.parametrize(
    ("body", "warning"),
    [
        ("name = var.db", "6:8: name"),
        ('dynamic "group" {\nfor_each = [var.db]\nlabels = [group.value]\ncontent {}\n}', "6:9: group.Name"),
    ],
)
def test_a_name_that_comes_from_a_sensitive_variable_has_a_warning(body: str, warning: str) -> None:
    parsed = parse_file(f'{DECLARATION}job "j" {{\n{body}\n}}\n', flags=[("db", VALUE)])

    assert parsed.warnings == [f"job.hcl:{warning} comes from a sensitive variable, and names are not hidden"]


@pytest.mark.parametrize(("argument", "is_shown"), [("", False), ("sensitive = false", True)])
def test_an_error_shows_the_value_of_a_variable_that_is_declared_as_not_sensitive(
    argument: str, is_shown: bool
) -> None:
    text = f'variable "auth_mode" {{\n  type = number\n  default = "{VALUE}"\n  {argument}\n}}\njob "j" {{\n}}\n'

    assert (VALUE in find_error_text(text)) is is_shown


@pytest.mark.parametrize(("argument", "is_shown"), [("", False), ("sensitive = false", True)])
def test_an_error_of_a_values_file_respects_the_declaration(argument: str, is_shown: bool) -> None:
    document = parse_document(f'variable "auth_mode" {{\n  type = number\n  {argument}\n}}\njob "j" {{\n}}\n')
    values = parse_values(f'auth_mode = ["{VALUE}"]\n', "values", list_declared_names(document))

    with pytest.raises(DocumentErrors) as caught:
        evaluate_hcl_job(document, VariableInputs(files=(values,)), PORTS)

    assert (VALUE in caught.value.text) is is_shown
