"""What reading a job file fills in without `Canonicalize`: names, ports, defaults, copies for tasks, and groups of single tasks."""

import pytest

from tests.job_files.hcl.job_texts import list_errors, list_task_errors, parse_body, parse_file, parse_group, parse_task
from wharf.contract.model.times import SECOND

# -- job


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ('job "shop" {}', ("shop", "shop")),
        ("job shop {}", ("shop", "shop")),
        ('job "shop" {\n id = "s1"\n}', ("s1", "shop")),
        ('job "shop" {\n name = "Shop"\n}', ("shop", "Shop")),
        ('job "shop" {\n id = null\n}', ("shop", "shop")),
        ('job "a b/${"$"}{x}" {}'.replace('${"$"}{', "$${"), ("a b/${x}", "a b/${x}")),
    ],
)
def test_id_and_name_are_the_label_unless_they_are_set(text: str, names: tuple[str, str]) -> None:
    document = parse_file(text).document

    assert (document["ID"], document["Name"]) == names


def test_fields_that_only_servers_set_are_null_or_zero() -> None:
    document = parse_body("")

    assert {name: document[name] for name in ("Stop", "Status", "Version", "SubmitTime", "ParentID", "Dispatched")} == {
        "Stop": None, "Status": None, "Version": None, "SubmitTime": None, "ParentID": None, "Dispatched": False,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "kind"),
    [('cron = "@daily"', "cron"), ('crons = ["@daily"]', "cron"), ("crons = []", "cron"), ("enabled = true", None)],
)
def test_a_periodic_block_with_a_schedule_has_a_type(arguments: str, kind: str | None) -> None:
    assert parse_body(f"periodic {{\n{arguments}\n}}")["Periodic"]["SpecType"] == kind


def test_a_task_of_the_job_becomes_a_group_before_all_others() -> None:
    body = 'group "g" {\n task "t" {}\n}\ntask "a" {\n driver = "exec"\n}\ntask "b" {}'
    groups = parse_body(body)["TaskGroups"]

    assert [(group["Name"], group["Tasks"][0]["Name"], group["Tasks"][0]["Driver"]) for group in groups] == [
        ("a", "a", "exec"),
        ("b", "b", ""),
        ("g", "t", ""),
    ]
    assert groups[0].keys() == groups[2].keys()


def test_groups_of_one_name_are_read() -> None:
    assert [group["Name"] for group in parse_body('group "g" {}\ngroup "g" {}')["TaskGroups"]] == ["g", "g"]


# -- ports and volumes


def test_a_port_with_a_static_number_is_reserved() -> None:
    body = (
        'network {\n port "a" { static = 80 }\n port "b" { static = 0 }\n port "c" {}\n port "d" { static = "81" }\n}'
    )
    network = parse_group(body)["Networks"][0]

    assert [port["Label"] for port in network["ReservedPorts"]] == ["a", "d"]
    assert [port["Label"] for port in network["DynamicPorts"]] == ["b", "c"]


def test_legacy_reserved_ports_are_kept_beside_ports() -> None:
    body = 'network {\n reserved_ports "a" { static = 80 }\n port "b" { static = 81 }\n}'

    assert [port["Label"] for port in parse_group(body)["Networks"][0]["ReservedPorts"]] == ["a", "b"]


def test_a_repeated_volume_replaces_the_first() -> None:
    body = 'volume "v" { source = "a" }\nvolume "w" {}\nvolume "v" { source = "b" }'
    volumes = parse_group(body)["Volumes"]

    assert {name: volume["Source"] for name, volume in volumes.items()} == {"v": "b", "w": ""}


# -- templates and Vault


def test_a_template_has_defaults() -> None:
    template = parse_task("template {}")["Templates"][0]

    assert (template["ChangeMode"], template["Perms"], template["Splay"], template["ErrMissingKey"]) == (
        "restart",
        "0644",
        5 * SECOND,
        False,
    )
    assert (template["Once"], template["Envvars"], template["LeftDelim"], template["ChangeScript"]) == (None,) * 4


def test_permissions_of_a_template_may_be_a_number() -> None:
    assert parse_task("template { perms = 600 }")["Templates"][0]["Perms"] == "600"


def test_a_change_script_has_defaults_of_its_own() -> None:
    first, second = parse_task("template {\n change_script {}\n}\ntemplate {\n change_script {}\n}")["Templates"]
    first["ChangeScript"]["Args"].append("changed")

    assert second["ChangeScript"] == {
        "Command": None,
        "Args": [],
        "Timeout": 5 * SECOND,
        "FailOnError": False,
        "RunOnFirstRender": False,
    }


