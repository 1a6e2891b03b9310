"""Job files in YAML, JSON and TOML: variables, templates, names, short forms and places."""

import json
import time
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.attempts import limited_cpu
from wharf.job_files.hcl.parsed_job import ParsedJob
from wharf.job_files.markup_jobs import parse_markup_job
from wharf.languages.hcl.calls import FunctionPorts
from wharf.languages.hcl.diagnostics import DocumentErrors
from wharf.languages.hcl.documents import parse_values
from wharf.languages.hcl.variables import VariableInputs
from wharf.languages.markup import MarkupFormat


class FixedBytes:
    """A random port that draws zeros."""

    def draw_bytes(self, count: int) -> bytes:
        return bytes(count)


def parse(text: str, format: str = "yaml", **inputs: Any) -> ParsedJob:
    """Return the job of a text."""
    return parse_markup_job(
        text, f"job.{format}", MarkupFormat(format), VariableInputs(**inputs), FunctionPorts(FixedBytes())
    )


def read(text: str, format: str = "yaml", **inputs: Any) -> dict[str, Any]:
    """Return the fields of a job without its ID."""
    document = dict(parse(text, format, **inputs).document)
    document.pop("ID")
    return document


def list_errors(text: str, format: str = "yaml", **inputs: Any) -> list[str]:
    """Return the first lines of all errors."""
    with pytest.raises(DocumentErrors) as caught:
        parse(text, format, **inputs)
    return [diagnostic.render().splitlines()[0] for diagnostic in caught.value.diagnostics]


TEMPLATE = "variables: {}\nID: a\n"


# -- files without variables


@pytest.mark.parametrize(
    "text",
    [
        "${X:-y}", "${#x}", "$${x}", "%{http_code}", "${upper(1)}", "100%", "${unclosed", "${attr.kernel.name}",
        "e\u0301",
    ],
)  # fmt: skip
@pytest.mark.parametrize("format", ["yaml", "json"])
def test_texts_of_a_file_without_variables_stay_as_they_are(text: str, format: str) -> None:
    assert read(json.dumps({"ID": "a", "Meta": {"x": text}}), format) == {"Meta": {"x": text}}


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(-1e6, 1e6)
    | st.text(st.characters(codec="ascii", exclude_characters="${%")),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.text(st.characters(codec="ascii", exclude_characters="${%"), max_size=5), inner, max_size=3
        )
    ),
    max_leaves=10,
)


@given(config=st.dictionaries(st.sampled_from(["a", "b", "c"]), values))
def test_a_file_with_variables_but_without_templates_has_the_same_job(config: dict[str, Any]) -> None:
    job = {"ID": "a", "TaskGroups": [{"Name": "g", "Tasks": [{"Name": "t", "Driver": "plug-in", "Config": config}]}]}

    plain = parse(json.dumps(job), "json").document
    evaluated = parse(json.dumps({**job, "variables": {"unused": 1}}), "json").document

    assert evaluated == plain


# -- variables and templates


@pytest.mark.parametrize(
    ("template", "value"),
    [
        ("${var.text}", "hello"),
        ("${var.number}", 3),
        ("${var.number + 1}", 4),
        ("${var.list}", ["a", "b"]),
        ("${var.map}", {"k": "v"}),
        ("${var.on}", True),
        ("${var.number / 2}", 1.5),
        ("${null}", None),
        ("a-${var.number}", "a-3"),
        ("${upper(var.text)}!", "HELLO!"),
        ("${local.name}", "hello-3"),
        ("${[for x in var.list : upper(x)]}", ["A", "B"]),
        ("%{ for x in var.list }${x};%{ endfor }", "a;b;"),
        ("${var.on ? 1 : 2}", 1),
        ("${attr.kernel.name}", "${attr.kernel.name}"),
        ("${node.class}-${var.text}", "${node.class}-hello"),
        ('${env["HOME"]}', '${env["HOME"]}'),
        ("${NOMAD_PORT_http}", "${NOMAD_PORT_http}"),
        ("${WHARF_ALLOC_ID}", "${WHARF_ALLOC_ID}"),
        ("$${X:-y}", "${X:-y}"),
        ("%%{http_code}", "%{http_code}"),
        ("plain $x 100%", "plain $x 100%"),
    ],
)
@pytest.mark.parametrize("format", ["yaml", "json", "toml"])
def test_a_template_is_evaluated(template: str, value: object, format: str) -> None:
    declarations = (
        'ID = "a"\n[variables]\ntext = "hello"\nnumber = 3\nlist = ["a", "b"]\non = true\n'
        'map = { default = { k = "v" } }\n[locals]\nname = "${var.text}-${var.number}"\n'
    )
    texts = {
        "toml": f"{declarations}[[TaskGroups]]\n[[TaskGroups.Tasks]]\nConfig = {{ x = {json.dumps(template)} }}\n",
        "json": json.dumps({
            "ID": "a",
            "variables": {
                "text": "hello", "number": 3, "list": ["a", "b"], "on": True, "map": {"default": {"k": "v"}},
            },
            "locals": {"name": "${var.text}-${var.number}"},
            "TaskGroups": [{"Tasks": [{"Config": {"x": template}}]}],
        }),
    }  # fmt: skip
    text = texts["json"] if format == "yaml" else texts[format]

    document = parse(text, format).document

    assert document["TaskGroups"][0]["Tasks"][0]["Config"] == {"x": value}


