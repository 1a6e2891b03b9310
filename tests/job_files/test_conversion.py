"""Conversion of job files: every block and argument survives a round trip through every language."""

import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.attempts import limited_cpu
from tests.builders import some_job_settings
from tests.job_files.hcl.examples import EXAMPLES
from tests.job_files.hcl.job_texts import PORTS, parse_file, wrap_block
from wharf.contract.model.decoding import convert_object
from wharf.contract.model.jobs.canonical_form import canonicalize_job
from wharf.contract.model.jobs.job import Job
from wharf.job_files.conversion import Conversion, JobFormat, convert_data_job, convert_hcl_job
from wharf.job_files.data_writer import MAX_WRITTEN_NODES, OPAQUE_BLOCKS, UnwritableValue, write_document
from wharf.job_files.hcl.parsed_job import ParsedJob
from wharf.job_files.hcl_writer import Markers, format_expression
from wharf.job_files.markup_jobs import parse_markup_job
from wharf.languages.hcl.diagnostics import DocumentErrors, SourceFile
from wharf.languages.hcl.documents import parse_document
from wharf.languages.hcl.template_texts import escape_template
from wharf.languages.hcl.values import normalize_text
from wharf.languages.hcl.variables import VariableInputs
from wharf.languages.markup import MarkupFormat, parse_markup

FILES = sorted((Path(__file__).parent / "hcl" / "files").glob("*.hcl"))
TEXTS = {
    f"{example.path}-{number}": wrap_block(example.path, example.text) for number, example in enumerate(EXAMPLES)
} | {file.name: file.read_text() for file in FILES}
DATA_FORMATS = [JobFormat.YAML, JobFormat.JSON, JobFormat.TOML]


def parse(text: str, format: JobFormat, **inputs: Any) -> ParsedJob:
    if format is JobFormat.HCL:
        return parse_file(text, **inputs)
    return parse_markup_job(text, f"job.{format}", MarkupFormat(format), VariableInputs(**inputs), PORTS)


def convert(text: str, source: JobFormat, target: JobFormat, *, evaluates: bool = False, **inputs: Any) -> Conversion:
    values = VariableInputs(**inputs)
    if source is JobFormat.HCL:
        return convert_hcl_job(parse_document(text), target, values, PORTS, evaluates=evaluates)
    file = SourceFile(f"job.{source}", text)
    return convert_data_job(file, source, target, values, PORTS, evaluates=evaluates)


def read_job(text: str, format: JobFormat, **inputs: Any) -> Any:
    """Return the job of a file with all defaults. Blocks that the API does not know have no defaults."""
    job = canonicalize_job(convert_object(Job, parse(text, format, **inputs).document).value, some_job_settings())
    return drop_opaque_defaults(msgspec.to_builtins(job), is_opaque=False)


def drop_opaque_defaults(value: Any, *, is_opaque: bool) -> Any:
    if isinstance(value, dict):
        kept = {
            key: drop_opaque_defaults(item, is_opaque=is_opaque or key in OPAQUE_BLOCKS) for key, item in value.items()
        }
        empty: tuple[object, ...] = (None, "", 0, False, [], {})
        return {key: item for key, item in kept.items() if not (is_opaque or key in OPAQUE_BLOCKS) or item not in empty}
    if isinstance(value, list | tuple):
        return [drop_opaque_defaults(item, is_opaque=is_opaque) for item in value]
    return value


@pytest.mark.parametrize("name", TEXTS)
def test_a_job_in_hcl_is_the_same_in_every_language_and_back_in_hcl(name: str) -> None:
    original = read_job(TEXTS[name], JobFormat.HCL)

    for target in DATA_FORMATS:
        converted = convert(TEXTS[name], JobFormat.HCL, target)
        returned = convert(converted.text, target, JobFormat.HCL)

        assert read_job(converted.text, target) == original
        assert read_job(returned.text, JobFormat.HCL) == original
        assert returned.losses == []


