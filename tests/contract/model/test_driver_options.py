"""The options of tasks: which names and types of values the drivers take, by one table for job files, servers and nodes."""

from typing import Any

import pytest

from wharf.contract.model.drivers import DRIVER_CONFIGS, REQUIRED_OPTIONS
from wharf.contract.model.drivers.options import NOMAD_OPTIONS, convert_options, find_option_problems
from wharf.job_files.schema import load_schema


def list_problems(driver: str, config: dict[str, Any]) -> list[tuple[object, str, str]]:
    """Return the problems as (last step of the path, message, fix)."""
    return [(problem.path, problem.message, problem.fix) for problem in find_option_problems(driver, config)]


@pytest.mark.parametrize(
    ("driver", "config", "path", "message", "fix"),
    [
        ("raw_exec", {"args": "x"}, ("args",), '"args" for driver raw_exec takes a list of texts, not "x"', 'write ["x"]'),
        ("raw_exec", {"args": "-c true"}, ("args",), '"args" for driver raw_exec takes a list of texts, not "-c true"', 'write ["-c", "true"]'),
        ("exec", {"command": ["a"]}, ("command",), '"command" for driver exec takes a text, not a list',
         'write "a", and the arguments in "args"'),
        ("docker", {"image": 5}, ("image",), '"image" for driver docker takes a text, not 5', 'write "5"'),
        ("docker", {"ports": "http"}, ("ports",), '"ports" for driver docker takes a list of texts, not "http"',
         'write ["http"]'),
        ("docker", {"labels": "a=b"}, ("labels",), '"labels" for driver docker takes a map of texts, not "a=b"',
         'write a map, such as { name = "text" } in HCL or {name: text} in YAML'),
        ("docker", {"privileged": "yes"}, ("privileged",), '"privileged" for driver docker takes true or false, not "yes"',
         "write true or false"),
        ("docker", {"pids_limit": "many"}, ("pids_limit",), '"pids_limit" for driver docker takes a whole number, not "many"',
         "write a whole number, such as 10"),
        ("docker", {"args": [["a"]]}, ("args", 0), 'item 1 of "args" for driver docker takes a text, not a list', 'write "a"'),
        ("docker", {"labels": {"a": {"b": "c"}}}, ("labels", "a"),
         'item a of "labels" for driver docker takes a text, not a map', "write one text in quotes"),
        ("docker", {"auth": "me"}, ("auth",), '"auth" for driver docker takes one block, not a text',
         "write one block auth with options of username, password, email, server_address"),
        ("docker", {"auth": [{}, {}]}, ("auth",), '"auth" for driver docker takes one block, not a block',
         "write one block auth with options of username, password, email, server_address"),
        ("docker", {"mount": [{"target": "/a"}, "b"]}, ("mount",), '"mount" for driver docker takes blocks, not a list',
         "write block mount with options of target, type, source, readonly, bind_options, volume_options, tmpfs_options"),
        ("docker", {"mount": [{"target": "/a", "readonly": "x"}]}, ("mount", 0, "readonly"),
         '"readonly" for block mount takes true or false, not "x"', "write true or false"),
        ("docker", {"mount": {"source": "/a"}}, ("mount",), 'block mount has no "target"', 'add "target"'),
        ("docker", {"auth": {"password": 12345}}, ("auth", "password"),
         '"password" for block auth takes a text, not a number', 'write "..."'),
        ("mock", {"run_for": ["1s"]}, ("run_for",),
         '"run_for" for driver mock takes a duration such as 30s or 1h30m, not a list',
         'write "1s"; the units are ns, us, ms, s, m and h'),
        ("mock", {"kill_after": "5"}, ("kill_after",),
         '"kill_after" for driver mock takes a duration such as 30s or 1h30m, not "5"',
         'write "5s"; the units are ns, us, ms, s, m and h'),
        ("docker", {"image_pull_timeout": "5 minutes"}, ("image_pull_timeout",),
         '"image_pull_timeout" for driver docker takes a duration such as 30s or 1h30m, not "5 minutes"',
         'write "5m"; the units are ns, us, ms, s, m and h'),
        ("docker", {"image_pull_timeout": 300}, ("image_pull_timeout",),
         '"image_pull_timeout" for driver docker takes a duration such as 30s or 1h30m, not 300',
         'write "300s"; the units are ns, us, ms, s, m and h'),
        ("raw_exec", {"command": "A=1 sh"}, ("command",), '"command" for driver raw_exec takes a program without "=", not "A=..."',
         "write variables in env of the task"),
        ("exec", {"work_dir": "local"}, ("work_dir",), '"work_dir" for driver exec takes an absolute path, not "local"',
         "begin it with /"),
        ("docker", {"ulimit": {"nofile": "1:2:3"}}, ("ulimit", "nofile"),
         'an item of "ulimit" for driver docker takes one number, or two with a colon, not "1:2:3"',
         'write "SOFT:HARD", or one number for both'),
        ("docker", {"volumes": ["a:/a", "/b"]}, ("volumes", 1),
         'an item of "volumes" for driver docker takes source:target or source:target:ro, not "/b"', 'write "SOURCE:TARGET"'),
        ("docker", {"mounts": [{"target": "/a", "type": "bnd"}]}, ("mounts", 0, "type"),
         '"type" for block mounts takes volume, bind or tmpfs, not "bnd"', 'write "bind" for a folder or file'),
        ("docker", {"mount": {"target": "/a", "type": "bnd"}}, ("mount", "type"),
         '"type" for block mount takes volume, bind or tmpfs, not "bnd"', 'write "bind" for a folder or file'),
        ("docker", {"image_pull_timeout": "-5m"}, ("image_pull_timeout",),
         '"image_pull_timeout" for driver docker takes a duration such as 30s or 1h30m, not "-5m"',
         'write "30s"; the units are ns, us, ms, s, m and h'),
    ],
)  # fmt: skip
def test_a_value_of_a_wrong_type_is_a_problem_with_its_place_and_correction(
    driver: str, config: dict[str, Any], path: tuple[object, ...], message: str, fix: str
) -> None:
    needed = {name: example for name, example in [REQUIRED_OPTIONS.get(driver, ("", ""))] if name}

    assert [(path, message, fix)] == list_problems(driver, {**needed, **config})