def test_a_file_with_only_local_values_is_a_template_too() -> None:
    assert read("ID: a\nlocals: {x: '${1 + 1}'}\nPriority: '${local.x}'\n") == {"Priority": 2}


def test_types_defaults_and_validations_of_variables_are_those_of_hcl() -> None:
    text = """\
ID: a
variables:
  count:
    type: number
    description: How many.
    default: 3
    validation:
      condition: var.count < 10
      error_message: at most 9
TaskGroups: [{Count: "${var.count}"}]
"""
    values = parse_values('count = "5"\n')

    assert [group["Count"] for group in read(text, files=(values,))["TaskGroups"]] == [5]
    assert list_errors(text, flags=[("count", "10")]) == [
        '--var count: invalid value 10 for variable "count": at most 9'
    ]
    assert list_errors(text, flags=[("count", "x")])[0].startswith("--var count: the value of variable")


def test_several_validations_may_be_conditions_with_and_without_braces() -> None:
    text = """\
ID: a
variables:
  x:
    default: 1
    validation:
      - {condition: "${var.x > 0}", error_message: too small}
      - {condition: "var.x < 3", error_message: too large}
"""
    assert list_errors(text, flags=[("x", "0")]) == ['--var x: invalid value 0 for variable "x": too small']
    assert list_errors(text, flags=[("x", "9")]) == ['--var x: invalid value 9 for variable "x": too large']


def test_keys_of_maps_are_templates_too() -> None:
    assert read(TEMPLATE + "locals: {k: x}\nMeta: {'a-${local.k}': 1}\n") == {"Meta": {"a-x": 1}}


@pytest.mark.parametrize(
    ("text", "errors"),
    [
        (TEMPLATE + "Type: ${var.x}\n", ['job.yaml:3:9: no variable "x" is declared']),
        (TEMPLATE + "Type: ${nope(1)}\n", ['job.yaml:3:9: no function "nope" exists']),
        (
            TEMPLATE + "Meta: {a: '${X:-y}', b: '%{http_code}'}\n",
            [
                'job.yaml:3:15: expected an operator or "}" of the interpolation, found ":"',
                'job.yaml:3:26: expected a directive (if, else, endif, for or endfor), found "http_code"',
            ],
        ),
        (
            TEMPLATE + 'Meta:\n  a: |\n    first\n    second ${var.x}\n  b: "\\t${var.y}"\n',
            ['job.yaml:6:14: no variable "x" is declared', 'job.yaml:7:6: no variable "y" is declared'],
        ),
        ("variables: [a]\nID: a\n", ["job.yaml:1:1: variables is a map of names to declarations"]),
        ("locals: [a]\nID: a\n", ["job.yaml:1:1: locals is a map of names to values"]),
        ("variables: {x: {typ: number, default: 1}}\nID: a\n", ['job.yaml:1:17: a variable has no argument "typ"']),
        ("variables: {x: {}}\nID: a\n", ['job.yaml:1:13: the variable "x" has no value']),
        ("variables: {x: {type: lst}}\nID: a\n", ['job.yaml:1:23: no type "lst" exists']),
        ("variables: {x: '${1}'}\nlocals: {y: '${local.y}'}\nID: a\n", ["job.yaml:2:10: local values need each other in a ring: local.y -> local.y"]),
    ],
)  # fmt: skip
def test_a_wrong_template_is_an_error_at_its_place(text: str, errors: Sequence[str]) -> None:
    assert list_errors(text) == errors


def test_the_line_of_a_template_is_shown_with_a_mark() -> None:
    with pytest.raises(DocumentErrors) as caught:
        parse(TEMPLATE + "Meta:\n  a: |\n    second ${var.cuont}\n")

    assert caught.value.text.splitlines()[1:3] == [
        "    5 |     second ${var.cuont}",
        "      |              ^^^^^^^^^",
    ]


def test_a_reference_with_an_unknown_name_is_a_warning() -> None:
    warnings = parse(TEMPLATE + "Meta: {a: '${nope}', b: '${attr.x}'}\n").warnings

    assert [warning.partition(": ")[0] for warning in warnings] == ["job.yaml:3:14"]


@pytest.mark.parametrize("text", ["ID: a\n", "ID: a\nMeta: {x: '${X:-y}'}\n"])
def test_a_value_for_a_file_without_variables_is_an_error_only_in_strict_mode(text: str) -> None:
    assert list_errors(text, flags=[("x", "1")], is_strict=True) == ['--var x: no variable "x" is declared in the file']
    parse(text, flags=[("x", "1")])