@pytest.mark.parametrize("source", DATA_FORMATS)
@pytest.mark.parametrize("target", DATA_FORMATS)
@pytest.mark.parametrize("name", [file.name for file in FILES])
def test_a_job_is_the_same_in_each_pair_of_languages_of_data(name: str, source: JobFormat, target: JobFormat) -> None:
    text = convert(TEXTS[name], JobFormat.HCL, source).text

    assert read_job(convert(text, source, target).text, target) == read_job(text, source)


TEMPLATE = """\
variables:
  count: {type: number, default: 3, description: How many, validation: {condition: "${var.count > 1}", error_message: no}}
  names: [a, "b"]
locals: {joined: '${join(",", var.names)}'}
ID: a
TaskGroups:
  - Name: g
    Count: ${var.count}
    Tasks:
      - Name: t
        Driver: raw_exec
        Config: {command: 'a-${upper("x")}-"q"\\n', args: ['${var.names[0]}', '$${X}', '%%{x}', '${local.joined}']}
        Templates:
          - EmbeddedTmpl: |
              hello ${var.count}
                ${NOMAD_X} "quoted" \\n
"""


@pytest.mark.parametrize("target", JobFormat)
def test_variables_and_templates_of_a_file_in_yaml_stay_in_every_language(target: JobFormat) -> None:
    converted = convert(TEMPLATE, JobFormat.YAML, target).text
    flags = [("count", "5"), ("names", '["x"]')]

    assert "${var.count}" in converted
    assert read_job(converted, target, flags=flags) == read_job(TEMPLATE, JobFormat.YAML, flags=flags)


HCL_TEMPLATE = """\
variable "image" {
  type = string
}

variable "count" {
  type      = number
  default   = 3
  sensitive = true

  validation {
    condition     = var.count > 1 && var.count < 100
    error_message = "not ${var.count}"
  }
}

variable "nothing" {
  default = null
}

variable "names" {
  type    = list(string)
  default = ["a", "$${b}"]
}

locals {
  joined = join(",", [for name in var.names : "${name}!"])
  ports  = { http = 80, admin = 90 }
}

job "a" {
  meta = { "a.b" = var.count, (var.image) = "x" }

  constraint {
    attribute = attr.kernel.name
    version   = ">= ${var.count}"
  }

  group "g" {
    count = var.count

    network {
      dynamic "port" {
        for_each = local.ports
        labels   = [port.key]

        content {
          to = port.value
        }
      }

      port "s" {
        static = var.count
      }
    }

    task "t" {
      driver       = "any"
      kill_timeout = "${var.count}s"

      config {
        image    = "${var.image}:1"
        command  = coalesce(var.nothing, "x")
        args     = ["-x", "${NOMAD_PORT_http}", "$${X:-y}", "%%{x}", upper(local.joined), "a\\n\\"b", "100% $"]
        labels   = { a = 1, "b c" = var.count }
        port_map = (var.count > 1 ? { a = 1 } : { a = 2 })

        mount {
          source = "a-%{ if var.count > 1 ~} yes %{ else }no%{ endif }-%{ for name in var.names }<${name}>%{ endfor }"
        }
      }

      env {
        SUM = 1 + var.count
        ALL = jsonencode(var.names)
      }

      template {
        destination = "local/a"
        data        = <<-EOT
          hello {{ env "X" }} ${var.count}

            $${X} ${NOMAD_X}
        EOT
      }
    }
  }
}
"""


@pytest.mark.parametrize("flags", [[("image", "web")], [("image", "b"), ("count", "7"), ("names", '["x", "y"]')]])
@pytest.mark.parametrize("target", DATA_FORMATS)
def test_variables_of_a_file_in_hcl_stay_in_every_language_and_back_in_hcl(
    target: JobFormat, flags: list[tuple[str, str]]
) -> None:
    converted = convert(HCL_TEMPLATE, JobFormat.HCL, target)
    returned = convert(converted.text, target, JobFormat.HCL)

    original = read_job(HCL_TEMPLATE, JobFormat.HCL, flags=flags)
    assert "${var.count}" in converted.text
    assert read_job(converted.text, target, flags=flags) == original
    assert read_job(returned.text, JobFormat.HCL, flags=flags) == original
    assert converted.losses == ['the dynamic "port" of line 42 is replaced by 2 blocks']