@pytest.mark.parametrize(
    ("driver", "config", "path", "fix"),
    [
        ("docker", {}, (), 'add image to its config, such as "nginx:1.27"'),
        ("docker", {"image": None, "args": ["a"]}, ("image",), 'add image to its config, such as "nginx:1.27"'),
        ("exec", {}, (), 'add command to its config, such as "/bin/sh"'),
        ("raw_exec", {"command": ""}, ("command",), 'add command to its config, such as "/bin/sh"'),
    ],
)
def test_an_option_that_a_driver_needs_is_a_problem_if_it_is_missing(
    driver: str, config: dict[str, Any], path: tuple[object, ...], fix: str
) -> None:
    name = REQUIRED_OPTIONS[driver][0]

    assert [(path, f'a task with the driver {driver} needs the option "{name}"', fix)] == list_problems(driver, config)


def test_a_missing_option_is_at_the_misspelled_one() -> None:
    missing, _ = list_problems("raw_exec", {"comand": "x"})

    assert missing == (
        ("comand",), 'a task with the driver raw_exec needs the option "command"', 'write command instead of "comand"',
    )  # fmt: skip


def test_the_options_that_drivers_need_are_those_that_the_reference_calls_required() -> None:
    schema = load_schema()
    definitions = {driver: schema["$defs"][name]["properties"] for driver, name in schema["x-drivers"].items()}

    assert {driver: name for driver, (name, _) in REQUIRED_OPTIONS.items()} == {
        driver: name
        for driver, properties in definitions.items()
        for name, entry in properties.items()
        if entry.get("x-default") == "none; required"
    }