def test_a_template_has_the_limit_of_a_file_in_hcl() -> None:
    assert "a file with variables may have 1,000,000 at most" in list_errors(TEMPLATE + f"Type: {'é' * 600_000}")[0]


@pytest.mark.parametrize(
    ("format", "text", "place"),
    [
        (MarkupFormat.YAML, 'ID: a\nMeta: {a: "x ${var.image}", b: "${var.image} $${var.other}"}\n', "2:14"),
        (MarkupFormat.JSON, '{"ID": "a",\n "Meta": {"a": "${ var.image }"}}', "2:17"),
        (MarkupFormat.TOML, 'ID = "a"\n[Meta]\na = "${var.image}"\n', "3:6"),
    ],
)
def test_a_reference_to_a_variable_needs_its_declaration(format: MarkupFormat, text: str, place: str) -> None:
    with pytest.raises(DocumentErrors) as errors:
        parse_markup_job(text, "job.x", format, VariableInputs(), FunctionPorts(FixedBytes()))

    lines = errors.value.text.splitlines()
    assert lines[0] == f'job.x:{place}: the file does not declare "var.image": it has no "variables"'
    assert lines[-1] == '   add "variables" with "image" to the top of the file, or write $${var.image} for this text'
    assert len([line for line in lines if line.startswith("job.x")]) == 1


def test_references_for_nodes_and_shells_need_no_declaration() -> None:
    text = 'ID: a\nMeta: {a: "$${var.image} ${attr.kernel.name} ${X:-y} ${variable.x}"}\n'

    assert "$${var.image} ${attr.kernel.name} ${X:-y} ${variable.x}" == read(text)["Meta"]["a"]


# -- names and short forms


@pytest.mark.parametrize(
    "group",
    [
        "TaskGroups: [{Name: web, ShutdownDelay: 10s, RestartPolicy: {Attempts: 1}}]",
        "taskgroups: [{name: web, shutdowndelay: 10s, restartpolicy: {attempts: 1}}]",
        "task_groups: [{name: web, shutdown_delay: 10s, restart_policy: {attempts: 1}}]",
        "group: [{name: web, shutdown_delay: 10s, restart: {attempts: 1}}]",
        "group: {web: {shutdown_delay: 10s, restart: {attempts: 1}}}",
    ],
)
def test_a_field_has_the_names_of_the_api_and_those_of_hcl(group: str) -> None:
    assert read(f"id: a\n{group}\n") == {
        "TaskGroups": [{"Name": "web", "ShutdownDelay": 10_000_000_000, "RestartPolicy": {"Attempts": 1}}]
    }


def test_blocks_of_hcl_are_accepted_everywhere() -> None:
    text = """\
ID: a
meta: {k: v}
group:
  web:
    network: {mode: host, port: {http: {static: 80}, admin: {to: 8080}}}
    volume: {data: {type: host, source: files}}
    service: {name: web, port: http, check: {type: http, path: /, interval: 10s}}
    task:
      main:
        driver: docker
        config: {image: x}
        resources: {cpu: 100, memory: 64, device: {gpu: {count: 2}}}
        template: {data: text, destination: local/x}
        logs: {max_files: 2}
        identity: {aud: [x]}
"""
    (group,) = read(text)["TaskGroups"]
    (task,) = group["Tasks"]

    assert group["Networks"] == [
        {
            "Mode": "host",
            "DynamicPorts": [{"Label": "admin", "To": 8080}],
            "ReservedPorts": [{"Label": "http", "Value": 80}],
        }
    ]
    assert group["Volumes"] == {"data": {"Name": "data", "Type": "host", "Source": "files"}}
    assert group["Services"] == [
        {"Name": "web", "PortLabel": "http", "Checks": [{"Type": "http", "Path": "/", "Interval": 10_000_000_000}]}
    ]
    assert task == {
        "Name": "main",
        "Driver": "docker",
        "Config": {"image": "x"},
        "Resources": {"CPU": 100, "MemoryMB": 64, "Devices": [{"Name": "gpu", "Count": 2}]},
        "Templates": [{"EmbeddedTmpl": "text", "DestPath": "local/x"}],
        "LogConfig": {"MaxFiles": 2},
        "Identity": {"Audience": ["x"]},
    }


