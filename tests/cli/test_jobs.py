"""The commands about jobs, against a server in memory."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.terminal import WEB, Terminal, open_terminal, write_file
from tests.kit.cluster import JOB_SETTINGS
from wharf.contract.client import ClientSettings

ALIASES_OF_ALIASES = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{at}: &a{at} [{', '.join([f'*a{at - 1}'] * 10)}]\n" for at in range(1, 9)
)


@pytest.fixture
def terminal(capsys: pytest.CaptureFixture[str]) -> Iterator[Terminal]:
    with open_terminal(capsys, nodes=2) as terminal:
        yield terminal


def test_following_a_job_ends_when_its_deployment_succeeds(terminal: Terminal, tmp_path: Path) -> None:
    result = terminal.run("job", "run", "--follow", write_file(tmp_path, WEB))

    assert (result.code, result.lines[-1]) == (0, "✓ web: deployment succeeded")
    assert "2 healthy" in result.lines[-2]


def test_a_failed_deployment_is_exit_code_1(terminal: Terminal, tmp_path: Path) -> None:
    broken = WEB.replace("Driver: mock", "Driver: mock, Config: {start_error: no such image}").replace(
        "MinHealthyTime: 1s", "MinHealthyTime: 1s, HealthyDeadline: 5s, ProgressDeadline: 10s"
    )

    result = terminal.run("job", "run", "--follow", write_file(tmp_path, broken))

    assert result.code == 1
    assert result.lines[-1].startswith("✗ web: deployment failed: Failed due to")
    assert any(re.fullmatch(r" +web\.api\[.\] \(\w{8}\).*: main: no such image", line) for line in result.lines)
    assert result.lines[-2].endswith(" and 1 more: main: no such image")


def test_a_batch_job_is_followed_until_it_is_complete(terminal: Terminal, tmp_path: Path) -> None:
    work = WEB.replace("ID: web", "ID: sums\nType: batch").replace("    Update: {MinHealthyTime: 1s}\n", "")

    result = terminal.run("job", "run", "--follow", write_file(tmp_path, work))

    assert (result.code, result.lines[-1]) == (0, "✓ sums: 2 of 2 allocations complete")


def failing(exit_codes: str) -> str:
    work = WEB.replace("ID: web", "ID: sums\nType: batch").replace("    Update: {MinHealthyTime: 1s}\n", "")
    policies = "    RestartPolicy: {Attempts: 0, Mode: fail}\n    ReschedulePolicy: {Attempts: 0, Unlimited: false}\n"
    return work.replace("    Tasks:", f"{policies}    Tasks:").replace(
        "Driver: mock", f"Driver: mock, Config: {{{exit_codes}}}"
    )


@pytest.mark.parametrize(
    ("ended_with", "code", "expected"),
    [
        ("exit_code: 3", 3, "Exit Code: 3"),
        ("start_error: no such image", 1, "no such image"),
    ],
)
def test_the_exit_code_of_a_failed_batch_job_is_returned(
    terminal: Terminal, tmp_path: Path, ended_with: str, code: int, expected: str
) -> None:
    result = terminal.run("job", "run", "--follow", write_file(tmp_path, failing(ended_with)))

    assert (result.code, result.lines[-1]) == (code, "✗ sums: 2 of 2 allocations failed")
    assert result.lines[-2].endswith(f" and 1 more: main: {expected}")


def test_a_batch_job_that_fails_with_different_exit_codes_is_exit_code_1(terminal: Terminal, tmp_path: Path) -> None:
    second = "\n".join(failing("exit_code: 4").split("TaskGroups:\n")[1].splitlines()).replace(
        "Name: ", "Name: other-", 1
    )

    result = terminal.run(
        "job", "run", "--follow", write_file(tmp_path, failing("exit_code: 3") + "\n" + second + "\n")
    )

    assert (1, "✗ sums: 4 of 4 allocations failed") == (result.code, result.lines[-1])


def test_an_unplaced_group_is_exit_code_2_with_the_reason(terminal: Terminal, tmp_path: Path) -> None:
    result = terminal.run("job", "run", write_file(tmp_path, WEB.replace("CPU: 100", "CPU: 900000")))

    assert result.code == 2
    assert result.lines[-4:] == [
        "Not placed, waiting for capacity:",
        "  api: 2 not placed",
        "    · too little cpu on 2 nodes, at least 896,000 MHz missing (node-1, node-2)",
        "    for one more allocation: lower CPU of api/main from 900000 to 4000, or add a node with at least 900000 MHz of CPU",
    ]


def test_run_with_detach_returns_at_once(terminal: Terminal, tmp_path: Path) -> None:
    result = terminal.run("job", "run", "-detach", write_file(tmp_path, WEB))

    assert (result.code, len(result.lines)) == (0, 2)
    assert result.lines[1].startswith("evaluation ")


def test_errors_of_a_job_have_line_and_column(terminal: Terminal, tmp_path: Path) -> None:
    file = write_file(tmp_path, WEB.replace("CPU: 100", "CPU: fast").replace("Count: 2", "Count: many"))

    result = terminal.run("job", "run", file)

    assert (result.code, result.out) == (1, "")
    assert result.errors == [
        f"wharf: {file}:5:12: TaskGroups[0].Count: expected a whole number, got text",
        f"wharf: {file}:8:53: TaskGroups[0].Tasks[0].Resources.CPU: expected a whole number, got text",
    ]


@pytest.mark.parametrize("words", [("job", "validate"), ("job", "plan")])
def test_an_invalid_duration_is_reported_with_the_expected_format(
    terminal: Terminal, tmp_path: Path, words: tuple[str, ...]
) -> None:
    file = write_file(tmp_path, WEB.replace("Count: 2", "Count: 2\n    ShutdownDelay: 10 seconds"))

    result = terminal.run(*words, file)

    text = 'TaskGroups[0].ShutdownDelay: expected a duration such as 30s or 1h30m, got "10 seconds"'
    assert result.errors == [f"wharf: {file}:6:20: {text}"]


def test_a_tiny_duration_without_a_unit_is_a_warning(terminal: Terminal, tmp_path: Path) -> None:
    text = WEB.replace("MinHealthyTime: 1s", "MinHealthyTime: 1000000000")
    scaled = text.replace("Count: 2", "Count: 2\n    ShutdownDelay: 10\n    Scaling: {Min: 1, Max: 5}")
    file = write_file(tmp_path, scaled)

    result = terminal.run("job", "validate", file)

    text = 'TaskGroups[0].ShutdownDelay: 10 without a unit means nanoseconds: write "10s" for seconds'
    assert (result.code, result.err) == (0, f"note: {file}:6:20: {text}\n")


@pytest.mark.parametrize("words", [("job", "validate"), ("job", "run"), ("job", "plan")])
def test_an_unknown_field_is_an_error_with_its_line_and_a_suggestion(
    terminal: Terminal, tmp_path: Path, words: tuple[str, ...]
) -> None:
    file = write_file(tmp_path, WEB.replace("Count: 2", "Cuont: 2"))

    result = terminal.run(*words, file)

    assert terminal.used_settings == []
    assert result.err.splitlines() == [
        f"wharf: {file}:5:5: TaskGroups[0].Cuont is not a known field",
        "    5 |     Cuont: 2",
        "      |     ^^^^^",
        "   did you mean Count?",
    ]


def test_submitting_an_unchanged_job_reports_that_nothing_changed(terminal: Terminal, tmp_path: Path) -> None:
    file = write_file(tmp_path, WEB)
    first = terminal.run_ok("job", "run", "--follow", file)
    repeated = terminal.run_ok("job", "run", file)

    assert first.startswith("submitted job web (index ")
    assert repeated.startswith("no change: web is already at this version\n")


@pytest.mark.parametrize("words", [("job", "validate"), ("job", "run"), ("job", "plan")])
def test_all_errors_of_a_job_are_one_list(terminal: Terminal, tmp_path: Path, words: tuple[str, ...]) -> None:
    text = WEB.replace("ID: web", "ID: w eb").replace("Count: 2", "Count: -1").replace("CPU: 100", "CPU: -1")
    file = write_file(tmp_path, text + "  - {Name: api, Tasks: [{Name: a, Driver: mock}]}\n")

    result = terminal.run(*words, file)

    assert result.errors == [
        f'wharf: {file}:2:5: ID: Job ID contains a space: write "w-eb"',
        f"wharf: {file}:5:12: TaskGroups[0].Count: Task group count can't be negative",
        f"wharf: {file}:8:53: TaskGroups[0].Tasks[0].Resources.CPU: minimum CPU value is 1; got -1",
        f"wharf: {file}:9:12: TaskGroups[1].Name: Job task group 2 redefines 'api' from group 1",
    ]


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("a.yaml", "ID: web\n  a: [\n", "{file}:2:3: the line is indented deeper than line 1, which has a value"),
        ("a.json", '{"ID": "web",\n "Type": x}', "{file}:2:10: x is not a JSON value"),
        ("a.json", '{"ID": "web", "ID": "x"}', '{file}:1:15: the key "ID" occurs twice'),
        ("a.yaml", "- a", "{file}:1:1: not a job file: expected a map, got a list"),
        ("a.yaml", "Type: batch", "{file}:1:1: the job has no ID\n    1 | Type: batch\n"),
        ("a.yaml", "ID: a\n\tType: batch", "{file}:2:1: the line has a tab"),
        ("a.yaml", "ID: a\nID: b", '{file}:2:1: the key "ID" occurs twice'),
        ("a.hcl", 'job "web" {\n cuont = 2\n}', '{file}:2:2: no argument "cuont" is allowed in job'),
        ("a.toml", "ID = 'web'\nTyp = 'batch'", "{file}:2:1: Typ is not a known field"),
        ("a.yaml", "ID: a\n---\nID: b\n", "{file}:2:1: expected one YAML document, got several"),
        ("a.yaml", "", "{file}: the file is empty"),
        ("a.yaml", "ID: &a [*a]\n", "{file}:1:9: the alias *a is inside of the list or map that it repeats"),
        (
            "a.yaml",
            ALIASES_OF_ALIASES,
            "{file}:5:45: the file has more than 100,000 keys and values once its aliases are expanded",
        ),
    ],
)
def test_a_file_that_is_not_a_job_is_rejected_without_a_request(
    terminal: Terminal, tmp_path: Path, name: str, text: str, expected: str
) -> None:
    file = write_file(tmp_path, text, name)

    result = terminal.run("job", "run", file)

    assert (result.code, terminal.used_settings) == (1, [])
    assert result.err.startswith("wharf: " + expected.format(file=file)), result.err


def test_on_in_yaml_is_text_not_a_bool(terminal: Terminal, tmp_path: Path) -> None:
    terminal.run_ok("job", "run", write_file(tmp_path, WEB.replace("ID: web", "ID: web\nMeta: {on: yes}")))

    assert terminal.run_ok("job", "inspect", "-t", "{{.Meta.on}}", "web") == "yes\n"


def test_the_exit_code_of_plan_shows_whether_allocations_change(terminal: Terminal, tmp_path: Path) -> None:
    file = write_file(tmp_path, WEB)
    new = terminal.run("job", "plan", file)
    terminal.run_ok("job", "run", file)
    unchanged = terminal.run("job", "plan", file)
    more = terminal.run("job", "plan", write_file(tmp_path, WEB.replace("Count: 2", "Count: 3"), "more.yaml"))
    broken = terminal.run("job", "plan", write_file(tmp_path, WEB.replace("Count: 2", "Count: x"), "broken.yaml"))
    unknown = terminal.run("job", "plan", "--nonsense")

    lower = terminal.run(
        "job", "plan", write_file(tmp_path, WEB.replace("ID: web", "ID: web\nPriority: 60"), "lower.yaml")
    )

    assert [result.code for result in (new, unchanged, more, lower, broken, unknown)] == [1, 0, 1, 0, 255, 255]
    assert '"2" → "3"' in more.out
    assert "  api: 1 to place, 2 to update in place" in more.out.splitlines()
    assert "wharf job run --check-index " in more.out


def test_the_command_of_a_plan_repeats_options_and_values_of_the_environment(
    terminal: Terminal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    declarations = "variables: {image: a, zone: b, db_password: c, api_token: d, count: 1}\n"
    file = write_file(tmp_path, declarations + WEB)
    monkeypatch.setenv("NOMAD_VAR_image", "web 2")
    monkeypatch.setenv("WHARF_VAR_db_password", "hidden")
    monkeypatch.setenv("WHARF_VAR_zone", "from the environment")
    monkeypatch.setenv("WHARF_VAR_other", "not declared")

    result = terminal.run(
        "job", "plan", "--namespace", "default", "--token", "t0k", "--var", "zone=z1", "--var", "api_token=hidden", file
    )

    command, *rest = result.out.splitlines()[
        result.out.splitlines().index("To submit this version only if the job does not change in the meantime:") + 1 :
    ]
    options = "--namespace default --var 'image=web 2' --var zone=z1 --var api_token=..."
    assert command == f"  wharf job run --check-index 0 {options} {file}"
    assert rest == [
        "  with the same environment: WHARF_VAR_db_password",
        "  with the values of the variables instead of ...",
    ]
    assert "hidden" not in result.out


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("Count: 2", "Count: 3", "  api: 1 to place, 2 to replace; the first step changes 1"),
        ("ID: web", "ID: web", "  api: 2 to replace; the first step changes 1"),
        ("MaxParallel: 1", "MaxParallel: 2", "  api: 2 to replace"),
        (
            "MaxParallel: 1",
            "MaxParallel: 1, Canary: 1",
            "  api: 1 to place as canary, 2 to replace after the promotion",
        ),
    ],
)
def test_a_plan_of_a_rolling_update_shows_all_its_steps(
    terminal: Terminal, tmp_path: Path, old: str, new: str, expected: str
) -> None:
    text = WEB.replace("{MinHealthyTime", "{MaxParallel: 1, MinHealthyTime")
    terminal.run_ok("job", "run", write_file(tmp_path, text))
    changed = text.replace(old, new).replace("CPU: 100", "CPU: 110")

    planned = terminal.run("job", "plan", write_file(tmp_path, changed, "changed.yaml"))

    assert expected in planned.out.splitlines()


def test_a_plan_shows_how_many_allocations_can_be_placed(terminal: Terminal, tmp_path: Path) -> None:
    planned = terminal.run("job", "plan", write_file(tmp_path, WEB.replace("mock", "java")))

    assert "  api: 0 of 2 can be placed" in planned.out.splitlines()


def test_a_plan_of_a_new_job_is_an_outline_unless_verbose(terminal: Terminal, tmp_path: Path) -> None:
    file = write_file(tmp_path, WEB)

    short = terminal.run("job", "plan", file).out.splitlines()
    whole = terminal.run("job", "plan", "--verbose", file).out.splitlines()

    assert short[:3] == [
        "+ Job web, new: a service job",
        "  + Group api",
        "    + Task main: mock, 100 MHz, 32 MB",
    ]
    assert '      + MinHealthyTime    "1s"' in whole
    assert '        + MemoryMB     "32"' in whole


def test_a_plan_shows_a_removed_group_as_one_line(terminal: Terminal, tmp_path: Path) -> None:
    more = WEB + "  - {Name: cache, Tasks: [{Name: main, Driver: mock}]}\n"
    terminal.run_ok("job", "run", "--follow", write_file(tmp_path, more))

    printed = terminal.run("job", "plan", write_file(tmp_path, WEB)).out.splitlines()

    assert printed[:3] == ["± Job web", "  - Group cache", ""]


def test_scaling_during_a_deployment_is_refused_with_the_possible_actions(terminal: Terminal, tmp_path: Path) -> None:
    terminal.run_ok("job", "run", write_file(tmp_path, WEB.replace("1s", "1m")))

    result = terminal.run("job", "scale", "web", "3")

    assert result.code == 1
    assert result.err.startswith("wharf: job scaling blocked due to active deployment (`wharf deployment status web`)")
    assert "`wharf deployment fail web`" in result.err


def test_the_example_job_runs_unchanged(terminal: Terminal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = terminal.run_ok("job", "init")
    (tmp_path / "short").mkdir()
    terminal.run_ok("init", "--short", "short/example.yaml")
    repeated = terminal.run("job", "init")

    assert text == "wrote example.yaml; `wharf job run example.yaml` submits it\n"
    assert (repeated.code, repeated.err) == (1, "wharf: example.yaml already exists: choose another file name\n")
    assert "#" not in (tmp_path / "short" / "example.yaml").read_text()
    terminal.run_ok("run", "--follow", "example.yaml")
    assert terminal.run_ok("job", "status", "-t", "{{range .}}{{.ID}}{{end}}") == "example\n"
    assert terminal.run("plan", "short/example.yaml").code == 0


@pytest.mark.parametrize(
    ("short", "long"),
    [
        (("job", "list"), ("job", "status")),
        (("node", "list"), ("node", "status")),
        (("node-status",), ("node", "status")),
        (("inspect", "web"), ("job", "inspect", "web")),
        (("server-members",), ("server", "members")),
    ],
)
def test_an_alias_does_the_same_as_the_command(
    terminal: Terminal, tmp_path: Path, short: tuple[str, ...], long: tuple[str, ...]
) -> None:
    terminal.run_ok("job", "run", "--follow", write_file(tmp_path, WEB))

    assert terminal.run_ok(*short, "-t", "{{.}}") == terminal.run_ok(*long, "-t", "{{.}}")


@pytest.mark.parametrize("words", [("alloc", "pause", "1a2b"), ("node", "config")])
def test_a_command_that_nodes_do_not_support_is_an_error(terminal: Terminal, words: tuple[str, ...]) -> None:
    result = terminal.run(*words)

    assert (result.code, terminal.used_settings) == (1, [])
    assert "nodes do not support this yet" in result.err


def test_submitting_a_periodic_job_prints_its_next_five_launches(terminal: Terminal, tmp_path: Path) -> None:
    nightly = WEB.replace("ID: web", 'ID: nightly\nType: batch\nPeriodic: {Specs: ["0 3 * * *"]}').replace(
        "    Update: {MinHealthyTime: 1s}\n", ""
    )

    lines = terminal.run_ok("job", "run", write_file(tmp_path, nightly)).splitlines()

    assert lines[1] == "Next launches:"
    assert [line.split()[1] for line in lines[2:]] == ["03:00:00Z"] * 5


def test_a_periodic_job_is_shown_with_its_next_launch_and_its_newest_children(
    terminal: Terminal, tmp_path: Path
) -> None:
    nightly = WEB.replace("ID: web", 'ID: nightly\nType: batch\nPeriodic: {Specs: ["0 3 * * *"]}').replace(
        "    Update: {MinHealthyTime: 1s}\n", ""
    )
    terminal.run_ok("job", "run", write_file(tmp_path, nightly))
    launched = terminal.run_ok("job", "periodic", "force", "nightly")

    printed = terminal.run_ok("job", "status", "nightly")
    terminal.run_ok("job", "stop", "nightly")
    stopped = terminal.run_ok("job", "status", "nightly")

    child_id = launched.splitlines()[0].removeprefix("launched periodic job nightly as ")
    assert f"\n{child_id} " in printed
    assert "0 3 * * *  UTC\nnext  " in printed
    assert "03:00:00Z" in printed
    assert "Newest children\nID" in printed
    assert "\nnightly/periodic-" in printed
    assert "Groups" not in printed
    assert "no launches: the job is stopped" in stopped


def test_lists_are_printed_as_table_json_and_template(terminal: Terminal, tmp_path: Path) -> None:
    terminal.run_ok("job", "run", write_file(tmp_path, WEB))

    table = terminal.run_ok("job", "status").splitlines()
    as_json = json.loads(terminal.run_ok("job", "status", "-json"))
    by_template = terminal.run_ok("job", "status", "-t", "{{range .}}{{.ID}}:{{.Status}} {{end}}")
    invalid = terminal.run("job", "status", "-t", "{{range .}}{{.Statu}}{{end}}")

    assert table[0].split() == [
        "ID", "Type", "Priority", "Status", "Running", "Complete", "Failed", "Lost", "Submitted"
    ]  # fmt: skip
    assert table[1].split()[:4] == ["web", "service", str(JOB_SETTINGS.default_priority), "running"]
    assert [job["ID"] for job in as_json] == ["web"]
    assert by_template == "web:running \n"
    assert (invalid.code, invalid.err) == (
        1,
        "wharf: invalid template: line 1, column 14: there is no field .Statu: did you mean .Status?\n",
    )


def test_lists_and_status_count_allocations_of_a_service_against_the_count_of_its_groups(
    terminal: Terminal, tmp_path: Path
) -> None:
    # One allocation fails for good. The other one runs, so the job is not dead.
    policies = "    RestartPolicy: {Attempts: 0, Mode: fail}\n    ReschedulePolicy: {Attempts: 0, Unlimited: false}\n"
    stable = WEB.replace("    Tasks:", f"{policies}    Tasks:").replace("Count: 2", "Count: 1")
    lasting, short = stable, stable.split("TaskGroups:\n")[1].replace("Name: api", "Name: worker")
    short = short.replace("Driver: mock", "Driver: mock, Config: {run_for: 1s, exit_code: 1}")
    terminal.run("job", "run", "--follow", write_file(tmp_path, lasting + short))

    listed = terminal.run_ok("job", "status").splitlines()
    cluster = terminal.run_ok("status")
    shown = terminal.run_ok("job", "status", "web").splitlines()

    assert listed[1].split()[3:5] == ["waiting", "1/2"]
    assert listed[-1] == "Fewer allocations than requested: web; `wharf job explain JOB` says why."
    assert listed[-1] in cluster
    groups = [line.split()[:2] for line in shown if line.split()[:1] in (["Group"], ["api"], ["worker"])]
    assert ["Group", "Requested"] in groups
    assert ["worker", "1"] in groups
    assert any("worker has " in line for line in shown)


def test_a_stopped_service_requests_no_allocations(terminal: Terminal, tmp_path: Path) -> None:
    terminal.run_ok("job", "run", "--follow", write_file(tmp_path, WEB))
    running = terminal.run_ok("job", "status").splitlines()
    terminal.run_ok("job", "stop", "web")
    stopped = terminal.run_ok("job", "status").splitlines()

    assert (running[-1].split()[4], len(running)) == ("2/2", 2)
    assert "requested" not in stopped[-1]


def test_an_empty_filtered_list_prints_that_nothing_matches(terminal: Terminal, tmp_path: Path) -> None:
    terminal.run_ok("job", "run", "--follow", write_file(tmp_path, WEB))
    without_match = ("--filter", 'ID == "nobody"')

    assert terminal.run_ok("job", "status", *without_match) == "No jobs match.\n"
    assert terminal.run_ok("node", "status", *without_match) == "No nodes match.\n"
    assert terminal.run_ok("node", "status", "--node-pool", "gpu") == "No nodes match.\n"
    assert terminal.run_ok("deployment", "list", *without_match) == "No deployments match.\n"
    assert terminal.run_ok("eval", "list", "--job", "nobody") == "No evaluations match.\n"
    assert terminal.run_ok("volume", "status", *without_match) == "No volumes match.\n"
    terminal.run_ok("namespace", "apply", "shop")
    assert terminal.run_ok("job", "status", "--namespace", "shop") == (
        "No jobs in namespace shop; `wharf namespace list` lists the namespaces.\n"
    )


def test_a_unique_prefix_of_an_id_is_accepted_and_an_ambiguous_one_is_not(terminal: Terminal, tmp_path: Path) -> None:
    for name in ("web-a", "web-b", "api"):
        terminal.run_ok("job", "run", "--detach", write_file(tmp_path, WEB.replace("ID: web", f"ID: {name}")))

    assert "ID           api" in terminal.run_ok("job", "status", "ap")
    several = terminal.run("job", "status", "web")

    assert several.code == 1
    assert several.err.splitlines()[0] == "wharf: web matches 2 jobs; enter more characters of the id:"
    assert [line.split()[1] for line in several.err.splitlines()[1:]] == ["web-a", "web-b"]
    without_match = terminal.run("job", "status", "db")
    assert (without_match.code, without_match.err) == (
        1,
        "wharf: job db does not exist; `wharf job status` lists all\n",
    )


def test_a_job_is_scaled_reverted_stopped_and_started_again(terminal: Terminal, tmp_path: Path) -> None:
    terminal.run_ok("job", "run", "--follow", write_file(tmp_path, WEB))

    assert terminal.run_ok("job", "scale", "web", "3").splitlines()[0] == "scaled web/api to 3"
    assert terminal.run_ok("job", "inspect", "-t", "{{range .TaskGroups}}{{.Count}}{{end}}", "web") == "3\n"
    assert terminal.run_ok("job", "revert", "web").splitlines()[0] == "reverted job web to version 0"
    versions = terminal.run_ok("job", "history", "-t", "{{range .}}{{.Version}} {{end}}", "web")
    terminal.run_ok("job", "stop", "web")
    stopped = terminal.run_ok("job", "inspect", "-t", "{{.Stop}}", "web")
    terminal.run_ok("job", "start", "web")

    assert (versions, stopped) == ("2 1 0 \n", "true\n")
    assert terminal.run_ok("job", "inspect", "-t", "{{.Stop}}", "web") == "false\n"
    assert terminal.run("job", "start", "web").err == (
        "wharf: job web is not stopped; `wharf job status web` shows its state\n"
    )


def test_a_revert_without_a_version_names_the_versions_if_none_is_stable(terminal: Terminal, tmp_path: Path) -> None:
    terminal.run_ok("job", "run", "--detach", write_file(tmp_path, WEB))
    first = terminal.run("job", "revert", "web")
    terminal.run_ok("job", "run", "--detach", write_file(tmp_path, WEB.replace("CPU: 100", "CPU: 120")))
    second = terminal.run("job", "revert", "web")

    assert (first.code, second.code) == (1, 1)
    assert "job web has no earlier version" in first.err
    assert "no earlier stable version; choose one: `wharf job revert web 0`" in " ".join(second.err.split())


def test_the_history_names_the_version_that_a_revert_repeats(terminal: Terminal, tmp_path: Path) -> None:
    terminal.run_ok("job", "run", "--follow", write_file(tmp_path, WEB))
    before = terminal.run_ok("job", "history", "web").splitlines()
    terminal.run_ok("job", "scale", "--detach", "web", "3")
    terminal.run_ok("job", "revert", "--detach", "web", "0")

    table = terminal.run_ok("job", "history", "web").splitlines()
    changes = terminal.run_ok("job", "history", "-p", "web").splitlines()

    assert "Same as" not in before[0]
    assert table[0].split() == ["Version", "Stable", "Submitted", "Same", "as", "Tag", "Description"]
    assert [line.split()[-2] for line in table[1:]] == ["0", "-", "-"]
    assert [line for line in changes if "same as" in line] == ["  same as version 0"]


TEMPLATES = WEB.replace(
    "Resources: {", 'Templates: [{DestPath: local/a, EmbeddedTmpl: "a\\nb\\nc\\nd\\ne\\nf\\n"}], Resources: {'
)


def test_a_changed_text_of_several_lines_is_shown_line_by_line(terminal: Terminal, tmp_path: Path) -> None:
    terminal.run_ok("job", "run", "--detach", write_file(tmp_path, TEMPLATES))

    printed = terminal.run("job", "plan", write_file(tmp_path, TEMPLATES.replace("e\\nf", "E\\nf"))).out.splitlines()

    start = next(at for at, line in enumerate(printed) if line.strip() == "± Template")
    assert [line.strip() for line in printed[start : start + 9]] == [
        "± Template", "± EmbeddedTmpl", "@@ -2,5 +2,5 @@", "b", "c", "d", "- e", "+ E", "f",
    ]  # fmt: skip


def test_the_lines_of_a_new_text_are_shown(terminal: Terminal, tmp_path: Path) -> None:
    terminal.run_ok("job", "run", "--detach", write_file(tmp_path, WEB))

    printed = terminal.run("job", "plan", write_file(tmp_path, TEMPLATES)).out.splitlines()

    start = next(at for at, line in enumerate(printed) if line.strip() == "+ EmbeddedTmpl")
    assert [line.strip() for line in printed[start + 2 : start + 8]] == ["+ a", "+ b", "+ c", "+ d", "+ e", "+ f"]


def test_stopping_a_stopped_job_reports_that_it_is_already_stopped(terminal: Terminal, tmp_path: Path) -> None:
    terminal.run_ok("job", "run", write_file(tmp_path, WEB))
    terminal.run_ok("job", "stop", "web")

    repeated = terminal.run("job", "stop", "web")
    purged = terminal.run("job", "stop", "--purge", "web")

    assert (repeated.code, repeated.out) == (0, "job web is already stopped\n")
    assert (purged.code, purged.out) == (0, "purged job web\n")


def test_a_prefix_of_an_id_stops_no_job_without_yes(terminal: Terminal, tmp_path: Path) -> None:
    terminal.run_ok("job", "run", write_file(tmp_path, WEB))

    result = terminal.run("job", "stop", "we")

    assert (result.code, result.err) == (1, "wharf: we is only a prefix of web: give the whole id, or --yes\n")
    assert terminal.run_ok("job", "inspect", "-t", "{{.Stop}}", "web") == "false\n"
    terminal.run_ok("job", "stop", "--yes", "we")


def test_several_jobs_are_stopped_together_or_none_of_them(terminal: Terminal, tmp_path: Path) -> None:
    for name in ("web", "shop"):
        terminal.run_ok("job", "run", write_file(tmp_path, WEB.replace("ID: web", f"ID: {name}")))

    refusal = terminal.run("job", "stop", "web", "nobody", "shop")
    remaining = [terminal.run_ok("job", "inspect", "-t", "{{.Stop}}", name) for name in ("web", "shop")]
    output = terminal.run_ok("job", "stop", "web", "shop")

    assert (1, ["false\n", "false\n"]) == (refusal.code, remaining)
    assert ["stopped job web", "stopped job shop"] == output.splitlines()[:2]


def test_logs_of_a_parameterized_job_point_to_its_children(terminal: Terminal, tmp_path: Path) -> None:
    encode = WEB.replace("ID: web", "ID: encode\nType: batch\nParameterizedJob: {}").replace(
        "    Update: {MinHealthyTime: 1s}\n", ""
    )
    terminal.run_ok("job", "run", write_file(tmp_path, encode))
    terminal.run_ok("job", "dispatch", "--follow", "encode")

    result = terminal.run("job", "logs", "encode")
    child = next(
        word for word in terminal.run_ok("job", "status", "encode").split() if word.startswith("encode/dispatch-")
    )

    assert (
        1,
        "wharf: encode runs no tasks itself; print the logs of a child, such as `wharf job logs encode/…`; "
        "`wharf job status encode` lists the children",
    ) == (result.code, result.err.strip())
    assert "runs no tasks itself" not in terminal.run("job", "logs", child).err


def test_a_parameterized_job_is_dispatched_with_meta(terminal: Terminal, tmp_path: Path) -> None:
    job = WEB.replace("ID: web", "ID: encode\nType: batch\nParameterizedJob: {MetaRequired: [name]}").replace(
        "    Update: {MinHealthyTime: 1s}\n", ""
    )

    submitted = terminal.run_ok("job", "run", write_file(tmp_path, job))
    invalid = terminal.run("job", "dispatch", "--meta", "name", "encode")
    dispatched = terminal.run_ok("job", "dispatch", "--meta", "name=a.mp4", "--follow", "encode")

    assert submitted.splitlines()[-1] == "The job runs when it is dispatched: wharf job dispatch encode"
    assert invalid.err == "wharf: --meta name: expected KEY=VALUE\n"
    assert dispatched.splitlines()[0].startswith("dispatched job encode/dispatch-")
    assert dispatched.splitlines()[-1].endswith("2 of 2 allocations complete")


@pytest.mark.parametrize(
    ("payload", "words", "error", "advice"),
    [
        ("required", ("--meta", "name=x"), "Payload is not provided but required by parameterized job",
         "use `wharf job dispatch --meta name=VALUE encode FILE`; FILE is the payload, and - is standard input; "
         "further keys of --meta may be size"),
        ("forbidden", ("--meta", "name=x", "job.yaml"), "Payload provided but forbidden by parameterized job",
         "use `wharf job dispatch --meta name=VALUE encode`; it takes no payload; further keys of --meta may be size"),
        ("optional", (), "Dispatch did not provide required meta keys: [name]",
         "use `wharf job dispatch --meta name=VALUE encode`; a file with a payload may follow; "
         "further keys of --meta may be size"),
        ("optional", ("--meta", "name=x", "--meta", "colour=red"),
         "Dispatch request included unpermitted metadata keys: [colour]",
         "use `wharf job dispatch --meta name=VALUE encode`; a file with a payload may follow; "
         "further keys of --meta may be size"),
        ("optional", ("--meta", "name=x", "--meta", "siz=2"),
         "Dispatch request included unpermitted metadata keys: [siz]",
         'did you mean "size" instead of "siz"? use `wharf job dispatch --meta name=VALUE encode`; '
         "a file with a payload may follow; further keys of --meta may be size"),
    ],
)  # fmt: skip
def test_a_wrong_dispatch_is_refused_with_the_right_command(
    terminal: Terminal, tmp_path: Path, payload: str, words: tuple[str, ...], error: str, advice: str
) -> None:
    template = f"ParameterizedJob: {{Payload: {payload}, MetaRequired: [name], MetaOptional: [size]}}"
    job = WEB.replace("ID: web", f"ID: encode\nType: batch\n{template}").replace(
        "    Update: {MinHealthyTime: 1s}\n", ""
    )
    file = write_file(tmp_path, job)
    terminal.run_ok("job", "run", file)
    options = [file if word == "job.yaml" else word for word in words]

    result = terminal.run("job", "dispatch", "encode", *sorted(options, key=lambda word: word != file))

    assert (1, f"wharf: {error}: {advice}\n") == (result.code, result.err)


@pytest.mark.parametrize(
    ("block", "words", "error"),
    [
        ("", ("job", "dispatch"), "job web cannot be dispatched: it has no parameterized block"),
        ('Periodic: {Specs: ["0 3 1 1 *"]}', ("job", "dispatch"),
         "job web cannot be dispatched: it has no parameterized block; `wharf job periodic force web` launches it"),
        ("ParameterizedJob: {}", ("job", "periodic", "force"),
         "job web cannot be launched: it has no periodic block; `wharf job dispatch web` runs it"),
        ("", ("job", "periodic", "force"), "job web cannot be launched: it has no periodic block"),
    ],
)  # fmt: skip
def test_a_job_that_cannot_be_dispatched_or_launched_is_named_with_the_other_way(
    terminal: Terminal, tmp_path: Path, block: str, words: tuple[str, ...], error: str
) -> None:
    job = WEB.replace("ID: web", f"ID: web\nType: batch\n{block}").replace("    Update: {MinHealthyTime: 1s}\n", "")
    terminal.run_ok("job", "run", "--detach", write_file(tmp_path, job))

    assert f"wharf: {error}\n" == terminal.run(*words, "web").err


def test_explain_shows_why_a_group_is_not_placed(terminal: Terminal, tmp_path: Path) -> None:
    terminal.run("job", "run", write_file(tmp_path, WEB.replace("CPU: 100", "CPU: 900000")))

    lines = terminal.run_ok("job", "explain", "web").splitlines()

    assert lines[0] == (
        "web waits for resources: api lacks 2 allocations: none of 2 nodes can run one (2 have too little cpu); "
        "for one more allocation: lower CPU of api/main from 900000 to 4000, or add a node with at least 900000 MHz of CPU"
    )
    assert any(line.strip().startswith("· too little cpu on 2 nodes, at least 896,000 MHz missing") for line in lines)


def test_explain_shows_the_reason_of_each_unplaced_group_once(terminal: Terminal, tmp_path: Path) -> None:
    more = "  - Name: more\n    Tasks:\n      - {Name: main, Driver: mock, Resources: {MemoryMB: 900000}}\n"
    terminal.run("job", "run", write_file(tmp_path, WEB.replace("CPU: 100", "CPU: 900000") + more))

    output = terminal.run_ok("job", "explain", "web")

    assert output.splitlines()[0] == "web waits for resources: its groups api and more lack 3 allocations"
    assert (output.count("lower CPU of api/main"), output.count("lower MemoryMB of more/main")) == (1, 1)


def test_fs_without_a_subcommand_lists_files(terminal: Terminal, tmp_path: Path) -> None:
    terminal.run("job", "run", write_file(tmp_path, WEB))
    (alloc_id, *_) = [allocation.id for allocation in terminal.connect(ClientSettings()).allocations.list().value]

    assert terminal.run("alloc", "fs", "ls", alloc_id) == terminal.run("alloc", "fs", alloc_id)
    assert "did you mean `wharf alloc fs stat`?" in terminal.run("alloc", "fs", "start", alloc_id).err


@pytest.mark.parametrize("words", [("logs",), ("fs",), ("exec",), ("status",)])
def test_a_job_name_instead_of_an_allocation_id_gets_a_hint(
    terminal: Terminal, tmp_path: Path, words: tuple[str, ...]
) -> None:
    terminal.run("job", "run", write_file(tmp_path, WEB))

    result = terminal.run("alloc", *words, "web", *(["ls"] if words == ("exec",) else []))

    assert result.code == 1
    assert "web is a job, not an allocation: `wharf job status web` lists its allocations" in result.err


def test_a_version_that_does_not_exist_is_refused_with_the_command_that_lists_versions(
    terminal: Terminal, tmp_path: Path
) -> None:
    terminal.run_ok("job", "run", write_file(tmp_path, WEB))

    results = [terminal.run("job", "revert", "web", version) for version in ("7", "0")]

    assert [result.err.endswith("; `wharf job history JOB` lists the versions\n") for result in results] == [True, True]


def test_a_line_break_at_the_end_of_a_text_is_escaped_in_a_plan(terminal: Terminal, tmp_path: Path) -> None:
    text = WEB.replace("Driver: mock", 'Driver: mock, Templates: [{DestPath: local/a, EmbeddedTmpl: "x\\n"}]')
    terminal.run_ok("job", "run", write_file(tmp_path, text))

    planned = terminal.run("job", "plan", write_file(tmp_path, text.replace('"x', '"y'), "b.yaml"))

    assert '"y\\n"' in planned.out
