"""The advice of errors that users of job files meet most: the right place, and what to write instead (hcl.md 12)."""

import pytest

from tests.job_files.hcl.job_texts import PORTS
from wharf.job_files.hcl.parsing import evaluate_hcl_job
from wharf.languages.hcl.diagnostics import DocumentErrors
from wharf.languages.hcl.documents import parse_document
from wharf.languages.hcl.variables import VariableInputs

TASK = """\
job "x" {
  group "g" {
    task "t" {
      driver = "docker"
      config {
        image = "web:1"
CONFIG      }
REST    }
  }
}
"""


def list_errors(text: str) -> list[str]:
    """Return the errors of a file as `line: marked part: message | fix`."""
    try:
        evaluate_hcl_job(parse_document(text), VariableInputs(), PORTS, checks_tasks=True)
    except DocumentErrors as errors:
        return [
            f"{each.place.location.line}: {text[each.place.start : each.place.end]}: {each.message} | {each.fix}"
            for each in errors.diagnostics
        ]
    return []


def in_config(text: str) -> str:
    return TASK.replace("CONFIG", f"{text}\n").replace("REST", "")


def in_task(text: str) -> str:
    return TASK.replace("CONFIG", "").replace("REST", f"{text}\n")


@pytest.mark.parametrize(
    ("text", "marked", "fix"),
    [
        ("memory = 256MB", "256MB", "write memory = 256, without a unit: the number is in megabytes"),
        ("memory = 1GB", "1GB", "write memory = 1024, without a unit: the number is in megabytes"),
        ("memory = 1.5GB", "1.5GB", "write memory = 1536, without a unit: the number is in megabytes"),
        ("cpu = 2GHz", "2GHz", "write cpu = 2000, without a unit: the number is in megahertz"),
        ("cpu = 500m", "500m", "write megahertz, such as 500: CPU is not counted in cores; Cores reserves whole cores"),
        ("kill_timeout = 10s", "10s", 'write kill_timeout = "10s"'),
        ("kill_timeout = 1h30m", "1h30m", 'write kill_timeout = "1h30m"'),
        ("kill_timeout = 2d", "2d", 'write kill_timeout = "48h"'),
        ("memory = 0x10", "0x10", "write 16: numbers are decimal and have digits only"),
        ("cpu = 1_000", "1_000", "write 1000: numbers are decimal and have digits only"),
        ("meta {\nsize = 5MB\n}", "5MB", 'put it in quotes: "5MB"'),
        ("config {\nshm_size = 64MB\n}", "64MB", 'write shm_size = "64MB", or the number without a unit if the option is a number'),
    ],
)  # fmt: skip
def test_a_number_with_a_unit_gets_the_accepted_form(text: str, marked: str, fix: str) -> None:
    line = 9 if "{" in text else 8

    assert list_errors(in_task(text)) == [f"{line}: {marked}: {marked} is not a number | {fix}"]


@pytest.mark.parametrize(
    "text", ["/bin/true", "./run.sh", "~/run", "http://x.org/y", "redis:7", "1.2.3.4/8", "50%", "10:20"]
)
def test_a_text_without_quotes_is_marked_as_a_whole(text: str) -> None:
    expected = [f'7: {text}: {text} is a text, and texts are in quotes | write "{text}"']

    assert list_errors(in_config(f"command = {text} # a comment")) == expected


def test_a_path_without_quotes_in_a_list_is_marked() -> None:
    assert list_errors(in_config("args = [/bin/true, 1]")) == [
        '7: /bin/true: /bin/true is a text, and texts are in quotes | write "/bin/true"'
    ]


def test_two_arguments_on_one_line_are_one_error() -> None:
    assert list_errors(in_task("resources {\ncpu = 500; memory = 300\n}")) == [
        "9: ;: an argument ends with its line | delete the semicolon, and put what follows on a line of its own"
    ]


def test_a_missing_comma_is_named() -> None:
    assert list_errors(in_config('args = ["x" "y"]')) == [
        '7: "y": a comma is missing before this item of the list | write a comma between two items, also at the end of a line'
    ]