@pytest.mark.parametrize(
    ("text", "errors"),
    [
        ("ID: a\nGroups: []\n", ["job.yaml:2:1: Groups is not a known field"]),
        ("ID: a\nid: b\n", ["job.yaml:2:1: the field ID occurs twice, also as ID"]),
        (
            "ID: a\ngroup: {web: {task: {main: {Config: {Cpu: 1}, Resources: {memry: 1}}}}}\n",
            ["job.yaml:2:59: group.web.task.main.Resources.memry is not a known field"],
        ),
        (
            "Job:\n  ID: a\n  Typ: batch\n  TaskGroups: [{Cuont: 1}]\n",
            ["job.yaml:3:3: Typ is not a known field", "job.yaml:4:17: TaskGroups[0].Cuont is not a known field"],
        ),
        (
            "ID: a\nTyp: x\nPriority: high\nTaskGroups: [{Tasks: [{Driver: exec, Config: {comand: x}}]}]\n",
            [
                "job.yaml:2:1: Typ is not a known field",
                "job.yaml:3:11: Priority: expected a whole number, got text",
                'job.yaml:4:47: unknown key "comand" for driver exec',
            ],
        ),
        ("Type: batch\n", ["job.yaml:1:1: the job has no ID"]),
        ("- a\n", ["job.yaml:1:1: not a job file: expected a map, got a list"]),
        ("Job: [a]\n", ["job.yaml:1:6: Job: expected a job, got a list"]),
    ],
)
def test_unknown_names_are_errors_at_their_places(text: str, errors: list[str]) -> None:
    assert list_errors(text) == errors


def explain(text: str, format: str = "yaml") -> list[tuple[str, str, str]]:
    """Return the marked part, the message and the fix of each error of a file."""
    with pytest.raises(DocumentErrors) as caught:
        parse(text, format)
    return [
        (
            diagnostic.place.source.text[diagnostic.place.start : diagnostic.place.end],
            diagnostic.message,
            diagnostic.fix,
        )
        for diagnostic in caught.value.diagnostics
    ]


NETWORK = "ID: a\nTaskGroups:\n  - Networks: "
TASK = "ID: a\nTaskGroups:\n  - Name: g\n    Tasks:\n      - Name: t\n        Driver: docker\n        "


@pytest.mark.parametrize(
    ("text", "marked", "message", "fix"),
    [
        ("ID: a\nTaskGroups:\n  Name: g\n", "TaskGroups", "TaskGroups: expected a list, got a map", 'begin each item with "- ", such as "- Name: ..."'),
        ("ID: a\nTaskGroups:\n  web:\n    Count: 1\n", "TaskGroups", "TaskGroups: expected a list, got a map", 'begin each item with "- ", such as "- Name: web"'),
        ("ID: a\nTaskGroups:\n  -Name: g\n", "TaskGroups", "TaskGroups: expected a list, got a map", 'write a blank after each "-", such as "- Name: ..."'),
        ("ID: a\nTaskGroups: web\n", "web", "TaskGroups: expected a list, got text", 'begin each item with "- ", such as "- Name: ..."'),
        (TASK + "Resources:\n          - CPU: 1\n", "Resources", "TaskGroups[0].Tasks[0].Resources: expected a map, got a list", 'write its fields without "- " and without [ ]'),
        ("job:\n  web:\n    group: {}\n", "job", "job is not a known field", "write ID: web, and the fields of the job at the top of the file beside it"),
        ("ID: a\ngroups: []\n", "groups", "groups is not a known field", "did you mean TaskGroups, or group as in HCL?"),
        ("ID: a\ntask: {t: {}}\n", "task", "task is not a known field", "it belongs to a group (an item of TaskGroups)"),
        ("ID: a\nTaskGroups:\n  - Needs: [b]\n", "Needs", "TaskGroups[0].Needs is not a known field", "did you mean Depends?"),
        ("ID: a\nTaskGroups:\n  - depends_on: [b]\n", "depends_on", "TaskGroups[0].depends_on is not a known field", "did you mean Depends?"),
        (TASK + "Count: 2\n", "Count", "TaskGroups[0].Tasks[0].Count is not a known field", "it belongs to a group (an item of TaskGroups)"),
        (TASK + "cpu: 100\n", "cpu", "TaskGroups[0].Tasks[0].cpu is not a known field", "it belongs to Resources"),
        ("ID: a\nTaskGroups:\n  - kill_timout: 3s\n", "kill_timout", "TaskGroups[0].kill_timout is not a known field", "did you mean KillTimeout? It belongs to a task (an item of Tasks)"),
        ("ID: a\nTaskGroups:\n  - restrat: {}\n", "restrat", "TaskGroups[0].restrat is not a known field", "did you mean RestartPolicy, or restart as in HCL?"),
        ("ID:a\n", "ID:a", "a blank is missing after the colon", "write ID: a"),
        (TASK + "Config:\n        image: x\n", "image", "TaskGroups[0].Tasks[0].image is not a known field", "indent it below Config"),
        (TASK + "command: x\n        Config: {image: a}\n", "command", "TaskGroups[0].Tasks[0].command is not a known field", "it is an option of the driver: write it in Config"),
        (NETWORK + "[{DynamicPorts: [{Name: http}]}]\n", "Name", "TaskGroups[0].Networks[0].DynamicPorts[0].Name is not a known field", "did you mean Label?"),
        (NETWORK + "[{DynamicPorts: [{http: 80}]}]\n", "http", "TaskGroups[0].Networks[0].DynamicPorts[0].http is not a known field", "write {Label: http, To: 80}"),
        (NETWORK + "[{ReservedPorts: [{http: 80}]}]\n", "http", "TaskGroups[0].Networks[0].ReservedPorts[0].http is not a known field", "write {Label: http, Value: 80}"),
        ('job "a" {\n}\n', 'job "a" {', "the file is written in HCL", "give it a name that ends with .hcl"),
        ("apiVersion: v1\nkind: Service\nmetadata: {name: a}\n", "apiVersion", "this is a manifest of Kubernetes, not a job file",
         "write a job file: `wharf job init --docker` writes an example; a pod is a group, and a container is a task"),
        ("---\n# a\napiVersion: v1\nkind: Service\n---\napiVersion: v1\n", "apiVersion", "this is a manifest of Kubernetes, not a job file",
         "write a job file: `wharf job init --docker` writes an example; a pod is a group, and a container is a task"),
        ("version: '3'\nservices: {web: {image: x}}\n", "services", "this is a file of docker compose, not a job file",
         "write a job file: `wharf job init --docker` writes an example; a service is a group with a task"),
    ],
)  # fmt: skip
def test_a_frequent_mistake_has_a_fix_in_the_language_of_the_file(
    text: str, marked: str, message: str, fix: str
) -> None:
    assert explain(text) == [(marked, message, fix)]