def test_variables_of_a_file_in_hcl_are_written_as_in_yaml() -> None:
    text = 'variable "n" {\n type = number\n default = 2 # two\n}\njob "a" {\n group "g" {\n  count = var.n\n }\n}\n'

    converted = convert(text, JobFormat.HCL, JobFormat.YAML)

    assert converted.text == (
        "variables:\n  n:\n    type: number\n    default: 2  # two\n"
        "ID: a\nTaskGroups:\n  - Name: g\n    Count: ${var.n}\n"
    )
    assert converted.losses == []


def test_expressions_are_written_without_quotes_in_hcl() -> None:
    text = "variables: {n: 1}\nID: a\nTaskGroups: [{Name: g, Count: '${var.n + 1}', Meta: {a: 'x-${var.n}', b: '${attr.x}'}}]\n"

    converted = convert(text, JobFormat.YAML, JobFormat.HCL).text

    assert "count = var.n + 1\n" in converted
    assert 'a = "x-${var.n}"\n' in converted
    assert 'b = "${attr.x}"\n' in converted


@pytest.mark.parametrize("source", [JobFormat.HCL, JobFormat.YAML])
@pytest.mark.parametrize("target", JobFormat)
def test_variables_are_replaced_by_their_values_on_request(source: JobFormat, target: JobFormat) -> None:
    text = (
        'variable "n" {}\njob "a" {\n priority = var.n\n}\n'
        if source is JobFormat.HCL
        else "variables: {n: {type: number}}\nID: a\nPriority: ${var.n}\n"
    )

    converted = convert(text, source, target, evaluates=True, flags=[("n", "7")]).text

    assert read_job(converted, target)["Priority"] == 7
    assert "var" not in converted


def test_the_value_of_an_unused_flag_is_noted() -> None:
    text = 'variable "n" {}\njob "a" {\n priority = var.n\n}\n'

    assert convert(text, JobFormat.HCL, JobFormat.YAML, flags=[("n", "7")]).losses == [
        "the values of --var for n are not used: variables stay; --evaluate replaces them by values"
    ]


DYNAMIC = """\
variable "ports" {
  type = map(number)
}
variable "host" {
  type = string
}
locals {
  all = merge(var.ports, { x = 1 })
}
job "a" {
  group "g" {
    network {
      dynamic "port" {
        for_each = local.all
        labels   = [port.key]
        content {
          to           = port.value
          host_network = "${var.host}-${port.key}"
        }
      }
    }
  }
}
"""


def test_a_dynamic_block_needs_the_variables_that_it_is_computed_from() -> None:
    with pytest.raises(DocumentErrors) as caught:
        convert(DYNAMIC, JobFormat.HCL, JobFormat.YAML, flags=[("host", "h")])

    assert caught.value.text.splitlines()[0] == (
        'job.hcl:14:20: this part of a dynamic block needs a value of the variable "ports"'
    )
    assert caught.value.text.count("needs a value") == 1


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (DYNAMIC.replace("type = string", "type = string\n  sensitive = true"), "host"),
        (DYNAMIC.replace('host"', 'secret_host"').replace("var.host", "var.secret_host"), "secret_host"),
    ],
    ids=["declared", "by its name"],
)
def test_a_dynamic_block_with_a_sensitive_variable_is_not_converted(text: str, name: str) -> None:
    with pytest.raises(DocumentErrors) as caught:
        convert(text, JobFormat.HCL, JobFormat.YAML, flags=[("ports", "{ y = 2 }"), (name, "correct-horse")])

    assert f'comes from the sensitive variable "{name}"' in caught.value.text
    assert "correct-horse" not in caught.value.text