def test_a_vault_block_has_defaults() -> None:
    assert parse_task("vault {}")["Vault"] == {
        "Policies": None, "Role": "", "Namespace": None, "Cluster": "", "Env": True, "DisableFile": False,
        "ChangeMode": "restart", "ChangeSignal": None, "AllowTokenExpiration": None,
    }  # fmt: skip


def test_tasks_without_a_vault_block_get_the_nearest_one() -> None:
    body = """
    vault { role = "job" }
    group "a" {
      vault { role = "group" }
      task "t" {}
      task "own" {
        vault { role = "task" }
      }
    }
    group "b" {
      task "t" {}
    }
    task "single" {}
    """
    groups = parse_body(body)["TaskGroups"]

    assert {
        f"{group['Name']}/{task['Name']}": task["Vault"]["Role"] for group in groups for task in group["Tasks"]
    } == {
        "a/t": "group",
        "a/own": "task",
        "b/t": "job",
        "single/single": "job",
    }
    assert not any("Vault" in each for each in groups)


def test_tasks_get_the_secrets_of_their_group_and_job_after_their_own() -> None:
    body = """
    secret "job" {}
    group "a" {
      secret "group" { path = "g" }
      task "own" {
        secret "task" {}
      }
      task "none" {}
    }
    """
    document = parse_body(body)

    names = [[each["Name"] for each in task["Secrets"]] for task in document["TaskGroups"][0]["Tasks"]]
    assert names == [["task", "group", "job"], ["group", "job"]]
    assert "Secrets" not in document
    assert parse_task("")["Secrets"] is None


# -- identities, scaling, CSI plugins


def test_the_identity_without_a_name_is_the_default_one() -> None:
    for name in ("", 'name = "default"\n', 'name = ""\n'):
        task = parse_task(
            f'identity {{\n{name}env = true\n}}\nidentity {{\n name = "aws"\n}}\nidentity {{\n name = "b"\n}}'
        )

        assert task["Identity"]["Env"] is True
        assert [each["Name"] for each in task["Identities"]] == ["aws", "b"]
    assert (parse_task("")["Identity"], parse_task("")["Identities"]) == (None, None)


def test_a_second_default_identity_is_an_error() -> None:
    assert list_task_errors('identity {}\nidentity {\n name = "default"\n}') == [
        'a task has one identity without a name, or with the name default | write name = "..."'
    ]


def test_scaling_has_the_type_of_its_place() -> None:
    assert parse_group("scaling { max = 3 }")["Scaling"]["Type"] == "horizontal"
    policies = parse_task('scaling "cpu" {}\nscaling "MEM" {\n max = 2\n}')["ScalingPolicies"]
    assert [(each["Type"], each["Max"]) for each in policies] == [("vertical_cpu", None), ("vertical_mem", 2)]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("scaling {}", "scaling needs max | write max = ..."),
        ("scaling { max = null }", "scaling needs max | write max = ..."),
        ('scaling {\n max = 1\n type = "vertical_cpu"\n}', '"type" is "horizontal" here, not "vertical_cpu" | delete the line'),
        ('task "t" {\n scaling "disk" {}\n}', 'the label of scaling in a task is "cpu" or "mem", not "disk" | write scaling "cpu" {'),
        ('task "t" {\n scaling "cpu" {}\n scaling "CPU" {}\n}', 'a task has one scaling block for "CPU" | join both into one'),
        ('task "t" {\n scaling "mem" { type = "horizontal" }\n}', '"type" is "vertical_mem" here, not "horizontal" | delete the line'),
    ],
)  # fmt: skip
def test_a_wrong_scaling_block_is_an_error(body: str, message: str) -> None:
    assert list_errors(f'group "g" {{\n{body}\n}}') == [message]


def test_a_csi_plugin_that_is_absent_has_no_field() -> None:
    assert "CSIPluginConfig" not in parse_task("")
    assert parse_task("csi_plugin {}")["CSIPluginConfig"] == {
        "ID": "", "Type": "", "MountDir": "", "StagePublishBaseDir": "", "HealthTimeout": 0,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("lifecycle {}", "lifecycle needs hook | write hook = ..."),
        ('action "a" {}', "action needs command | write command = ..."),
    ],
)
def test_a_missing_argument_is_an_error(body: str, message: str) -> None:
    assert list_task_errors(body) == [message]