@pytest.mark.parametrize(
    ("text", "marked", "fix"),
    [
        ('ID = "a"\n[TaskGroups]\nName = "g"\n', "[TaskGroups]", "write [[TaskGroups]] above each item"),
        ('ID = "a"\n[[TaskGroups]]\n[TaskGroups.Tasks]\n', "[TaskGroups.Tasks]", "write [[TaskGroups.Tasks]] above each item"),
        ('ID = "a"\n[[Update]]\nStagger = 1\n', "[[Update]]", "write [Update], not [[Update]]"),
        ('[job.web]\ntype = "batch"\n', "[job.web]", 'write ID = "web", and the fields of the job at the top of the file beside it'),
        ('Type = "batch"\n', "", 'add one, such as ID = "web"'),
        ('ID = "a"\n[[TaskGroups]]\n[TaskGroups.Task]\nName = "t"\n', "[TaskGroups.Task]", "write [[TaskGroups.Task]] above each item"),
        ('ID = "a"\n[group]\nName = "g"\n', "[group]", "write [[group]] above each item"),
    ],
)  # fmt: skip
def test_a_frequent_mistake_in_toml_has_a_fix_in_toml(text: str, marked: str, fix: str) -> None:
    assert [(part, each) for part, _, each in explain(text, "toml")] == [(marked, fix)]


def test_a_list_of_tables_in_place_of_one_table_has_a_fix_in_toml() -> None:
    text = 'ID = "a"\nTypo7 = 1\n[[group]]\n[[group.task]]\nkill_timeout = "5 sec"\n[[group.task.config]]\n'

    assert [(part, each) for part, _, each in explain(text, "toml")][1:] == [
        ('"5 sec"', "write 5s; the units are ns, us, ms, s, m and h"),
        ("[[group.task.config]]", "write [group.task.config], not [[group.task.config]]"),
    ]


