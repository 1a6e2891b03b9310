"""Commands about jobs, as they are typed, against a server in memory."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.asking import WEB, Person, a_file, a_person
from wharf.contract.client import ClientSettings

ALIASES_OF_ALIASES = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{at}: &a{at} [{', '.join([f'*a{at - 1}'] * 10)}]\n" for at in range(1, 9)
)


@pytest.fixture
def person(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Person]:
    for name in ("WHARF_ADDR", "WHARF_NAMESPACE", "WHARF_TOKEN", "NOMAD_ADDR", "NOMAD_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    with a_person(capsys, nodes=2) as person:
        yield person


def test_a_job_that_is_followed_ends_with_its_rollout(person: Person, tmp_path: Path) -> None:
    ended = person.wharf("job", "run", "--follow", a_file(tmp_path, WEB))

    assert (ended.code, ended.lines[-1]) == (0, "✓ web: the rollout succeeded")
    assert "2 healthy" in ended.lines[-2]


def test_a_rollout_that_fails_is_exit_code_1(person: Person, tmp_path: Path) -> None:
    broken = WEB.replace("Driver: mock", "Driver: mock, Config: {start_error: no such image}").replace(
        "MinHealthyTime: 1s", "MinHealthyTime: 1s, HealthyDeadline: 5s, ProgressDeadline: 10s"
    )

    ended = person.wharf("job", "run", "--follow", a_file(tmp_path, broken))

    assert ended.code == 1
    assert ended.lines[-1].startswith("✗ web: the rollout failed: Failed due to")
    assert ended.lines[-2].startswith("  web.api[")
    assert ended.lines[-2].endswith(" and 1 more: main: no such image")


def test_batch_work_is_followed_until_it_is_done(person: Person, tmp_path: Path) -> None:
    work = WEB.replace("ID: web", "ID: sums\nType: batch").replace("    Update: {MinHealthyTime: 1s}\n", "")

    ended = person.wharf("job", "run", "--follow", a_file(tmp_path, work))

    assert (ended.code, ended.lines[-1]) == (0, "✓ sums: the work is done: 2 of 2 complete")


def failing(exit_codes: str) -> str:
    work = WEB.replace("ID: web", "ID: sums\nType: batch").replace("    Update: {MinHealthyTime: 1s}\n", "")
    policies = "    RestartPolicy: {Attempts: 0, Mode: fail}\n    ReschedulePolicy: {Attempts: 0, Unlimited: false}\n"
    return work.replace("    Tasks:", f"{policies}    Tasks:").replace(
        "Driver: mock", f"Driver: mock, Config: {{{exit_codes}}}"
    )


@pytest.mark.parametrize(
    ("ended_with", "code", "told"),
    [
        ("exit_code: 3", 3, "Exit Code: 3"),
        ("start_error: no such image", 1, "no such image"),
    ],
)
def test_batch_work_that_fails_gives_its_exit_code(
    person: Person, tmp_path: Path, ended_with: str, code: int, told: str
) -> None:
    ended = person.wharf("job", "run", "--follow", a_file(tmp_path, failing(ended_with)))

    assert (ended.code, ended.lines[-1]) == (code, "✗ sums: the work failed: 2 of 2 did not come to a good end")
    assert ended.lines[-2].endswith(f" and 1 more: main: {told}")


def test_batch_work_that_fails_with_different_codes_is_exit_code_1(person: Person, tmp_path: Path) -> None:
    second = "\n".join(failing("exit_code: 4").split("TaskGroups:\n")[1].splitlines()).replace(
        "Name: ", "Name: other-", 1
    )

    ended = person.wharf("job", "run", "--follow", a_file(tmp_path, failing("exit_code: 3") + "\n" + second + "\n"))

    assert (1, "✗ sums: the work failed: 4 of 4 did not come to a good end") == (ended.code, ended.lines[-1])


def test_what_is_not_placed_is_exit_code_2_with_the_reason(person: Person, tmp_path: Path) -> None:
    ended = person.wharf("job", "run", a_file(tmp_path, WEB.replace("CPU: 100", "CPU: 900000")))

    assert ended.code == 2
    assert ended.lines[-3:] == [
        "Not placed, until there is room:",
        "  api: 2 not placed",
        "    · too little cpu on 2 nodes",
    ]


def test_detached_it_returns_at_once(person: Person, tmp_path: Path) -> None:
    ended = person.wharf("job", "run", "-detach", a_file(tmp_path, WEB))

    assert (ended.code, len(ended.lines)) == (0, 2)
    assert ended.lines[1].startswith("evaluation ")


def test_what_is_wrong_with_a_job_is_told_by_line_and_column(person: Person, tmp_path: Path) -> None:
    file = a_file(tmp_path, WEB.replace("CPU: 100", "CPU: fast").replace("Count: 2", "Count: many"))

    ended = person.wharf("job", "run", file)

    assert (ended.code, ended.out) == (1, "")
    assert ended.err.splitlines() == [
        f"wharf: {file}:5:5: TaskGroups[0].Count: expected a whole number, got text",
        f"wharf: {file}:8:48: TaskGroups[0].Tasks[0].Resources.CPU: expected a whole number, got text",
    ]


@pytest.mark.parametrize("words", [("job", "validate"), ("job", "plan")])
def test_a_length_of_time_that_is_none_is_told_so(person: Person, tmp_path: Path, words: tuple[str, ...]) -> None:
    file = a_file(tmp_path, WEB.replace("Count: 2", "Count: 2\n    ShutdownDelay: 10 seconds"))

    ended = person.wharf(*words, file)

    said = "TaskGroups[0].ShutdownDelay: expected a length of time, as 30s or 1h30m, and there is another text"
    assert ended.err == f"wharf: {file}:6:5: {said}\n"


def test_a_length_of_time_without_a_unit_is_noted_where_it_is_next_to_nothing(person: Person, tmp_path: Path) -> None:
    text = WEB.replace("MinHealthyTime: 1s", "MinHealthyTime: 1000000000")
    scaled = text.replace("Count: 2", "Count: 2\n    ShutdownDelay: 10\n    Scaling: {Min: 1, Max: 5}")
    file = a_file(tmp_path, scaled)

    ended = person.wharf("job", "validate", file)

    said = "TaskGroups[0].ShutdownDelay: 10 without a unit is so many nanoseconds: write 10s for seconds"
    assert (ended.code, ended.err) == (0, f"note: {file}:6:5: {said}\n")


def test_a_field_that_nobody_knows_is_told_with_its_place_and_the_one_that_may_be_meant(
    person: Person, tmp_path: Path
) -> None:
    file = a_file(tmp_path, WEB.replace("Count: 2", "Cuont: 2"))

    ended = person.wharf("job", "run", file)

    told = f"note: {file}:5:5: TaskGroups[0].Cuont is not a known field: did you mean Count? It was ignored\n"
    assert (ended.code, ended.err) == (0, told)


@pytest.mark.parametrize("words", [("job", "validate"), ("job", "run"), ("job", "plan")])
def test_what_lacks_something_because_of_a_misspelled_field_is_told_of_that_field(
    person: Person, tmp_path: Path, words: tuple[str, ...]
) -> None:
    file = a_file(tmp_path, WEB.replace("TaskGroups", "TaskGroup"))

    ended = person.wharf(*words, file)

    assert ended.err.splitlines() == [
        f"note: {file}:3:1: TaskGroup is not a known field: did you mean TaskGroups? It was ignored",
        f"wharf: {file}:2:1: TaskGroups: Missing job task groups",
    ]


def test_a_job_that_is_as_it_was_is_told_so(person: Person, tmp_path: Path) -> None:
    file = a_file(tmp_path, WEB)
    first = person.does("job", "run", "--follow", file)
    again = person.does("job", "run", file)

    assert first.startswith("web is submitted, at index ")
    assert again.startswith("web is as it was\n")


@pytest.mark.parametrize("words", [("job", "validate"), ("job", "run"), ("job", "plan")])
def test_all_that_is_wrong_with_a_job_is_one_list(person: Person, tmp_path: Path, words: tuple[str, ...]) -> None:
    text = WEB.replace("ID: web", "ID: w eb").replace("Count: 2", "Count: -1").replace("CPU: 100", "CPU: -1")
    file = a_file(tmp_path, text + "  - {Name: api, Tasks: [{Name: a, Driver: mock}]}\n")

    ended = person.wharf(*words, file)

    assert ended.err.splitlines() == [
        f"wharf: {file}:2:1: ID: Job ID contains a space",
        f"wharf: {file}:5:5: TaskGroups[0].Count: Task group count can't be negative",
        f"wharf: {file}:8:48: TaskGroups[0].Tasks[0].Resources.CPU: minimum CPU value is 1; got -1",
        f"wharf: {file}:9:6: TaskGroups[1].Name: Job task group 2 redefines 'api' from group 1",
    ]


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("a.yaml", "ID: web\n  a: [\n", "{file}:2:4: mapping values are not allowed here"),
        ("a.json", '{"ID": "web",\n "Type": x}', "{file}:2:10: expecting value"),
        ("a.json", '{"ID": "web", "ID": "x"}', "{file}: ID stands twice in one object: keep one"),
        ("a.yaml", "- a", "{file}: expected a job, and there is a list"),
        ("a.yaml", "Type: batch", "{file}: the job has no ID: give it one, as ID: web"),
        (
            "a.yaml",
            "id: web",
            "{file}: the job has no ID, but id: names are those of the HTTP API, as ID, Type and TaskGroups",
        ),
        ("a.yaml", "ID: a\n\tType: batch", "{file}:2:1: a tab; YAML is indented by spaces alone"),
        ("a.yaml", "ID: a\nID: b", "{file}:2:1: ID stands twice in one object: keep one"),
        ("a.hcl", 'job "web" {}', "{file}: job files in HCL are not read yet"),
        ("a.yaml", "ID: a\n---\nID: b\n", "{file}: expected one job, and there are 2 documents"),
        ("a.yaml", "", "{file}: it is empty"),
        ("a.yaml", "ID: &a [*a]\n", "{file}: it is nested deeper than any job"),
        ("a.yaml", ALIASES_OF_ALIASES, "{file}: what its aliases stand for is more than any job is"),
    ],
)
def test_a_file_that_is_no_job_is_refused_before_anybody_is_asked(
    person: Person, tmp_path: Path, name: str, text: str, told: str
) -> None:
    file = a_file(tmp_path, text, name)

    ended = person.wharf("job", "run", file)

    assert (ended.code, person.asked) == (1, [])
    assert ended.err.startswith("wharf: " + told.format(file=file)), ended.err


def test_in_yaml_on_is_a_word(person: Person, tmp_path: Path) -> None:
    person.does("job", "run", a_file(tmp_path, WEB.replace("ID: web", "ID: web\nMeta: {on: yes}")))

    assert person.does("job", "inspect", "-t", "{{.Meta.on}}", "web") == "yes\n"


def test_a_plan_tells_by_its_exit_code_whether_anything_changes(person: Person, tmp_path: Path) -> None:
    file = a_file(tmp_path, WEB)
    new = person.wharf("job", "plan", file)
    person.does("job", "run", file)
    same = person.wharf("job", "plan", file)
    more = person.wharf("job", "plan", a_file(tmp_path, WEB.replace("Count: 2", "Count: 3"), "more.yaml"))
    broken = person.wharf("job", "plan", a_file(tmp_path, WEB.replace("Count: 2", "Count: x"), "broken.yaml"))
    unknown = person.wharf("job", "plan", "--nonsense")

    lower = person.wharf("job", "plan", a_file(tmp_path, WEB.replace("ID: web", "ID: web\nPriority: 60"), "lower.yaml"))

    assert [ended.code for ended in (new, same, more, lower, broken, unknown)] == [1, 0, 1, 0, 255, 255]
    assert '"2" → "3"' in more.out
    assert "  api: 1 to place, 2 to update in place" in more.out.splitlines()
    assert "wharf job run --check-index " in more.out


def test_a_plan_of_a_new_job_is_an_outline_and_verbose_all_of_it(person: Person, tmp_path: Path) -> None:
    file = a_file(tmp_path, WEB)

    short = person.wharf("job", "plan", file).out.splitlines()
    whole = person.wharf("job", "plan", "--verbose", file).out.splitlines()

    assert short[:3] == [
        "+ Job web, new: a service job",
        "  + Group api (2 create)",
        "    + Task main: mock, 100 MHz, 32 MB",
    ]
    assert '      + MinHealthyTime    "1s"' in whole
    assert '        + MemoryMB     "32"' in whole


def test_of_a_group_that_goes_only_that_is_told(person: Person, tmp_path: Path) -> None:
    more = WEB + "  - {Name: cache, Tasks: [{Name: main, Driver: mock}]}\n"
    person.does("job", "run", "--follow", a_file(tmp_path, more))

    shown = person.wharf("job", "plan", a_file(tmp_path, WEB)).out.splitlines()

    assert shown[:4] == ["± Job web", "    Group api (2 in-place update)", "  - Group cache (1 destroy)", ""]


def test_of_a_job_that_rolls_out_it_is_told_how_to_go_on_with_scaling(person: Person, tmp_path: Path) -> None:
    person.does("job", "run", a_file(tmp_path, WEB.replace("1s", "1m")))

    ended = person.wharf("job", "scale", "web", "3")

    assert ended.code == 1
    assert ended.err.startswith("wharf: job scaling blocked due to active deployment: `wharf deployment status web`")
    assert "`wharf deployment fail web`" in ended.err


def test_a_job_that_was_begun_with_the_example_runs(
    person: Person, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    said = person.does("job", "init")
    person.does("init", "--short", "short.yaml")
    again = person.wharf("job", "init")

    assert said == "example.yaml is written; `wharf job run example.yaml` submits it\n"
    assert (again.code, again.err) == (1, "wharf: example.yaml is there already: name another file\n")
    assert "#" not in (tmp_path / "short.yaml").read_text()
    person.does("run", "--follow", "example.yaml")
    assert person.does("job", "status", "-t", "{{range .}}{{.ID}}{{end}}") == "example\n"
    assert person.wharf("plan", "short.yaml").code == 0


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
def test_a_short_name_does_the_same_as_the_long_one(
    person: Person, tmp_path: Path, short: tuple[str, ...], long: tuple[str, ...]
) -> None:
    person.does("job", "run", "--follow", a_file(tmp_path, WEB))

    assert person.does(*short, "-t", "{{.}}") == person.does(*long, "-t", "{{.}}")


@pytest.mark.parametrize("words", [("alloc", "pause", "1a2b"), ("node", "config")])
def test_what_nodes_do_not_serve_yet_says_so(person: Person, words: tuple[str, ...]) -> None:
    ended = person.wharf(*words)

    assert (ended.code, person.asked) == (1, [])
    assert "nodes do not serve this yet" in ended.err


def test_the_next_five_launches_of_a_periodic_job_are_told(person: Person, tmp_path: Path) -> None:
    nightly = WEB.replace("ID: web", 'ID: nightly\nType: batch\nPeriodic: {Specs: ["0 3 * * *"]}').replace(
        "    Update: {MinHealthyTime: 1s}\n", ""
    )

    lines = person.does("job", "run", a_file(tmp_path, nightly)).splitlines()

    assert lines[1] == "Its next launches:"
    assert [line.split()[1] for line in lines[2:]] == ["03:00:00Z"] * 5


def test_a_periodic_job_is_shown_with_its_next_launch_and_its_newest_children(person: Person, tmp_path: Path) -> None:
    nightly = WEB.replace("ID: web", 'ID: nightly\nType: batch\nPeriodic: {Specs: ["0 3 * * *"]}').replace(
        "    Update: {MinHealthyTime: 1s}\n", ""
    )
    person.does("job", "run", a_file(tmp_path, nightly))
    person.does("job", "periodic", "force", "nightly")

    shown = person.does("job", "status", "nightly")
    person.does("job", "stop", "nightly")
    stopped = person.does("job", "status", "nightly")

    assert "0 3 * * *  UTC\nnext  " in shown
    assert "03:00:00Z" in shown
    assert "The newest of them\nID" in shown
    assert "\nnightly/periodic-" in shown
    assert "Groups" not in shown
    assert "nothing is launched: it is stopped" in stopped


def test_lists_and_records_are_shown_to_people_programs_and_templates(person: Person, tmp_path: Path) -> None:
    person.does("job", "run", a_file(tmp_path, WEB))

    table = person.does("job", "status").splitlines()
    as_json = json.loads(person.does("job", "status", "-json"))
    by_template = person.does("job", "status", "-t", "{{range .}}{{.ID}}:{{.Status}} {{end}}")
    wrong = person.wharf("job", "status", "-t", "{{range .}}{{.Statu}}{{end}}")

    assert table[0].split() == ["ID", "Type", "Priority", "Status", "Running", "Submitted"]
    assert table[1].split()[:4] == ["web", "service", "50", "running"]
    assert [job["ID"] for job in as_json] == ["web"]
    assert by_template == "web:running \n"
    assert (wrong.code, wrong.err) == (
        1,
        "wharf: the template, line 1, column 14: there is no field .Statu: did you mean .Status?\n",
    )


def test_a_list_that_is_empty_because_of_what_was_asked_says_so(person: Person, tmp_path: Path) -> None:
    person.does("job", "run", "--follow", a_file(tmp_path, WEB))
    nobody = ("--filter", 'ID == "nobody"')

    assert person.does("job", "status", *nobody) == "No jobs match.\n"
    assert person.does("node", "status", *nobody) == "No nodes match.\n"
    assert person.does("node", "status", "--node-pool", "gpu") == "No nodes match.\n"
    assert person.does("deployment", "list", *nobody) == "No deployments match.\n"
    assert person.does("eval", "list", "--job", "nobody") == "No evaluations match.\n"
    assert person.does("volume", "status", *nobody) == "No volumes match.\n"
    assert person.does("job", "status", "--namespace", "shop") == (
        "There are no jobs in namespace shop; `wharf namespace list` lists the namespaces.\n"
    )


def test_an_id_may_be_cut_short_unless_several_begin_so(person: Person, tmp_path: Path) -> None:
    for name in ("web-a", "web-b", "api"):
        person.does("job", "run", "--detach", a_file(tmp_path, WEB.replace("ID: web", f"ID: {name}")))

    assert "ID           api" in person.does("job", "status", "ap")
    several = person.wharf("job", "status", "web")

    assert several.code == 1
    assert several.err.splitlines()[0] == "wharf: web could be 2 jobs; give more of the id:"
    assert [line.split()[1] for line in several.err.splitlines()[1:]] == ["web-a", "web-b"]
    nobody = person.wharf("job", "status", "db")
    assert (nobody.code, nobody.err) == (1, "wharf: there is no job db; `wharf job status` lists all\n")


def test_a_job_is_scaled_reverted_stopped_and_started_again(person: Person, tmp_path: Path) -> None:
    person.does("job", "run", "--follow", a_file(tmp_path, WEB))

    assert person.does("job", "scale", "web", "3").splitlines()[0] == "api of web is to run 3 times"
    assert person.does("job", "inspect", "-t", "{{range .TaskGroups}}{{.Count}}{{end}}", "web") == "3\n"
    person.does("job", "revert", "web", "0")
    versions = person.does("job", "history", "-t", "{{range .}}{{.Version}} {{end}}", "web")
    person.does("job", "stop", "web")
    stopped = person.does("job", "inspect", "-t", "{{.Stop}}", "web")
    person.does("job", "start", "web")

    assert (versions, stopped) == ("2 1 0 \n", "true\n")
    assert person.does("job", "inspect", "-t", "{{.Stop}}", "web") == "false\n"
    assert person.wharf("job", "start", "web").err == ("wharf: web is not stopped; `wharf job status web` shows it\n")


def test_a_job_that_is_stopped_already_is_told_so(person: Person, tmp_path: Path) -> None:
    person.does("job", "run", a_file(tmp_path, WEB))
    person.does("job", "stop", "web")

    again = person.wharf("job", "stop", "web")
    purged = person.wharf("job", "stop", "--purge", "web")

    assert (again.code, again.out) == (0, "web is stopped already\n")
    assert (purged.code, purged.out) == (0, "web is purged\n")


def test_a_beginning_of_an_id_stops_nothing_without_yes(person: Person, tmp_path: Path) -> None:
    person.does("job", "run", a_file(tmp_path, WEB))

    ended = person.wharf("job", "stop", "we")

    assert (ended.code, ended.err) == (1, "wharf: we is the beginning of web: give the whole id, or --yes\n")
    assert person.does("job", "inspect", "-t", "{{.Stop}}", "web") == "false\n"
    person.does("job", "stop", "--yes", "we")


def test_several_jobs_are_stopped_together_or_none_of_them(person: Person, tmp_path: Path) -> None:
    for name in ("web", "shop"):
        person.does("job", "run", a_file(tmp_path, WEB.replace("ID: web", f"ID: {name}")))

    refused = person.wharf("job", "stop", "web", "nobody", "shop")
    still_there = [person.does("job", "inspect", "-t", "{{.Stop}}", name) for name in ("web", "shop")]
    told = person.does("job", "stop", "web", "shop")

    assert (1, ["false\n", "false\n"]) == (refused.code, still_there)
    assert ["web is being stopped", "shop is being stopped"] == told.splitlines()[:2]


def test_whoever_asks_for_the_logs_of_a_job_that_only_has_children_is_told_of_them(
    person: Person, tmp_path: Path
) -> None:
    encode = WEB.replace("ID: web", "ID: encode\nType: batch\nParameterizedJob: {}").replace(
        "    Update: {MinHealthyTime: 1s}\n", ""
    )
    person.does("job", "run", a_file(tmp_path, encode))
    person.does("job", "dispatch", "--follow", "encode")

    answer = person.wharf("job", "logs", "encode")
    child = next(one for one in person.does("job", "status", "encode").split() if one.startswith("encode/dispatch-"))

    assert (
        1,
        "wharf: encode runs nothing itself: its children print, as `wharf job logs encode/…`; "
        "`wharf job status encode` lists them",
    ) == (answer.code, answer.err.strip())
    assert "runs nothing itself" not in person.wharf("job", "logs", child).err


def test_a_template_of_a_job_is_dispatched_with_meta(person: Person, tmp_path: Path) -> None:
    job = WEB.replace("ID: web", "ID: encode\nType: batch\nParameterizedJob: {MetaRequired: [name]}").replace(
        "    Update: {MinHealthyTime: 1s}\n", ""
    )

    submitted = person.does("job", "run", a_file(tmp_path, job))
    wrong = person.wharf("job", "dispatch", "--meta", "name", "encode")
    dispatched = person.does("job", "dispatch", "--meta", "name=a.mp4", "--follow", "encode")

    assert submitted.splitlines()[-1] == "It runs when it is dispatched: wharf job dispatch encode"
    assert wrong.err == "wharf: --meta name: expected KEY=VALUE\n"
    assert dispatched.splitlines()[0].startswith("encode/dispatch-")
    assert dispatched.splitlines()[-1].endswith("the work is done: 2 of 2 complete")


def test_explaining_tells_where_work_is_and_why_the_rest_is_nowhere(person: Person, tmp_path: Path) -> None:
    person.wharf("job", "run", a_file(tmp_path, WEB.replace("CPU: 100", "CPU: 900000")))

    lines = person.does("job", "explain", "web").splitlines()

    assert lines[0] == (
        "web waits for resources: api lacks 2 allocations: none of 2 nodes can run one (2 have too little cpu); "
        "lower CPU of api/main from 900000 to 4000, or free 896000 MHz on any of 2 nodes"
    )
    assert any(line.strip().startswith("· too little cpu on 2 nodes, 896,000 MHz missing at least") for line in lines)


def test_of_several_groups_without_room_each_tells_its_own_reason_once(person: Person, tmp_path: Path) -> None:
    more = "  - Name: more\n    Tasks:\n      - {Name: main, Driver: mock, Resources: {MemoryMB: 900000}}\n"
    person.wharf("job", "run", a_file(tmp_path, WEB.replace("CPU: 100", "CPU: 900000") + more))

    told = person.does("job", "explain", "web")

    assert told.splitlines()[0] == "web waits for resources: its groups api and more lack 3 allocations"
    assert (told.count("lower CPU of api/main"), told.count("lower MemoryMB of more/main")) == (1, 1)


def test_the_files_of_an_allocation_are_listed_without_a_word_for_it(person: Person, tmp_path: Path) -> None:
    person.wharf("job", "run", a_file(tmp_path, WEB))
    (alloc_id, *_) = [one.id for one in person.connect(ClientSettings()).allocations.list().value]

    assert person.wharf("alloc", "fs", "ls", alloc_id) == person.wharf("alloc", "fs", alloc_id)
    assert "did you mean `wharf alloc fs stat`?" in person.wharf("alloc", "fs", "start", alloc_id).err


@pytest.mark.parametrize("words", [("logs",), ("fs",), ("exec",), ("status",)])
def test_whoever_names_a_job_where_an_allocation_is_meant_is_told_what_to_type(
    person: Person, tmp_path: Path, words: tuple[str, ...]
) -> None:
    person.wharf("job", "run", a_file(tmp_path, WEB))

    ended = person.wharf("alloc", *words, "web", *(["ls"] if words == ("exec",) else []))

    assert ended.code == 1
    assert "web is a job: `wharf job status web` lists its allocations" in ended.err
