"""The mistakes that authors of job files make most, with the exact text that they read (hcl.md 12)."""

import pytest

from tests.job_files.hcl.job_texts import PORTS, find_error_text
from wharf.job_files.hcl.parsing import evaluate_hcl_job
from wharf.languages.hcl.diagnostics import DocumentErrors
from wharf.languages.hcl.documents import parse_document
from wharf.languages.hcl.variables import VariableInputs

MISTAKES = {
    "a_variable_without_a_value": (
        """\
variable "x" {
 type = string
}
job "j" {}
""",
        """\
job.hcl:1:10: the variable "x" has no value
    1 | variable "x" {
      |          ^^^
   set it with --var x=..., in a values file, as WHARF_VAR_x in the environment, or with a default here
""",
    ),
    "a_file_function_on_a_server": (
        """\
job "j" {
 group "g" {
  task "t" {
   template {
    data = file("a.tpl")
   }
  }
 }
}
""",
        """\
job.hcl:5:12: file: the function file reads files, and the server has none: filesystem function disabled
    5 |     data = file("a.tpl")
      |            ^^^^^^^^^^^^^
   submit the job with the command line tool, which evaluates the file before it sends the job
""",
    ),
    "two_arguments_on_one_line": (
        """\
job "j" {
 group "g" {
  network {
   port "db" { static = 1 to = 2 }
  }
 }
}
""",
        """\
job.hcl:4:27: a block on one line has only one argument
    4 |    port "db" { static = 1 to = 2 }
      |                           ^^
   put each argument on a line of its own, and { and } at the ends of other lines
""",
    ),
    "a_nested_block_on_one_line": (
        """\
job "j" {
 group "g" { task "t" {} }
}
""",
        """\
job.hcl:2:14: a block on one line has no other block inside
    2 |  group "g" { task "t" {} }
      |              ^^^^
   start a new line after { and put } on a line of its own
""",
    ),
    "a_quoted_name": (
        """\
job "j" {
 meta {
  "a.b" = 1
 }
}
""",
        """\
job.hcl:3:3: the name of an argument has no quotes
    3 |   "a.b" = 1
      |   ^^^^^
   for a name such as "a.b", write an object: meta = { "a.b" = ... }
""",
    ),
    "a_comma_or_colon_after_an_argument": (
        """\
job "j" {
 type = "batch",
 priority: 5
}
""",
        """\
job.hcl:2:16: an argument ends with its line
    2 |  type = "batch",
      |                ^
   delete the comma
job.hcl:3:10: expected "=" or "{" after priority, found ":"
    3 |  priority: 5
      |          ^
   write priority = ...
""",
    ),
    "shell_text": (
        """\
job "j" {
 group "g" {
 task "t" {
 template {
 data = <<EOF
echo ${X:-y} %{http_code}
EOF
}
}
}
}
""",
        """\
job.hcl:6:9: expected an operator or "}" of the interpolation, found ":"
    6 | echo ${X:-y} %{http_code}
      |         ^
   opened at: job.hcl:6:6
    6 | echo ${X:-y} %{http_code}
      |      ^^
   for shell text, write $${ instead of ${
""",
    ),
    "another_template_language": (
        """\
job "[[ .name ]]" {
 type = [[ .type ]]
 priority = {{ x }}
}
""",
        """\
job.hcl:2:12: expected a value, found "."
    2 |  type = [[ .type ]]
      |            ^
   the file has [[ of another template language: render it first
job.hcl:3:13: expected a value, found "{{"
    3 |  priority = {{ x }}
      |             ^^
   the file has {{ of another template language: render it first
""",
    ),
    "a_block_twice": (
        """\
job "j" {
 update {}
 update {}
}
""",
        """\
job.hcl:3:2: the block "update" may occur only once
    3 |  update {}
      |  ^^^^^^
   the first is at: job.hcl:2:2
    2 |  update {}
      |  ^^^^^^
   join both into one
""",
    ),
    "an_unclosed_block": (
        """\
job "j" {
  group "g" {
    count = 1

  group "h" {
  }
}
""",
        """\
job.hcl:2:3: the block group has no closing brace
    2 |   group "g" {
      |   ^^^^^^^^^
   the first line whose indentation disagrees is: job.hcl:5:3
    5 |   group "h" {
      |   ^
   write } on a line of its own after its last argument
""",
    ),
    "a_number_with_a_unit_and_a_duration_without": (
        """\
job "j" {
 group "g" {
 task "t" {
 resources {
 memory = "256MB"
 cpu = "500MHz"
 memory_max = "1GB"
}
 kill_timeout = "20"
}
}
}
""",
        """\
job.hcl:5:11: "memory" takes a whole number of megabytes, not "256MB"
    5 |  memory = "256MB"
      |           ^^^^^^^
   write memory = 256
job.hcl:6:8: "cpu" takes a whole number of megahertz, not "500MHz"
    6 |  cpu = "500MHz"
      |        ^^^^^^^^
   write cpu = 500
job.hcl:7:15: "memory_max" takes a whole number of megabytes, not "1GB"
    7 |  memory_max = "1GB"
      |               ^^^^^
   write memory_max = 1024
job.hcl:9:17: "kill_timeout" takes a duration such as "30s" or "1h30m", not "20"
    9 |  kill_timeout = "20"
      |                 ^^^^
   write kill_timeout = "20s"
""",
    ),
    "a_text_instead_of_a_list": (
        """\
job "j" {
 datacenters = "dc1"
}
""",
        """\
job.hcl:2:16: "datacenters" takes a list of texts, not "dc1"
    2 |  datacenters = "dc1"
      |                ^^^^^
   write datacenters = ["dc1"]
""",
    ),
    "misspelled_and_misplaced_names": (
        """\
job "j" {
 count = 2
 datacenter = ["a"]
 grup "g" {}
 group "g" {
 driver = "docker"
  artefact {}
 resources {
}
}
}
""",
        """\
job.hcl:2:2: no argument "count" is allowed in job
    2 |  count = 2
      |  ^^^^^
   count belongs to group, device, region
job.hcl:3:2: no argument "datacenter" is allowed in job
    3 |  datacenter = ["a"]
      |  ^^^^^^^^^^
   did you mean "datacenters"?
job.hcl:4:2: no block "grup" is allowed in job
    4 |  grup "g" {}
      |  ^^^^^^^^
   did you mean "group"?
job.hcl:6:2: no argument "driver" is allowed in group
    6 |  driver = "docker"
      |  ^^^^^^
   driver belongs to task, sidecar_task
job.hcl:7:3: no block "artefact" is allowed in group
    7 |   artefact {}
      |   ^^^^^^^^
   did you mean "artifact"? It belongs to task
job.hcl:8:2: no block "resources" is allowed in group
    8 |  resources {
      |  ^^^^^^^^^
   resources belongs to task, sidecar_task
""",
    ),
    "functions_of_other_tools": (
        """\
job "j" {
 name = tostring(1)
 region = env("X")
}
""",
        """\
job.hcl:2:9: no function "tostring" exists
    2 |  name = tostring(1)
      |         ^^^^^^^^
   write convert(x, string)
job.hcl:3:11: no function "env" exists
    3 |  region = env("X")
      |           ^^^
   declare a variable and pass its value with --var
""",
    ),
    "a_block_as_argument_and_the_reverse": (
        """\
job "j" {
 group "g" {
 task "t" {
 config = {
 image = "x"
}
 resources = {
 cpu = 1
}
}
 datacenters {}
}
}
""",
        """\
job.hcl:4:2: "config" is a block, not an argument
    4 |  config = {
      |  ^^^^^^
   delete the =: write config {
job.hcl:7:2: "resources" is a block, not an argument
    7 |  resources = {
      |  ^^^^^^^^^
   delete the =: write resources {
job.hcl:11:2: no block "datacenters" is allowed in group
   11 |  datacenters {}
      |  ^^^^^^^^^^^
   datacenters is an argument of job, region
""",
    ),
    "no_job": (
        """\
variable "x" {
 default = 1
}
""",
        """\
job.hcl:1:1: the file has no block job
    1 | variable "x" {
      | ^
   write job "name" { ... }
""",
    ),
    "two_jobs": (
        """\
job "a" {}
job "b" {}
""",
        """\
job.hcl:2:1: the block "job" may occur only once
    2 | job "b" {}
      | ^^^^^^^
   the first is at: job.hcl:1:1
    1 | job "a" {}
      | ^^^^^^^
   write a file for each
""",
    ),
    "a_secret_value": (
        """\
variable "db_password" {
 default = "hunter2"
}
job "j" {
 priority = var.db_password
 group "g" {
 count = "${var.db_password}"
}
}
""",
        """\
job.hcl:5:13: "priority" takes a whole number, not a text
    5 |  priority = var.db_password
      |             ^^^^^^^^^^^^^^^
job.hcl:7:13: "count" takes a whole number, not a text
    7 |  count = "${var.db_password}"
      |             ^^^^^^^^^^^^^^^
""",
    ),
    "wrong_labels": (
        """\
job {
 group {
  task "a" "b" {}
}
}
""",
        """\
job.hcl:1:1: a job needs a label with its name
    1 | job {
      | ^^^
   write job "name" {
job.hcl:2:2: a group needs a label with its name
    2 |  group {
      |  ^^^^^
   write group "name" {
job.hcl:3:12: a task has one label
    3 |   task "a" "b" {}
      |            ^^^
   delete this label
""",
    ),
    "names_that_a_job_does_not_have": (
        """\
job "j" {
 consul {}
 vault_token = "x"
}
""",
        """\
job.hcl:2:2: no block "consul" is allowed in job
    2 |  consul {}
      |  ^^^^^^
   consul belongs to group, task
job.hcl:3:2: no argument "vault_token" is allowed in job
   the arguments are all_at_once, datacenters, depends, id, meta, name, namespace, node_pool, ...
""",
    ),
    "network_in_a_task": (
        """\
job "j" {
 group "g" {
 task "t" {
 network {}
 port "x" {}
  resources {
 network {
 port "http" {}
}
}
}
}
}
""",
        """\
job.hcl:4:2: no block "network" is allowed in task
    4 |  network {}
      |  ^^^^^^^
   network belongs to group, resources
job.hcl:5:2: no block "port" is allowed in task
    5 |  port "x" {}
      |  ^^^^^^^^
   port belongs to network
""",
    ),
    "json_of_the_api": (
        """\
{"job": {"ID": "x", "Name": "x", "TaskGroups": []}}""",
        """\
job.hcl:1:16: expected a JSON object for the block "job"
    1 | {"job": {"ID": "x", "Name": "x", "TaskGroups": []}}
      |                ^^^
   write "job": { "name": { ... } }
job.hcl:1:29: expected a JSON object for the block "job"
    1 | {"job": {"ID": "x", "Name": "x", "TaskGroups": []}}
      |                             ^^^
   write "job": { "name": { ... } }
""",
    ),
    "content_of_a_job_at_the_top_level": (
        """\
datacenters = ["a"]
group "x" {}
""",
        """\
job.hcl:1:1: no argument "datacenters" is allowed at the top level
    1 | datacenters = ["a"]
      | ^^^^^^^^^^^
   datacenters belongs to job, region
job.hcl:2:1: no block "group" is allowed at the top level
    2 | group "x" {}
      | ^^^^^^^^^
   group belongs to job
""",
    ),
}


@pytest.mark.parametrize(("text", "errors"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_is_explained(text: str, errors: str) -> None:
    assert find_error_text(text) + "\n" == errors


def test_errors_of_values_and_of_rules_are_shown_together() -> None:
    text = """\
job "j" {
  type = "sevice"
  group "g" {
    count = "two"
    network {
      port "http" {}
    }
    service {
      port = "htp"
    }
    task "t" {
      driver = "dcoker"
    }
  }
}
"""

    with pytest.raises(DocumentErrors) as errors:
        evaluate_hcl_job(parse_document(text, "job.hcl"), VariableInputs(), PORTS, checks_tasks=True)

    assert [line for line in errors.value.text.splitlines() if line.startswith("job.hcl:")] == [
        'job.hcl:2:10: type: Invalid job type: "sevice"',
        'job.hcl:4:13: "count" takes a whole number, not "two"',
        'job.hcl:9:14: group.service.port: Port label "htp" does not exist in the group\'s network',
        'job.hcl:12:16: group.task.driver: no node has the driver "dcoker"',
    ]