@pytest.mark.parametrize(
    ("field", "marked", "message", "fix"),
    [
        ("KillTimeout: 10 seconds", "10 seconds", 'KillTimeout: expected a duration such as 30s or 1h30m, got "10 seconds"', "write 10s; the units are ns, us, ms, s, m and h"),
        ("KillTimeout: 5 min", "5 min", 'KillTimeout: expected a duration such as 30s or 1h30m, got "5 min"', "write 5m; the units are ns, us, ms, s, m and h"),
        ("KillTimeout: 2d", "2d", 'KillTimeout: expected a duration such as 30s or 1h30m, got "2d"', "write 48h; the units are ns, us, ms, s, m and h"),
        ("KillTimeout: soon", "soon", 'KillTimeout: expected a duration such as 30s or 1h30m, got "soon"', "write a number and a unit, such as 30s or 1h30m; the units are ns, us, ms, s, m and h"),
        ('Resources: {CPU: 100MHz}', '100MHz', 'Resources.CPU: expected a whole number, got text', 'write 100, without a unit: the number is in megahertz'),
        ('Resources: {CPU: 2GHz}', '2GHz', 'Resources.CPU: expected a whole number, got text', 'write 2000, without a unit: the number is in megahertz'),
        ('Resources: {CPU: 500m}', '500m', 'Resources.CPU: expected a whole number, got text', 'write megahertz, such as 500: CPU is not counted in cores; Cores reserves whole cores'),
        ('Resources: {CPU: "0.5"}', '"0.5"', 'Resources.CPU: expected a whole number, got text', 'write megahertz, such as 500: CPU is not counted in cores; Cores reserves whole cores'),
        ('Resources: {CPU: 0.5}', '0.5', 'Resources.CPU: expected a whole number, got 0.5', 'write megahertz, such as 500: CPU is not counted in cores; Cores reserves whole cores'),
        ('Resources: {MemoryMB: 1Gi}', '1Gi', 'Resources.MemoryMB: expected a whole number, got text', 'write 1024, without a unit: the number is in megabytes'),
        ('Resources: {MemoryMB: 1GB}', '1GB', 'Resources.MemoryMB: expected a whole number, got text', 'write 1024, without a unit: the number is in megabytes'),
        ('Resources: {MemoryMB: "1.5 GiB"}', '"1.5 GiB"', 'Resources.MemoryMB: expected a whole number, got text', 'write 1536, without a unit: the number is in megabytes'),
        ('Resources: {MemoryMB: 100KB}', '100KB', 'Resources.MemoryMB: expected a whole number, got text', 'write the number of megabytes, without a unit'),
        ('Resources: {MemoryMB: 5s}', '5s', 'Resources.MemoryMB: expected a whole number, got text', 'write the number of megabytes, without a unit'),
        ('Resources: {Cores: two}', 'two', 'Resources.Cores: expected a whole number, got text', 'write a number without quotes, such as 3'),
        ('Resources: {CPU: "100"}', '"100"', "Resources.CPU: expected a whole number, got text", "write 100, without quotes"),
        ("Leader: yes", "yes", "Leader: expected true or false, got text", "write true"),
        ("Env: {A: 1}", "1", "Env.A: expected text, got a whole number", 'write it in quotes: "1"'),
        ("Env: {A: 1.10}", "1.10", "Env.A: expected text, got a number", 'write it in quotes: "1.10"'),
        ("Env: {A: 010}", "010", "Env.A: expected text, got a whole number", 'write it in quotes: "010"'),
        ("Env: {A: True}", "True", "Env.A: expected text, got true or false", 'write it in quotes: "True"'),
        ("Env: [A]", "[A]", "Env: expected an object or null, got a list", "write a map, such as {name: value}"),
    ],
)  # fmt: skip
def test_a_value_of_a_wrong_type_is_marked_and_has_a_fix(field: str, marked: str, message: str, fix: str) -> None:
    prefix = "TaskGroups[0].Tasks[0]."

    assert explain(TASK + field + "\n        Typo7: 1\n")[0] == (marked, prefix + message, fix)


@pytest.mark.parametrize(
    ("field", "marked", "message", "fix"),
    [
        ("Lock: production", "production", "Lock: expected an object or null, got text", "write {Key: production}"),
        ("Gate: Now", "Now", "Gate: expected an object or null, got text", "write {Ask: Now}"),
        ("Retry: {OnExit: 75}", "75", "Retry.OnExit: expected a list or null, got a whole number", "write [75]"),
    ],
)  # fmt: skip
def test_a_wrong_type_in_a_field_of_a_step_has_a_fix_with_the_value(
    field: str, marked: str, message: str, fix: str
) -> None:
    text = f"ID: a\nTaskGroups:\n  - {field}\n    Typo7: 1\n"

    assert explain(text)[0] == (marked, f"TaskGroups[0].{message}", fix)


def test_a_reference_to_an_undeclared_variable_is_the_only_error_of_its_value() -> None:
    text = "ID: a\nTaskGroups:\n  - Count: ${var.n}\n    ShutdownDelay: ${local.d}\n    Typo7: 1\n"

    assert [marked for marked, _, _ in explain(text)] == ["${var.n", "${local.d", "Typo7"]


@pytest.mark.parametrize(
    ("condition", "place", "message"),
    [
        ('"var.n >"', "5:21", "expected a value, found its end"),
        ('"${var.n > }"', "5:24", "expected a value, found its end"),
        ('"var.n ! 3"', "5:20", 'expected an operator or the end, found "!"'),
    ],
)
def test_a_wrong_condition_is_an_error_of_an_expression(condition: str, place: str, message: str) -> None:
    text = f'ID = "a"\n[variables.n]\ndefault = 3\n[variables.n.validation]\ncondition = {condition}\nerror_message = "x"\n'

    with pytest.raises(DocumentErrors) as caught:
        parse(text, "toml")

    assert [f"job.toml:{place}: {message}"] == [str(caught.value).splitlines()[0]]
    assert "   write a whole expression, such as var.name > 0" == str(caught.value).splitlines()[-1]


def test_a_job_may_have_services_and_a_field_that_other_programs_have_too() -> None:
    assert list_errors("ID: a\nkind: b\n") == ["job.yaml:2:1: kind is not a known field"]


def test_a_wrong_comparison_names_the_operands() -> None:
    ((marked, _, fix),) = explain("ID: a\nConstraints:\n  - ${attr.kernel.name} linux\n")

    assert (marked, fix.partition("; ")[0]) == (
        "${attr.kernel.name} linux",
        "write LEFT OPERAND RIGHT, such as ${attr.kernel.name} = linux",
    )
    assert "set_contains_any" in fix


def test_at_most_twenty_errors_are_shown() -> None:
    with pytest.raises(DocumentErrors) as caught:
        parse("ID: a\n" + "".join(f"Nope{number}: 1\n" for number in range(25)))

    assert (len(caught.value.diagnostics), caught.value.omitted_count) == (20, 5)