def test_a_note_names_the_values_that_a_dynamic_block_was_evaluated_with() -> None:
    converted = convert(
        DYNAMIC, JobFormat.HCL, JobFormat.YAML, flags=[("ports", "{ y = 2 }"), ("host", "correct-horse")]
    )

    assert "HostNetwork: correct-horse-x" in converted.text
    assert converted.losses == [
        'the dynamic "port" of line 13 is replaced by 2 blocks, evaluated with var.host = "correct-horse", '
        'var.ports = {"y": 2}'
    ]


@pytest.mark.parametrize(("reference", "kind"), [("var.x", "variable"), ("local.x", "local value")])
def test_an_undeclared_name_is_an_error(reference: str, kind: str) -> None:
    with pytest.raises(DocumentErrors, match=f'job.hcl:3:14: no {kind} "x" is declared'):
        convert(f'variable "n" {{}}\njob "a" {{\n  priority = {reference}\n}}\n', JobFormat.HCL, JobFormat.YAML)


def test_only_the_fields_of_the_file_are_written() -> None:
    text = 'job "a" {\n group "g" {\n  task "t" {\n   template {\n    data = "x"\n    splay = "5s"\n   }\n  }\n }\n}\n'

    template = parse_markup(convert(text, JobFormat.HCL, JobFormat.YAML).text, MarkupFormat.YAML).value

    assert template["TaskGroups"][0]["Tasks"][0]["Templates"] == [{"EmbeddedTmpl": "x", "Splay": "5s"}]


def test_a_note_names_texts_that_hcl_changes() -> None:
    text = "ID: a\nMeta: {a: e\u0301}\n"

    assert convert(text, JobFormat.YAML, JobFormat.HCL).losses == [
        "texts have the normal form NFC of Unicode, as in each file in HCL; the first that differs is in line 2"
    ]
    assert convert(text, JobFormat.YAML, JobFormat.TOML).losses == []


def test_texts_of_several_lines_are_indented_as_their_block() -> None:
    text = 'ID: a\nTaskGroups: [{Name: g, Tasks: [{Name: t, Templates: [{EmbeddedTmpl: "a\\n\\n  b ${X:-y}\\n"}]}]}]\n'

    converted = convert(text, JobFormat.YAML, JobFormat.HCL).text

    assert "        data = <<-EOF\n          a\n\n            b $${X:-y}\n        EOF\n" in converted


def test_a_job_as_the_api_returns_it_is_converted_without_the_fields_of_servers() -> None:
    job = {"Job": {"ID": "a", "Status": "running", "CreateIndex": 5, "Version": 3, "Priority": 60}}

    converted = convert(json.dumps(job), JobFormat.JSON, JobFormat.HCL)

    assert converted.text == 'job "a" {\n  priority = 60\n}\n'
    assert converted.losses == []


def test_what_hcl_cannot_express_is_named() -> None:
    text = 'ID: a\nTaskGroups: [{Name: g, Services: [{Meta: {"a b": x}}], Tasks: [{Config: {"a.b": 1}}]}]\n'

    assert convert(text, JobFormat.YAML, JobFormat.HCL).losses == [
        "HCL cannot express TaskGroups[0].Services[0].Meta[a b]: it is left out",
        "HCL cannot express TaskGroups[0].Tasks[0].Config[a.b]: it is left out",
    ]


def test_toml_has_no_null_in_lists() -> None:
    text = '{"ID": "a", "TaskGroups": [{"Tasks": [{"Config": {"x": [null]}}]}]}'

    with pytest.raises(UnwritableValue, match=r"TaskGroups\.Tasks.Config\.x: TOML has no null"):
        convert(text, JobFormat.JSON, JobFormat.TOML)


@pytest.mark.parametrize("format", [JobFormat.HCL, JobFormat.YAML])
def test_a_file_in_the_same_language_keeps_its_comments_and_variables(format: JobFormat) -> None:
    hcl = 'variable "n" {\n  default = 1 # one\n}\n\n# a job\njob "a" {\n  priority = var.n\n}\n'
    text = hcl if format is JobFormat.HCL else "# a job\nvariables: {n: 1} # one\nID: a\n"

    assert convert(text, format, format).text == text


