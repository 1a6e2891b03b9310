"""Job files in all formats, with variables, against a server in memory."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.attempts import limited_cpu
from tests.cli.terminal import WEB, Terminal, open_terminal, write_file

HCL_WEB = """\
variable "count" {
  type    = number
  default = 1
}

variable "zones" {
  type    = list(string)
  default = []
}

job "web" {
  meta = { zones = join(",", var.zones) }
  group "api" {
    count = var.count
    task "main" {
      driver = "mock"
      config {
        run_for = "1h"
      }
      resources {
        cpu    = 100
        memory = 32
      }
      kill_timeout = "20s"
    }
  }
}
"""
YAML_WEB = """\
variables:
  count: {type: number, default: 1}
  zones: {type: list(string), default: []}
ID: web
Meta: {zones: '${join(",", var.zones)}'}
TaskGroups:
  - Name: api
    Count: ${var.count}
    Tasks:
      - Name: main
        Driver: mock
        Config: {run_for: 1h}
        Resources: {CPU: 100, MemoryMB: 32}
        KillTimeout: 20s
"""
TOML_WEB = """\
ID = "web"
[variables.count]
type = "number"
default = 1
[variables.zones]
type = "list(string)"
default = []
[Meta]
zones = '${join(",", var.zones)}'
[[TaskGroups]]
Name = "api"
Count = "${var.count}"
[[TaskGroups.Tasks]]
Name = "main"
Driver = "mock"
KillTimeout = "20s"
Config = { run_for = "1h" }
Resources = { CPU = 100, MemoryMB = 32 }
"""
JSON_WEB = json.dumps({
    "variables": {"count": {"type": "number", "default": 1}, "zones": {"type": "list(string)", "default": []}},
    "Job": {
        "ID": "web",
        "Meta": {"zones": '${join(",", var.zones)}'},
        "TaskGroups": [
            {
                "Name": "api",
                "Count": "${var.count}",
                "Tasks": [
                    {
                        "Name": "main", "Driver": "mock", "Config": {"run_for": "1h"}, "KillTimeout": "20s",
                        "Resources": {"CPU": 100, "MemoryMB": 32},
                    }
                ],
            }
        ],
    },
})  # fmt: skip
HCL_IN_JSON = json.dumps({
    "variable": {"count": {"type": "number", "default": 1}, "zones": {"type": "list(string)", "default": []}},
    "job": {
        "web": {
            "meta": {"zones": '${join(",", var.zones)}'},
            "group": {
                "api": {
                    "count": "${var.count}",
                    "task": {
                        "main": {
                            "driver": "mock", "config": {"run_for": "1h"}, "kill_timeout": "20s",
                            "resources": {"cpu": 100, "memory": 32},
                        }
                    },
                }
            },
        }
    },
})  # fmt: skip
FORMATS = {
    "web.hcl": HCL_WEB, "web.nomad": HCL_WEB, "web.wharf": HCL_WEB, "web": HCL_WEB, "web.yaml": YAML_WEB, "web.yml": YAML_WEB,
    "web.txt": YAML_WEB, "web.toml": TOML_WEB, "web.conf": TOML_WEB, "web.json": JSON_WEB, "hcl.json": HCL_IN_JSON,
}  # fmt: skip
"""Names of job files with their texts; all are the same job."""
PLAIN_HCL = 'job "web" {\n  group "api" {\n    task "main" {\n      driver = "mock"\n    }\n  }\n}\n'
DETACHED_RUN = ("job", "run", "--detach")


@pytest.fixture
def terminal(capsys: pytest.CaptureFixture[str]) -> Iterator[Terminal]:
    with open_terminal(capsys, nodes=1) as terminal:
        yield terminal


def read_job(terminal: Terminal, template: str) -> str:
    return terminal.run_ok("job", "inspect", "-t", template, "web")


def read_submission(terminal: Terminal, version: int = 0) -> dict[str, object]:
    document = terminal.run_ok("operator", "api", f"/v1/job/web/submission?version={version}")
    return json.loads(document)  # type: ignore[no-any-return]  # an object


# -- formats


@pytest.mark.parametrize("name", FORMATS)
def test_a_job_file_of_any_format_is_validated_planned_and_run_with_values_for_its_variables(
    terminal: Terminal, tmp_path: Path, name: str
) -> None:
    file = write_file(tmp_path, FORMATS[name], name)
    words = ("-var", "count=2", "--var", 'zones=["a", "b"]', file)

    valid = terminal.run("job", "validate", *words)
    planned = terminal.run("job", "plan", *words)
    terminal.run_ok(*DETACHED_RUN, *words)

    template = "{{range .TaskGroups}}{{.Count}} {{range .Tasks}}{{.KillTimeout}} {{.Resources.MemoryMB}}{{end}}{{end}} {{.Meta.zones}}"
    assert read_job(terminal, template) == "2 20000000000 32 a,b\n"
    assert (valid.code, valid.err) == (0, "")
    assert (planned.code, ": 2 to place" in planned.out) == (1, True)
    assert f"""--var count=2 --var 'zones=["a", "b"]' {file}""" in planned.out


@pytest.mark.parametrize("text", [HCL_WEB, YAML_WEB, TOML_WEB, JSON_WEB, HCL_IN_JSON])
def test_a_job_is_read_from_standard_input_in_any_format(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str
) -> None:
    with Path(write_file(tmp_path, text, "input")).open() as stream:
        monkeypatch.setattr("sys.stdin", stream)
        terminal.run_ok(*DETACHED_RUN, "-")

    assert read_job(terminal, "{{.ID}}") == "web\n"


def test_all_errors_of_a_file_in_hcl_are_shown_with_their_lines(terminal: Terminal, tmp_path: Path) -> None:
    text = HCL_WEB.replace("kill_timeout", "kil_timeout").replace("memory = 32", 'memory = "32MB"')
    file = write_file(tmp_path, text, "web.hcl")

    result = terminal.run("job", "run", file)

    assert (result.code, terminal.used_settings) == (1, [])
    assert [line.removeprefix(f"wharf: {file}:") for line in result.errors] == [
        '22:18: "memory" takes a whole number of megabytes, not "32MB"',
        '24:7: no argument "kil_timeout" is allowed in task',
    ]
    assert '   did you mean "kill_timeout"?' in result.err.splitlines()


def test_an_error_that_the_server_finds_shows_the_line_of_a_file_in_hcl(terminal: Terminal, tmp_path: Path) -> None:
    file = write_file(tmp_path, HCL_WEB.replace("cpu    = 100", "cpu    = -1"), "web.hcl")

    result = terminal.run("job", "run", file)

    assert result.err.splitlines()[:3] == [
        f"wharf: {file}:21:18: group.task.resources.cpu: minimum CPU value is 1; got -1",
        "   21 |         cpu    = -1",
        "      |                  ^^",
    ]


# -- variables


def test_values_come_from_flags_files_automatic_files_and_the_environment_in_this_order(
    terminal: Terminal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = "abcdef"
    declarations = "".join(f'variable "{name}" {{\n default = "default"\n}}\n' for name in names)
    meta = ", ".join(f"{name} = var.{name}" for name in names)
    file = write_file(tmp_path, declarations + HCL_WEB.replace("meta = {", f"meta = {{ {meta},"), "web.hcl")
    for name in "bcdef":
        monkeypatch.setenv(f"NOMAD_VAR_{name}", "nomad")
    for name in "cdef":
        monkeypatch.setenv(f"WHARF_VAR_{name}", "wharf")
    automatic = write_file(tmp_path, 'd = "auto"\ne = "auto"\nf = "auto"\nunknown = 1\n', "x.auto.hclvars")
    values = write_file(tmp_path, 'e = "file"\nf = "file"\n', "prod.vars")

    result = terminal.run(*DETACHED_RUN, "--var-file", values, "--var", "f=flag", file)

    assert (result.code, result.err) == (0, f"note: read variables from {automatic}\n")
    assert read_job(terminal, "{{with .Meta}}{{.a}} {{.b}} {{.c}} {{.d}} {{.e}} {{.f}}{{end}}") == (
        "default nomad wharf auto file flag\n"
    )


def test_automatic_files_are_read_in_the_order_of_their_names(terminal: Terminal, tmp_path: Path) -> None:
    file = write_file(tmp_path, YAML_WEB)
    second = write_file(tmp_path, "count = 3\n", "b.auto.vars")
    first = write_file(tmp_path, '{"count": 2}', "a.auto.wharfvars.json")
    write_file(tmp_path, "count = 4\n", "c.auto.txt")

    result = terminal.run(*DETACHED_RUN, file)

    assert result.err == f"note: read variables from {first}, {second}\n"
    assert read_job(terminal, "{{(index .TaskGroups 0).Count}}") == "3\n"


@pytest.mark.parametrize(("text", "name"), [(WEB, "web.yaml"), (PLAIN_HCL, "web.hcl")])
def test_a_file_without_variables_reads_no_automatic_files(
    terminal: Terminal, tmp_path: Path, text: str, name: str
) -> None:
    write_file(tmp_path, "this is no values file", "a.auto.vars")

    assert terminal.run(*DETACHED_RUN, write_file(tmp_path, text, name)).err == ""


@pytest.mark.parametrize("text", ["#!/bin/sh\necho hello\n", "#!/bin/sh\nif true; then\n  echo $((1 + 2))\nfi\n"])
def test_a_script_in_place_of_a_job_file_is_named_as_such(terminal: Terminal, tmp_path: Path, text: str) -> None:
    (tmp_path / "train.sh").write_text(text)

    result = terminal.run("job", "run", str(tmp_path / "train.sh"))

    assert result.code == 1
    assert "this is a script, not a job file: run it with `wharf submit" in " ".join(result.err.split())
    assert "colon" not in result.err


@pytest.mark.parametrize("name", ["web.hcl", "web.yaml"])
def test_a_value_for_an_undeclared_variable_is_an_error_unless_strictness_is_off(
    terminal: Terminal, tmp_path: Path, name: str
) -> None:
    file = write_file(tmp_path, FORMATS[name], name)
    values = write_file(tmp_path, "cuont = 2\n", "prod.vars")

    result = terminal.run("job", "validate", "--var", "zone=a", "--var-file", values, file)
    lenient = terminal.run("job", "validate", "-hcl2-strict=false", "--var", "zone=a", "--var-file", values, file)

    assert result.errors == [
        f'wharf: {values}:1:1: no variable "cuont" is declared in the file',
        'wharf: --var zone: no variable "zone" is declared in the file',
    ]
    assert (lenient.code, lenient.err) == (0, "")


def test_a_variable_without_a_value_is_an_error_that_names_the_ways_to_set_it(
    terminal: Terminal, tmp_path: Path
) -> None:
    file = write_file(tmp_path, YAML_WEB.replace("count: {type: number, default: 1}", "count: {type: number}"))

    result = terminal.run("job", "validate", file)

    assert result.errors == [f'wharf: {file}:2:3: the variable "count" has no value']
    assert "set it with --var count=..., in a values file, as WHARF_VAR_count in the environment" in result.err


def test_a_wrong_text_for_an_option_of_variables_does_not_show_the_value(terminal: Terminal, tmp_path: Path) -> None:
    file = write_file(tmp_path, HCL_WEB, "web.hcl")

    result = terminal.run("job", "validate", "--var", "hunter2", file)

    assert "hunter2" not in result.err
    assert "the text has no =: write --var NAME=VALUE" in result.err


@pytest.mark.parametrize("name", ["web.hcl", "web.yaml"])
def test_a_failed_validation_does_not_show_the_value_of_a_secret(terminal: Terminal, tmp_path: Path, name: str) -> None:
    declaration = (
        'variable "db_password" {\n type = number\n}\n'
        if name == "web.hcl"
        else "variables:\n  db_password: {type: number}\n"
    )
    file = write_file(tmp_path, declaration + FORMATS[name].replace("variables:\n", ""), name)

    result = terminal.run("job", "validate", "--var", "db_password=hunter2", file)

    assert result.code == 1
    assert "hunter2" not in result.err
    assert '--var db_password: the value of variable "db_password" is not of type number' in result.err


# -- sensitive variables


SENSITIVE_HCL: Final = HCL_WEB.replace("default = []\n", "default = []\n  sensitive = true\n")


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (SENSITIVE_HCL, "web.hcl"),
        (YAML_WEB.replace("default: []", "default: [], sensitive: true"), "web.yaml"),
    ],
)
def test_a_sensitive_value_is_neither_shown_nor_stored(
    terminal: Terminal, tmp_path: Path, text: str, name: str
) -> None:
    file = write_file(tmp_path, text, name)
    secret, other = 'zones=["correct-horse"]', 'zones=["battery-staple"]'
    values = write_file(tmp_path, 'zones = ["correct-horse"]\n', "prod.vars")
    terminal.run_ok(*DETACHED_RUN, "--var-file", values, "--var", secret, file)

    planned = terminal.run("job", "plan", "--var", other, file)
    as_json = terminal.run("job", "plan", "--json", "--var", other, file)

    shown = planned.out + planned.err + as_json.out + as_json.err
    assert '"(hidden)" → "(hidden)"' in planned.out
    assert "correct-horse" not in shown
    assert "battery-staple" not in shown
    assert f"--var zones=... {file}" in planned.out
    submission = read_submission(terminal)
    assert (submission["Source"], submission["VariableFlags"], submission["Variables"]) == (text, None, "")


def test_an_error_of_the_server_does_not_show_a_sensitive_value(terminal: Terminal, tmp_path: Path) -> None:
    text = SENSITIVE_HCL.replace('job "web" {\n', 'job "web" {\n  type = var.zones[0]\n')
    file = write_file(tmp_path, text, "web.hcl")

    result = terminal.run("job", "validate", "--var", 'zones=["correct-horse"]', file)

    assert "type: " in result.err
    assert "(hidden)" in result.err
    assert "correct-horse" not in result.err


COMPUTED: Final = SENSITIVE_HCL.replace(
    'meta = { zones = join(",", var.zones) }',
    'meta = { half = substr(var.zones[0], 0, 7), other = title(var.zones[0]), plain = "x" }',
)


def test_a_computed_value_is_not_shown_in_plans_and_histories(terminal: Terminal, tmp_path: Path) -> None:
    file = write_file(tmp_path, COMPUTED, "web.hcl")
    terminal.run_ok(*DETACHED_RUN, "--var", 'zones=["correct-horse"]', file)

    planned = terminal.run("job", "plan", "--verbose", "--var", 'zones=["battery-staple"]', file)
    terminal.run_ok(*DETACHED_RUN, "--var", 'zones=["battery-staple"]', file)
    terminal.run_ok(*DETACHED_RUN, write_file(tmp_path, WEB, "web.yaml"))
    history = terminal.run_ok("job", "history", "-p", "web")

    shown = (planned.out + planned.err + history).lower()
    assert [word for word in ("correct", "horse", "battery", "staple") if word in shown] == []
    assert '± Meta[half]   "(hidden)" → "(hidden)"' in planned.out
    assert '- Meta[half]   "(hidden)"' in history
    assert '- Meta[plain]  "x"' in history


def test_environment_variables_with_the_name_of_a_secret_are_not_shown_in_differences(
    terminal: Terminal, tmp_path: Path
) -> None:
    for value in ("first-value", "second-value"):
        text = WEB.replace("Driver: mock,", f"Driver: mock, Env: {{API_KEY: {value}, MODE: {value}}},")
        file = write_file(tmp_path, text)
        planned = terminal.run("job", "plan", "--verbose", file)
        terminal.run_ok(*DETACHED_RUN, file)

    history = terminal.run_ok("job", "history", "-p", "web")

    for shown in (planned.out, history):
        assert 'Env[API_KEY]  "(hidden)" → "(hidden)"' in shown
        assert 'Env[MODE]     "first-value" → "second-value"' in shown


def test_errors_as_json_do_not_show_a_sensitive_value(terminal: Terminal, tmp_path: Path) -> None:
    text = SENSITIVE_HCL.replace('job "web" {\n', 'job "web" {\n  type = strrev(var.zones[0])\n')
    file = write_file(tmp_path, text, "web.hcl")

    result = terminal.run("job", "validate", "--json", "--var", 'zones=["correct-horse"]', file)

    assert "Invalid job type" in result.out
    assert "esroh" not in result.out + result.err


def test_the_mark_of_a_hidden_value_in_a_file_is_an_error_with_its_place(terminal: Terminal, tmp_path: Path) -> None:
    file = write_file(tmp_path, HCL_WEB.replace('join(",", var.zones)', '"pg://(hidden)@host"'), "web.hcl")

    result = terminal.run("job", "validate", file)

    assert result.code == 1
    assert f"{file}:12:20: meta.zones: The value has (hidden), which outputs have in place of a secret" in result.err


@pytest.mark.parametrize(
    "field",
    [
        '"${strrev(var.pw)}": 1',
        'Env: {"${strrev(var.pw)}": [1]}',
        'Env: {"${strrev(var.pw)}": "(hidden)"}',
        'Env: {"]${strrev(var.pw)}": "(hidden)"}',
        'Config: {"${strrev(var.pw)}": 1}',
    ],
)
def test_no_error_shows_a_computed_key(terminal: Terminal, tmp_path: Path, field: str) -> None:
    text = (
        f"variables: {{pw: {{type: string, sensitive: true}}}}{WEB.replace('Driver: mock', f'Driver: mock, {field}')}"
    )

    result = terminal.run("job", "validate", "--var", "pw=correct-horse", write_file(tmp_path, text))

    assert result.code == 1
    assert "esroh" not in result.out + result.err


def test_the_request_of_a_job_with_sensitive_values_has_a_note(terminal: Terminal, tmp_path: Path) -> None:
    file = write_file(tmp_path, COMPUTED, "web.hcl")

    result = terminal.run("job", "run", "--output", "--var", 'zones=["correct-horse"]', file)

    assert "note: the request contains the values of sensitive variables" in result.err


# -- notes


def test_notes_have_the_names_of_the_file_and_the_line(terminal: Terminal, tmp_path: Path) -> None:
    body = "      resources {\n        iops   = 5\n"
    file = write_file(tmp_path, HCL_WEB.replace("      resources {\n", body).replace('"20s"', "20"), "web.hcl")

    result = terminal.run("job", "validate", file)

    assert result.err.splitlines() == [
        f'note: {file}:25:22: group.task.kill_timeout: 20 without a unit means nanoseconds: write "20s" for seconds',
        f"note: {file}:21:18: group.task.resources.iops: IOPS has been deprecated and has no effect",
    ]


def test_a_flag_without_a_value_says_what_to_write(terminal: Terminal, tmp_path: Path) -> None:
    result = terminal.run("job", "validate", "--var", "count", write_file(tmp_path, HCL_WEB, "web.hcl"))

    assert "write --var NAME=VALUE, such as --var copies=2" in result.err


# -- the stored source


def test_the_source_is_stored_with_flags_and_with_one_text_of_values(terminal: Terminal, tmp_path: Path) -> None:
    file = write_file(tmp_path, HCL_WEB, "web.hcl")
    values = write_file(tmp_path, 'zones = ["x"]\ncount = 5\n', "prod.vars")

    terminal.run_ok(*DETACHED_RUN, "--var-file", values, "--var", "count=2", "--var", 'zones=["a", "b"]', file)

    submission = read_submission(terminal)
    assert (submission["Source"], submission["Format"]) == (HCL_WEB, "hcl2")
    assert submission["VariableFlags"] == {"count": "2"}
    assert submission["Variables"] == 'zones = ["a", "b"]\n'


def test_the_stored_values_give_the_same_job_at_the_endpoint_that_parses_job_files(
    terminal: Terminal, tmp_path: Path
) -> None:
    file = write_file(tmp_path, HCL_WEB, "web.hcl")
    values = write_file(tmp_path, 'zones = ["x\\n${y}", "z"]\n'.replace("${", "$${"), "prod.vars")
    terminal.run_ok(*DETACHED_RUN, "--var-file", values, file)

    submission = read_submission(terminal)
    body = json.dumps({"JobHCL": submission["Source"], "Variables": submission["Variables"]})
    parsed = json.loads(terminal.run_ok("operator", "api", "-X", "POST", "/v1/jobs/parse", body))

    assert parsed["Meta"] == {"zones": "x\n${y},z"}


# -- file functions


def test_file_functions_read_relative_to_the_working_directory(
    terminal: Terminal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "conf" / "deep").mkdir(parents=True)
    write_file(tmp_path, "hello", "conf/a.txt")
    write_file(tmp_path, "", "conf/deep/b.txt")
    calls = {
        "a": 'file("conf/a.txt")', "b": 'filebase64("conf/a.txt")', "c": 'join(",", fileset("conf", "**/*.txt"))',
        "d": 'join(",", fileset("conf", "*.{txt,md}"))', "e": 'fileexists("nope")', "f": 'basename("x/y.z")',
        "g": 'dirname("x/y.z")', "h": 'abspath("x")',
    }  # fmt: skip
    meta = ", ".join(f"{name} = {call}" for name, call in calls.items())
    terminal.run_ok(*DETACHED_RUN, write_file(tmp_path, HCL_WEB.replace("meta = {", f"meta = {{ {meta},"), "web.hcl"))

    assert read_job(terminal, "{{with .Meta}}{{.a}} {{.b}} {{.c}} {{.d}} {{.e}} {{.f}} {{.g}} {{.h}}{{end}}") == (
        f"hello aGVsbG8= a.txt,deep/b.txt a.txt false y.z x {tmp_path}/x\n"
    )


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ('file("nope.txt")', "nope.txt does not exist"),
        ('file(".")', ". is a folder"),
        ('file("large")', "large is larger than 1 MB"),
        ('file("bytes")', "bytes is not UTF-8 text"),
        ('fileexists(".")', ". is a folder"),
        ('fileset(".", "[z-a]")', "[z-a] is no pattern"),
        ('file("a\\u0000b")', "a path has no null character"),
        ('file("~nobody-has-this-name/x")', "has no folder of such a user"),
        ('fileexists("~nobody-has-this-name/x")', "has no folder of such a user"),
        ('fileset("~nobody-has-this-name/x", "*")', "has no folder of such a user"),
        (f'fileexists("{"a" * 5_000}")', "a path has at most 1,000 characters"),
    ],
)
def test_a_file_that_cannot_be_read_is_an_error_at_the_call(
    terminal: Terminal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "large").write_bytes(b"x" * 1_000_001)
    (tmp_path / "bytes").write_bytes(b"\xff")
    file = write_file(tmp_path, HCL_WEB.replace('join(",", var.zones)', f"jsonencode({call})"), "web.hcl")

    result = terminal.run("job", "validate", file)

    assert result.code == 1
    assert message in result.errors[0]
    assert result.errors[0].startswith(f"wharf: {file}:12:")


def test_a_pattern_with_many_stars_is_matched_in_little_time(
    terminal: Terminal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "many").mkdir()
    (tmp_path / "many" / ("a" * 60)).touch()
    call = f'fileset("many", "{"*a" * 12}*b")'
    file = write_file(tmp_path, HCL_WEB.replace('join(",", var.zones)', f"jsonencode({call})"), "web.hcl")

    with limited_cpu(2.0, "the command"):
        result = terminal.run("job", "validate", file)

    assert result.code == 0, result.err


# -- unknown names, and types of options


@pytest.mark.parametrize(
    ("options", "problem", "fix"),
    [
        (
            'args = "x"\n        command = "sh"',
            '11:16: "args" for driver raw_exec takes a list of texts, not "x"',
            'write ["x"]',
        ),
        ('command = ["a"]', '11:19: "command" for driver raw_exec takes a text, not a list', 'write "a"'),
        ("command {\n}", '11:9: "command" for driver raw_exec takes a text, not a block', "write one text in quotes"),
        ('work_dir = "/"', '10:7: a task with the driver raw_exec needs the option "command"', 'such as "/bin/sh"'),
    ],
)
@pytest.mark.parametrize("words", [("job", "validate"), ("job", "plan"), ("job", "run")])
def test_a_wrong_or_missing_option_is_an_error_at_its_place(
    terminal: Terminal, tmp_path: Path, options: str, problem: str, fix: str, words: tuple[str, str]
) -> None:
    text = f"""job "web" {{
  type = "batch"

  group "g" {{

    task "t" {{

      driver = "raw_exec"

      config {{
        {options}
      }}
    }}
  }}
}}
"""
    file = write_file(tmp_path, text, "web.hcl")

    result = terminal.run(*words, file)

    assert terminal.used_settings == []
    assert result.errors == [f"wharf: {file}:{problem}"]
    assert fix in result.err


@pytest.mark.parametrize(
    ("task", "place", "message"),
    [
        ("config {\n image = var.image\n}", "1:10", 'the variable "image" has no value'),
        ("config {\n image = upper([])\n}", "7:16", "upper: s: expected a text, got a list"),
        ("config {\n imge = 1\n}", "7:2", 'unknown key "imge" for driver docker'),
        ('confg {\n image = "x"\n}', "6:1", 'no block "confg" is allowed in task'),
        ('image = "x"', "6:1", 'no argument "image" is allowed in task'),
    ],
)
def test_a_missing_option_is_no_second_error_after_the_mistake_that_causes_it(
    terminal: Terminal, tmp_path: Path, task: str, place: str, message: str
) -> None:
    head = 'variable "image" {}\n' if "var." in task else 'variable "image" {default = ""}\n'
    text = f'{head}job "a" {{\n group "g" {{\n  task "t" {{\n   driver = "docker"\n{task}\n}}\n}}\n}}\n'
    file = write_file(tmp_path, text, "a.hcl")

    result = terminal.run("job", "validate", file)

    assert [f"wharf: {file}:{place}: {message}"] == result.errors


@pytest.mark.parametrize(
    ("data", "column", "problem", "fix"),
    [
        ('{{ key "a" }}', 4, "key is not a function", "Wharf has no Consul"),
        ('{{ wiht secret "a" }}', 4, "wiht is not a function", "did you mean with?"),
        ('{{ with secret "a" }}x{{ end }}', 9, "secret is not a function", "Wharf has no Vault"),
        ('a {{ toUper "a" }}', 6, "toUper is not a function", "did you mean toUpper?"),
        ("{{ if true }}", 4, "this if block has no end", "write {{ end }} after it"),
        ("{{ range }}{{ end }}", 1, "expected a field, a variable, a text or a function", "add it, such as .Name"),
    ],
)
@pytest.mark.parametrize("name", ["web.hcl", "web.yaml", "web.toml"])
def test_a_mistake_in_the_text_of_a_template_is_an_error_at_its_place(
    terminal: Terminal, tmp_path: Path, name: str, data: str, column: int, problem: str, fix: str
) -> None:
    hcl = (
        'job "web" {\n group "g" {\n task "t" {\n driver = "mock"\n template {\n destination = "local/a"\n'
        f"  data = <<EOF\nfirst\n{data}\nEOF\n}}\n}}\n}}\n}}\n"
    )
    template = (
        f"      Templates:\n      - DestPath: local/a\n        EmbeddedTmpl: |\n          first\n          {data}\n"
    )
    yaml = f"ID: web\nTaskGroups:\n- Name: g\n  Tasks:\n    - Name: t\n      Driver: mock\n{template}"
    toml = (
        'ID = "web"\n[[TaskGroups]]\nName = "g"\n[[TaskGroups.Tasks]]\nName = "t"\nDriver = "mock"\n'
        f'[[TaskGroups.Tasks.Templates]]\nDestPath = \'local/a\'\nEmbeddedTmpl = """\nfirst\n{data}\n"""\n'
    )
    file = write_file(tmp_path, {"web.hcl": hcl, "web.yaml": yaml, "web.toml": toml}[name], name)
    line, indentation = {"web.hcl": (9, 0), "web.yaml": (11, 10), "web.toml": (11, 0)}[name]

    result = terminal.run("job", "validate", file)

    assert terminal.used_settings == []
    assert [f"wharf: {file}:{line}:{column + indentation}: {problem}"] == result.errors
    assert f"   {fix}" in result.err


@pytest.mark.parametrize(
    ("value", "places"),
    [
        ("<<EOF\n{{ evn 1 }}\n  {{ evn 2 }}{{ .x }} {{ evn 3 }}\n{{ evn 1 }}\nEOF", ["8:4", "9:6", "9:26", "10:4"]),
        ("<<-EOF\n  {{ evn 1 }} $${x}\n    {{ evn 2 }}\n  EOF", ["8:6", "9:8"]),
        ("<<EOF\n{{ evn 1 }} ${var.a} {{ evn 2 }}\n${var.a} {{ evn 3 }}\nEOF", ["8:4", "8:25", "9:13"]),
        ('"{{ evn \\"1\\" }}\\n{{ evn \\"2\\" }}"', ["7:12", "7:29"]),
    ],
)
def test_each_mistake_in_a_template_has_its_own_place(
    terminal: Terminal, tmp_path: Path, value: str, places: list[str]
) -> None:
    text = (
        'job "web" {\n group "g" {\n task "t" {\n driver = "mock"\n template {\n destination = "local/a"\n'
        f'data = {value}\n}}\n}}\n}}\n}}\nvariable "a" {{ default = "value" }}\n'
    )
    file = write_file(tmp_path, text, "web.hcl")

    result = terminal.run("job", "validate", file)

    assert [f"wharf: {file}:{place}: evn is not a function" for place in places] == result.errors


@pytest.mark.parametrize(
    "value", ["local.text", 'file("a.tpl")', 'join("", ["{{ e", "vn 1 }}"])', '"{{ ${var.name} 1 }}"']
)
def test_a_mistake_in_a_text_that_the_file_does_not_contain_has_its_place_in_the_template(
    terminal: Terminal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    write_file(tmp_path, "{{ evn 1 }}", "a.tpl")
    monkeypatch.chdir(tmp_path)
    text = (
        'job "web" {\n group "g" {\n task "t" {\n driver = "mock"\n template {\n destination = "local/a"\n'
        f'data = {value}\n}}\n}}\n}}\n}}\nlocals {{\n text = "{{{{ evn 1 }}}}"\n}}\nvariable "name" {{ default = "evn" }}\n'
    )
    file = write_file(tmp_path, text, "web.hcl")

    result = terminal.run("job", "validate", file)

    assert [f"wharf: {file}:7:8: template, line 1, column 4: evn is not a function"] == result.errors


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("comand: /bin/true", 'unknown key "comand" for driver raw_exec'),
        ("command: /bin/true, GPU: 1", 'unknown key "GPU" for driver raw_exec'),
    ],
)
@pytest.mark.parametrize("words", [("job", "validate"), ("job", "plan"), ("job", "run")])
def test_an_unknown_option_of_a_driver_is_an_error_at_its_place(
    terminal: Terminal, tmp_path: Path, options: str, expected: str, words: tuple[str, str]
) -> None:
    text = WEB.replace("Driver: mock", f"Driver: raw_exec, Config: {{{options}}}")
    file = write_file(tmp_path, text)

    result = terminal.run(*words, file)

    assert terminal.used_settings == []
    key = expected.split('"')[1]
    column = text.splitlines()[7].index(key) + 1
    assert result.errors == [f"wharf: {file}:8:{column}: {expected}"]


@pytest.mark.parametrize("words", [("job", "validate"), ("job", "plan"), ("job", "run", "--detach")])
def test_an_option_of_nomad_that_changes_nothing_is_a_note_at_its_place(
    terminal: Terminal, tmp_path: Path, words: tuple[str, ...]
) -> None:
    file = write_file(
        tmp_path, WEB.replace("Driver: mock", "Driver: raw_exec, Config: {command: sh, no_cgroups: true}")
    )

    result = terminal.run(*words, file)

    assert f"note: {file}:8:" in result.err
    assert '"no_cgroups" is an option of Nomad that Wharf does not have: it has no effect' in result.err
    assert "wharf: " not in result.err


def test_an_unknown_option_of_a_driver_in_hcl_is_an_error_at_its_place(terminal: Terminal, tmp_path: Path) -> None:
    file = write_file(tmp_path, HCL_WEB.replace("run_for", "run_fro"), "web.hcl")

    result = terminal.run("job", "validate", file)

    assert result.errors == [f'wharf: {file}:18:9: unknown key "run_fro" for driver mock']
    assert 'did you mean "run_for"?' in result.err


@pytest.mark.parametrize(
    ("name", "text", "place"),
    [
        ("web.hcl", 'driver = "docker"\n      config {\n        image = "x"\n        mount {\n target = "/a"\n sourc = "b"\n}', "21:2"),
        ("web.yaml", "Driver: docker\n        Config: {image: x, mount: [{target: /a, sourc: b}]}", "12:49"),
    ],
)  # fmt: skip
def test_an_unknown_option_of_a_volume_of_a_task_is_an_error_at_its_place(
    terminal: Terminal, tmp_path: Path, name: str, text: str, place: str
) -> None:
    old = 'driver = "mock"\n      config {' if name == "web.hcl" else "Driver: mock\n        Config: {run_for: 1h}"
    job = FORMATS[name].replace(old, text).replace('        run_for = "1h"\n', "")
    file = write_file(tmp_path, job, name)

    result = terminal.run("job", "validate", file)

    assert result.errors == [f'wharf: {file}:{place}: unknown key "sourc" for block mount']