def test_a_list_without_an_end_is_named_at_the_next_argument() -> None:
    assert list_errors(in_config('args = ["x"\ncommand = "y"')) == [
        '8: command: the list has no "]" before command | write ] after its last item'
    ]


def test_a_template_in_the_label_of_a_job_says_where_names_are_computed() -> None:
    assert list_errors('job "x-${var.y}" {\n}\n') == [
        "1: ${var.y}: a label is a plain text: it is not computed, so it has no ${ | "
        'write a fixed label, and id = "..." and name = "..." in the job: these may be computed'
    ]


def test_a_template_in_another_label_leads_to_a_dynamic_block() -> None:
    (error,) = list_errors('job "x" {\n  group "g-${var.y}" {\n  }\n}\n')

    assert 'write dynamic "group" { with for_each, labels = ["..."] and content { ... }' in error


@pytest.mark.parametrize("text", ["port_map {\nhttp = 80\n}", "port_map = { http = 80 }"])
def test_a_former_option_of_docker_is_marked_and_gets_its_replacement(text: str) -> None:
    assert list_errors(in_config(text)) == [
        '7: port_map: "port_map" is an option of Nomad that Wharf does not have | '
        'add a port "NAME" with to = PORT to the network of the group, and write ports = ["NAME"] here'
    ]


def test_unknown_options_are_reported_with_the_other_errors_of_the_file() -> None:
    text = in_config("comand = 1\nloging {\n}").replace('group "g" {', 'group "g" {\n    cuont = 1')

    assert [error.partition(" | ")[0] for error in list_errors(text)] == [
        '3: cuont: no argument "cuont" is allowed in group',
        '8: comand: unknown key "comand" for driver docker',
        '9: loging: unknown key "loging" for driver docker',
    ]


def test_errors_of_variables_and_local_values_do_not_hide_those_of_the_job() -> None:
    text = 'variable "a" {\n}\nlocals {\n  b = local.c\n}\njob "x" {\n  meta = { a = var.a, b = local.b }\n  foo = var.z\n}\n'

    assert [error.partition(" | ")[0] for error in list_errors(text)] == [
        '1: "a": the variable "a" has no value',
        '4: local.c: no local value "c" is declared',
        '8: foo: no argument "foo" is allowed in job',
    ]


def test_a_value_on_the_next_line_is_one_error() -> None:
    assert list_errors('job "x" {\n  type =\n    "batch"\n}\n') == [
        '2: type =: "type" has no value on its line | write the value on the same line'
    ]


def test_a_brace_on_the_next_line_is_one_error() -> None:
    (error,) = list_errors('job "x"\n{\n  type = "batch"\n}\n')

    assert error.endswith('expected "{", found the end of the line | write { on the line of job')


def test_a_minus_sign_without_blanks_gets_the_advice_to_add_them() -> None:
    text = 'locals {\n  a = 1\n  b = local.a-1\n}\njob "x" {\n}\n'

    assert list_errors(text) == [
        '3: local.a-1: no local value "a-1" is declared | write local.a - 1 to subtract: a name may contain -'
    ]


def test_a_quoted_name_in_a_block_of_config_gets_an_object_of_that_name() -> None:
    assert list_errors(in_config('labels {\n"a.b" = 1\n}')) == [
        '8: "a.b": the name of an argument has no quotes | '
        'for a name such as "a.b", write an object: labels = { "a.b" = ... }'
    ]


@pytest.mark.parametrize("text", ["ID: a\nType: batch\nPriority: 5\n", "# a\n---\nID: a\nType: batch\n"])
def test_a_file_in_yaml_is_one_error(text: str) -> None:
    (error,) = list_errors(text)

    assert error.partition(": ")[2].endswith("the file is written in YAML | give it a name that ends with .yaml")


def test_an_option_of_a_driver_in_a_task_belongs_into_config() -> None:
    assert list_errors(in_task('image = "x"')) == [
        '8: image: no argument "image" is allowed in task | it is an option of the driver: write it in config { }'
    ]