@pytest.mark.parametrize(
    ("driver", "config"),
    [
        ("raw_exec", {"command": "sh", "args": ["-p", 8080, 1.5, True], "oom_score_adj": "5"}),
        ("docker", {"image": "x", "pids_limit": "${meta.limit}", "privileged": "true", "entrypoint": []}),
        ("docker", {"image": "x", "labels": [{"a": 1}], "auth": [{"username": "me"}], "mount": {"target": "/a"}}),
        ("docker", {"image": "x", "command": None, "auth": None, "image_pull_timeout": "${meta.timeout}"}),
        ("docker", {"image": "${meta.image}", "image_pull_timeout": "1h30m"}),
        ("exec", {"command": "${meta.shell}=", "work_dir": "${NOMAD_TASK_DIR}"}),
        (
            "docker",
            {
                "image": "x",
                "volumes": ["a:b:ro"],
                "ulimit": {"nofile": 5, "nproc": "-1:20"},
                "mount": {"target": "/a", "type": "tmpfs"},
            },
        ),
        ("mock", {"run_for": 5, "exit_code": "1", "start_block_for": "1.5s"}),
        ("plugin", {"args": "x"}),
    ],
)
def test_other_spellings_of_values_are_no_problem(driver: str, config: dict[str, Any]) -> None:
    assert [] == list_problems(driver, config)


@pytest.mark.parametrize(
    ("driver", "option", "is_ignored"),
    [
        ("raw_exec", "no_cgroups", True),
        ("raw_exec", "cgroup_v1_override", True),
        ("docker", "ssl", True),
        ("docker", "port_map", False),
        ("docker", "volumes_from", False),
    ],
)
def test_an_option_that_only_nomad_has_is_no_unknown_key(driver: str, option: str, is_ignored: bool) -> None:
    needed, example = REQUIRED_OPTIONS[driver]

    (problem,) = find_option_problems(driver, {needed: example, option: True})

    assert (f'"{option}" is an option of Nomad that Wharf does not have', True, is_ignored) == (
        problem.message, problem.is_unknown, problem.is_ignored,
    )  # fmt: skip
    assert is_ignored == problem.fix.startswith("it has no effect: ")


def test_no_option_of_nomad_is_one_of_wharf() -> None:
    assert [] == [
        option for driver, options in NOMAD_OPTIONS.items() for option in options
        if option in DRIVER_CONFIGS[driver].__struct_fields__
    ]  # fmt: skip


def test_a_task_has_a_limited_number_of_problems() -> None:
    assert 20 == len(list_problems("raw_exec", {f"x{at}": at for at in range(100)}))


def test_nodes_get_the_types_of_the_table() -> None:
    config = {
        "args": ["-p", 8080, 1.5, 2.0, True], "command": None, "labels": [{"a": 1}, {"b": "c"}], "auth": [{"username": "me"}],
        "mount": {"target": "/a", "tmpfs_options": [{"size": "5"}]}, "pids_limit": "7", "other": 1,
    }  # fmt: skip

    assert {
        "args": ["-p", "8080", "1.5", "2", "true"], "labels": {"a": "1", "b": "c"}, "auth": {"username": "me"},
        "mount": [{"target": "/a", "tmpfs_options": {"size": 5}}], "pids_limit": 7, "other": 1,
    } == convert_options("docker", config)  # fmt: skip


@pytest.mark.parametrize("driver", list(DRIVER_CONFIGS))
def test_defaults_of_all_options_are_of_their_types(driver: str) -> None:
    defaults = {name: getattr(DRIVER_CONFIGS[driver](), name) for name in DRIVER_CONFIGS[driver].__struct_fields__}
    defaults |= {name: example for name, example in [REQUIRED_OPTIONS.get(driver, ("", ""))] if name}

    assert [] == list_problems(driver, defaults)