PIECES = [
    "${", "$", "%{", "}", "\n", '"', "\\", "<<", "EOF", " ", "\t", "#", ": ", "attr.x", "var.x", "\r\n", "on", "1.10",
]  # fmt: skip
texts = st.text() | st.lists(st.sampled_from(PIECES)).map("".join)


@given(text=texts, markers=st.sampled_from([Markers.ESCAPE, Markers.KEEP_REFERENCES]))
def test_every_text_is_written_as_an_expression_with_the_same_value(text: str, markers: Markers) -> None:
    source = f"locals {{\n x = {format_expression(text, markers=markers)}\n}}\n"
    job = f'{source}job "a" {{\n meta = {{ x = local.x }}\n}}\n'

    assert parse_file(job).document["Meta"]["x"] == normalize_text(text)


values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.floats(-1e9, 1e9) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=10,
)


@given(config=st.dictionaries(st.sampled_from(["a", "b-c", "_x"]), values.filter(lambda value: value is not None)))
def test_any_options_of_a_driver_are_the_same_in_hcl(config: dict[str, Any]) -> None:
    assume(not has_reference(config))
    document = {"ID": "a", "TaskGroups": [{"Name": "g", "Tasks": [{"Name": "t", "Driver": "x", "Config": config}]}]}
    text = json.dumps(document)

    written = convert(text, JobFormat.JSON, JobFormat.HCL)

    if not written.losses:
        task = parse_file(written.text).document["TaskGroups"][0]["Tasks"][0]
        assert (task["Config"] or {}) == normalize(config)


def has_reference(value: Any) -> bool:
    """Return whether a value has a reference to a variable. A file that declares none is refused, as another test shows."""
    if isinstance(value, dict | list):
        return any(map(has_reference, value.values() if isinstance(value, dict) else value))
    return isinstance(value, str) and re.search(r"(?<!\$)\$\{\s*(?:var|local)\.[A-Za-z_]", value) is not None


def normalize(value: Any) -> Any:
    """Return a value with its texts in the normal form of HCL. Of equal keys, the last wins."""
    if isinstance(value, dict):
        return {normalize_text(key): normalize(item) for key, item in value.items()}
    if isinstance(value, list):
        return [normalize(item) for item in value]
    return normalize_text(value) if isinstance(value, str) else value


documents = st.dictionaries(texts, values, max_size=4)


@given(document=documents, format=st.sampled_from([MarkupFormat.JSON, MarkupFormat.YAML]))
def test_any_document_is_the_same_in_json_and_yaml(document: dict[str, Any], format: MarkupFormat) -> None:
    assert parse_markup(write_document(document, format), format).value == document


without_null = st.recursive(
    st.booleans() | st.integers(-(2**60), 2**60) | st.floats(-1e9, 1e9) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=10,
)


@given(document=st.dictionaries(texts, without_null, max_size=4))
def test_any_document_without_null_is_the_same_in_toml(document: dict[str, Any]) -> None:
    assert parse_markup(write_document(document, MarkupFormat.TOML), MarkupFormat.TOML).value == document


def test_a_large_document_is_not_written_as_yaml() -> None:
    document = {"a": list(range(MAX_WRITTEN_NODES))}

    with pytest.raises(
        UnwritableValue, match="more than 10,000 keys and values, the limit of YAML: convert it to JSON"
    ):
        write_document(document, MarkupFormat.YAML)
    assert write_document(document, MarkupFormat.TOML)


def test_many_dollars_are_written_as_hcl_in_linear_time() -> None:
    with limited_cpu(5.0, "formatting"):
        text = format_expression("$" * 500_000)

    assert text == f'"{"$" * 500_000}"'


def test_a_long_row_of_signs_is_escaped_in_linear_time() -> None:
    text = "$" * 100_000 + " {"

    with limited_cpu(1.0, "escaping"):
        escaped = escape_template(text)

    assert escaped == text