def test_undeclared_references_are_located_in_linear_time() -> None:
    text = json.dumps({"ID": "a", "Meta": {"k": "".join(f"${{var.x{number}}}" for number in range(50_000))}})

    with limited_cpu(5.0, "parsing"), pytest.raises(DocumentErrors) as caught:
        parse(text, MarkupFormat.JSON)

    assert (len(caught.value.diagnostics), caught.value.omitted_count) == (20, 49_980)


def test_keys_for_parts_that_aliases_refer_to_are_ignored() -> None:
    text = "x-meta: &meta {a: b}\nID: a\nMeta: *meta\n"

    assert read(text) == {"Meta": {"a": "b"}}
    assert list_errors("ID: a\nTaskGroups: [{x-a: 1}]\n") == ["job.yaml:2:15: TaskGroups[0][x-a] is not a known field"]


def test_fields_that_only_servers_set_are_accepted() -> None:
    assert "Status" in read("ID: a\nStatus: running\nCreateIndex: 5\n")


@pytest.mark.parametrize(
    ("text", "constraint"),
    [
        ("${attr.kernel.name} = linux", ("${attr.kernel.name}", "=", "linux")),
        ("${attr.kernel.name}=linux", ("${attr.kernel.name}", "=", "linux")),
        ("  ${attr.kernel.name} == a = b  ", ("${attr.kernel.name}", "==", "a = b")),
        ("${attr.x} != y", ("${attr.x}", "!=", "y")),
        ("${attr.x} <= 4", ("${attr.x}", "<=", "4")),
        ("${attr.x}>=4", ("${attr.x}", ">=", "4")),
        ("${attr.x} < 4", ("${attr.x}", "<", "4")),
        ("${attr.x} > 4", ("${attr.x}", ">", "4")),
        ("${attr.x} is y", ("${attr.x}", "is", "y")),
        ("${attr.x} not y", ("${attr.x}", "not", "y")),
        ("${attr.x} version >= 1.2, < 2", ("${attr.x}", "version", ">= 1.2, < 2")),
        ("${attr.x} semver >= 1.2", ("${attr.x}", "semver", ">= 1.2")),
        ("${attr.x} regexp ^a.*= b$", ("${attr.x}", "regexp", "^a.*= b$")),
        ("${attr.x} set_contains a,b", ("${attr.x}", "set_contains", "a,b")),
        ("${attr.x} set_contains_any a,b", ("${attr.x}", "set_contains_any", "a,b")),
        ("${attr.x} set_contains_all a,b", ("${attr.x}", "set_contains_all", "a,b")),
        ("${attr.x} is_set", ("${attr.x}", "is_set", None)),
        ("${meta.a b} is_not_set", ("${meta.a b}", "is_not_set", None)),
        ("distinct_hosts", (None, "distinct_hosts", "true")),
        ("${meta.rack} distinct_property 2", ("${meta.rack}", "distinct_property", "2")),
        ("${meta.rack} distinct_property", ("${meta.rack}", "distinct_property", None)),
        ("${attr.a}-${attr.b} = x", ("${attr.a}-${attr.b}", "=", "x")),
        ('${meta["a=b"]} = x', ('${meta["a=b"]}', "=", "x")),
        ("linux = ${attr.kernel.name}", ("linux", "=", "${attr.kernel.name}")),
    ],
)
@pytest.mark.parametrize("form", ["constraint: {text}", "Constraints: [{text}]", "constraint: [{text}]"])
def test_a_constraint_may_be_a_text(text: str, constraint: tuple[str | None, str, str | None], form: str) -> None:
    left, operand, right = constraint
    expected = {"LTarget": left, "Operand": operand, "RTarget": right}

    document = read(f"ID: a\n{form.replace('{text}', json.dumps(text))}\n")

    assert document["Constraints"] == [{name: value for name, value in expected.items() if value is not None}]


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("abc", '"abc" has no operand'),
        ("= linux", '"= linux" has no operand'),
        ("${attr.x} =", '"${attr.x} =" has no value after ='),
        ("${attr.x} is_set y", '"${attr.x} is_set y" has a value after is_set'),
        ("${attr.x} sounds_like y", '"${attr.x} sounds_like y" has no operand'),
    ],
)
def test_a_text_that_is_no_constraint_is_an_error(text: str, error: str) -> None:
    assert list_errors(f"ID: a\nconstraint: {json.dumps(text)}\n") == [f"job.yaml:2:13: {error}"]


def test_a_constraint_may_have_the_arguments_of_hcl() -> None:
    text = "ID: a\nconstraint: [{attribute: '${attr.x}', version: '>= 1'}, {distinct_hosts: true}, {attribute: a, value: b}]\n"

    assert read(text)["Constraints"] == [
        {"LTarget": "${attr.x}", "Operand": "version", "RTarget": ">= 1"},
        {"Operand": "distinct_hosts", "RTarget": "true"},
        {"LTarget": "a", "RTarget": "b", "Operand": "="},
    ]


