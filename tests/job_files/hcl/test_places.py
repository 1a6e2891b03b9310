"""The places of JSON fields in a job file, with which later errors of a server show the line."""

import pytest

from tests.job_files.hcl.job_texts import parse_file

FILE = """variable "count" {
  default = 2
}
job "shop" {
  datacenters = ["dc1", "dc2"]
  meta = { "a.b" = 1 }
  vault {}
  update {
    canary = 9
  }
  group "web" {
    count = var.count
    meta {
      owner = "x"
    }
    volume "data" {
      source = "s"
    }
    network {
      port "http" { static = 80 }
    }
    constraint {
      attribute = "${attr.x}"
      version   = ">= 1"
    }
    service {
      check {
        interval = "1s"
      }
    }
    task "app" {
      config {
        args = ["a", "b"]
      }
      resources {
        cpu = 100
      }
    }
  }
  task "alone" {
    driver = "exec"
  }
}
"""


@pytest.mark.parametrize(
    ("path", "place"),
    [
        ("", "4:1"),
        ("ID", "4:5"),
        ("Datacenters", "5:17"),
        ("Datacenters[1]", "5:25"),
        ("Meta[a.b]", "6:20"),
        ("TaskGroups[1]", "11:3"),
        ("TaskGroups[1].Name", "11:9"),
        ("TaskGroups[1].Count", "12:13"),
        ("TaskGroups[1].Meta.owner", "14:15"),
        ("TaskGroups[1].Volumes.data.Source", "17:16"),
        ("TaskGroups[1].Networks[0].ReservedPorts[0].Value", "20:30"),
        ("TaskGroups[1].Networks[0].ReservedPorts[0].Label", "20:12"),
        ("TaskGroups[1].Constraints[0].LTarget", "23:22"),
        ("TaskGroups[1].Constraints[0].RTarget", "24:19"),
        ("TaskGroups[1].Constraints[0].Operand", "24:7"),
        ("TaskGroups[1].Services[0].Checks[0].Interval", "28:20"),
        ("TaskGroups[1].Tasks[0].Config.args[1]", "33:22"),
        ("TaskGroups[1].Tasks[0].Resources.CPU", "36:15"),
        ("TaskGroups[1].Tasks[0].Vault", "7:3"),
        ("TaskGroups[0].Name", "40:8"),
        ("TaskGroups[0].Tasks[0].Driver", "41:14"),
    ],
)
def test_a_field_has_the_place_of_its_value(path: str, place: str) -> None:
    assert str(parse_file(FILE).places[path]) == f"job.hcl:{place}"


@pytest.mark.parametrize(
    ("path", "place"),
    [
        ("Priority", "4:1"),
        ("TaskGroups[1].ShutdownDelay", "11:3"),
        ("TaskGroups[1].Tasks[0].Resources.MemoryMB", "35:7"),
        ("TaskGroups[1].Tasks[0].Templates[0].Splay", "31:5"),
        ("TaskGroups[9].Count", "40:3"),
        ("TaskGroups[1].Update.Canary", "9:14"),
        ("TaskGroups[1].Update.Stagger", "8:3"),
        ("TaskGroups[1].Migrate.MaxParallel", "4:1"),
    ],
)
def test_a_field_that_the_file_does_not_set_has_the_place_of_its_block(path: str, place: str) -> None:
    assert str(parse_file(FILE).find_place(path)) == f"job.hcl:{place}"


def test_a_problem_is_shown_with_its_line() -> None:
    text = parse_file(FILE).render_problem("TaskGroups[1].Count", "count", "must not be negative", "write 1")

    assert text == (
        "job.hcl:12:13: count: must not be negative\n   12 |     count = var.count\n      |             ^^^^^^^^^\n   write 1"
    )


def test_a_field_of_a_dynamic_block_has_the_place_of_its_content() -> None:
    text = 'job "j" {\n  dynamic "group" {\n    for_each = ["a", "b"]\n    labels = [group.value]\n    content {\n      count = 3\n    }\n  }\n}\n'
    places = parse_file(text).places

    assert [str(places[path]) for path in ("TaskGroups[1]", "TaskGroups[1].Name", "TaskGroups[1].Count")] == [
        "job.hcl:2:3",
        "job.hcl:2:11",
        "job.hcl:6:15",
    ]


def test_fields_of_the_json_form_have_places() -> None:
    places = parse_file('{"job": {"j": {\n"group": {"g": {"count": 2}}}}}').places

    assert str(places["TaskGroups[0].Count"]) == "job.hcl:2:26"


def test_names_with_unusual_characters_are_found_in_both_notations() -> None:
    job = parse_file('job "j" {\n  group "g" {\n    volume "my-data" {\n      source = "s"\n    }\n  }\n}\n')

    for path in ("TaskGroups[0].Volumes.my-data.Source", "TaskGroups[0].Volumes[my-data].Source"):
        assert str(job.find_place(path)) == "job.hcl:4:16"