# -- places


@pytest.mark.parametrize(
    ("path", "place"),
    [
        ("TaskGroups[0].Tasks[0].Resources.MemoryMB", "job.yaml:7:37"),
        ("TaskGroups[0].Tasks[0].Resources.CPU", "job.yaml:7:24"),
        ("TaskGroups[0].Networks[0].ReservedPorts[0].Value", "job.yaml:4:39"),
        ("Constraints[0].LTarget", "job.yaml:2:13"),
        ("", "job.yaml:1:1"),
    ],
)
def test_a_field_has_the_place_of_its_value_or_of_the_nearest_value_around_it(path: str, place: str) -> None:
    text = """\
ID: a
constraint: ${attr.x} = y
group: {web: {
  network: {port: {a: {}, b: {static: 80}}},
  task: {
    main: {
      resources: {cpu: 100, memory: 64}}}}}
"""
    assert str(parse(text).find_place(path)) == place


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ('ID = "a"\nx = 2020-01-01\n', "job.toml:2:5: JSON has no dates"),
        ('ID = "a"\nx = inf\n', "job.toml:2:5: inf is not a finite number"),
        ('ID = "a\n', "job.toml:1:6: the quote that opens here is not closed"),
        ('ID = "a"\nID = "b"\n', "job.toml:2:1: the key ID occurs twice"),
        ('ID = "a"\n[[TaskGroups]]\nCuont = 1\n', "job.toml:3:1: TaskGroups[0].Cuont is not a known field"),
    ],
)
def test_a_wrong_file_in_toml_is_an_error_at_its_place(text: str, error: str) -> None:
    assert list_errors(text, "toml") == [error]


def test_an_unknown_field_beside_the_job_is_an_error() -> None:
    text = "Job: {ID: a}\nEnforceIndex: true\nvariables: {n: 1}\nx-part: 1\nPriority: 5\nfoo: 1\n"

    assert list_errors(text, "yaml") == [
        "job.yaml:5:1: Priority is not a known field beside Job",
        "job.yaml:6:1: foo is not a known field beside Job",
    ]


def test_the_errors_of_many_unknown_fields_are_located_in_linear_time() -> None:
    def measure(count: int) -> float:
        text = json.dumps({f"cuont{number}": 1 for number in range(count)})
        started_s = time.process_time()
        with pytest.raises(DocumentErrors):
            parse(text, "json")
        return time.process_time() - started_s

    assert measure(16_000) < 20 * measure(2_000)  # Eight times the fields; a search in a list takes 64 times as long.


def test_errors_of_templates_types_and_rules_are_shown_together() -> None:
    text = (
        "variables: {x: {}}\nID: a\nType: sevice\nMeta: {a: '${var.x}'}\nPriority: '${var.x}'\nTaskGroups:\n  - Name: g\n"
        "    Count: two\n    Services: [{Name: s, PortLabel: htp, Checks: [{Type: tcp}]}]\n"
        "    Networks: [{DynamicPorts: [{Label: http}]}]\n    Tasks: [{Name: t, Driver: dcoker, Config: {image: a}}]\n"
    )

    assert list_errors(text) == [
        'job.yaml:1:13: the variable "x" has no value',
        'job.yaml:3:7: Type: Invalid job type: "sevice"',
        "job.yaml:8:12: TaskGroups[0].Count: expected a whole number, got text",
        'job.yaml:9:37: TaskGroups[0].Services[0].PortLabel: Port label "htp" does not exist in the group\'s network',
        'job.yaml:11:31: TaskGroups[0].Tasks[0].Driver: no node has the driver "dcoker"',
    ]


def test_what_an_error_may_cause_is_no_second_error() -> None:
    text = (
        "ID: a\nTaskGroups:\n  - Name: g\n    Netwroks: [{DynamicPorts: [{Label: http}]}]\n    Services: [{Name: s, PortLabel: http}]\n"
        "    Tasks: [{Name: t, Driver: [raw_exec], Config: {command: a}}]\n"
    )

    assert [error.partition(": ")[0] for error in list_errors(text)] == ["job.yaml:4:5", "job.yaml:6:31"]


def test_errors_beside_a_list_from_a_template_have_their_places() -> None:
    text = """\
locals: {names: [a]}
ID: j
TaskGroups:
  - Name: g
    Tasks:
      - {Name: a, Driver: raw_exec, Config: {command: x, args: '${local.names}'}}
      - {Name: b, Driver: raw_exec, Confg: {command: x}}
"""

    assert list_errors(text) == ["job.yaml:7:37: TaskGroups[0].Tasks[1].Confg is not a known field"]


def test_a_port_that_is_a_text_is_shown_as_a_map() -> None:
    errors = explain(NETWORK + "[{DynamicPorts: [http]}]\n    Typo7: 1\n")

    assert errors[0][2] == "write {Label: http}"
