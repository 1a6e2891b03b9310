"""Outputs of steps on a real node: programs write them, servers store them, and later steps receive them."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.node.nodes import NodeProcess, build_raw_job, run_node, run_server
from tests.waiting import wait_until


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    folder = tmp_path_factory.mktemp("steps")
    with run_server(folder / "server") as server, run_node(server, folder / "node") as node:
        yield node


def a_step(
    name: str, script: str, *needs: str | dict[str, Any], driver: str = "raw_exec", **fields: Any
) -> dict[str, Any]:
    (group,) = build_raw_job("x", script, Driver=driver)["TaskGroups"]
    depends = [{"On": need} for need in needs]
    del group["Count"]
    group.update({"Name": name, "Depends": depends, **fields})
    return dict(group)


def run(node: NodeProcess, id: str, *steps: dict[str, Any], **fields: Any) -> dict[str, dict[str, Any]]:
    """Run a job to its end and return its newest allocations by name, such as `build[0]`."""
    node.run({"ID": id, "Type": "batch", "TaskGroups": list(steps), **fields})
    wait_until(lambda: read_status(node, id) == "dead", what=f"the run {id} has ended", within_s=60)
    allocations = sorted(node.allocations(id), key=lambda each: each["CreateIndex"])
    return {each["Name"].removeprefix(f"{id}."): each for each in allocations}


def read_status(node: NodeProcess, id: str) -> str:
    job: Any = node.server.get(f"/v1/job/{id}")
    return str(job["Status"])


def read_outputs(node: NodeProcess, id: str) -> dict[str, dict[str, dict[str, str]]]:
    reply: Any = node.server.get(f"/v1/job/{id}/outputs")
    return {
        step["Group"]: {str(each["Index"]): each["Texts"] for each in step["Elements"]} for step in reply["Steps"] or ()
    }


def list_messages(allocation: dict[str, Any]) -> list[str]:
    return [event["Message"] for event in allocation["TaskStates"]["t"]["Events"] if "Outputs" in event["Message"]]


def test_a_later_step_receives_the_outputs_of_earlier_ones(node: NodeProcess) -> None:
    build = a_step(
        "build-all", 'echo "version=1.2" >> "$WHARF_OUTPUTS"; printf "notes<<END\\na\\nb\\nEND\\n" >> "$NOMAD_OUTPUTS"',
        Outputs={"Text": ["version", "notes", "unused"]},
    )  # fmt: skip
    script = 'echo "seen=$V|$1|$WHARF_STEP_BUILD_ALL_NOTES|$WHARF_STEP_BUILD_ALL_UNUSED|$(cat local/v)" | tr "\\n" , > "$WHARF_OUTPUTS"'
    ship = a_step("ship", script, "test", Outputs={"Text": ["seen"]})
    ship["Tasks"][0]["Env"] = {"V": "${steps.build-all.version}"}
    ship["Tasks"][0]["Config"]["args"] += ["sh", "<${steps.build-all.version}>"]
    ship["Tasks"][0]["Templates"] = [
        {"EmbeddedTmpl": '{{ env "WHARF_STEP_BUILD_ALL_VERSION" }}', "DestPath": "local/v"}
    ]

    run(node, "chain", build, a_step("test", "true", "build-all"), ship)

    assert read_outputs(node, "chain") == {
        "build-all": {"0": {"version": "1.2", "notes": "a\nb"}},
        "ship": {"0": {"seen": "1.2|<1.2>|a,b||1.2,"}},
    }


@pytest.mark.parametrize(
    ("script", "problem"),
    [
        ("echo nonsense > $WHARF_OUTPUTS", "line 1 is neither name=value nor name<<END"),
        ("ln -sf /etc/passwd $WHARF_OUTPUTS", "WHARF_OUTPUTS is a link"),
        ("rm $WHARF_OUTPUTS; mkfifo $WHARF_OUTPUTS", "WHARF_OUTPUTS is not a regular file"),
        ("rm $WHARF_OUTPUTS; mkdir $WHARF_OUTPUTS", "WHARF_OUTPUTS: Is a directory"),
        ("printf 'v=%070000d' 0 > $WHARF_OUTPUTS", "70,001 bytes together, and the limit is 65,536"),
    ],
)
def test_an_event_says_why_outputs_are_not_stored(node: NodeProcess, script: str, problem: str) -> None:
    allocations = run(node, "wrong", a_step("build", script, Outputs={"Text": ["v"]}))

    (message,) = list_messages(allocations["build[0]"])
    assert problem in message
    assert allocations["build[0]"]["ClientStatus"] == "complete"
    assert read_outputs(node, "wrong") == {"build": {"0": {}}}


def test_elements_of_an_array_pass_outputs_to_the_elements_that_need_them(node: NodeProcess) -> None:
    train = a_step(
        "train", 'echo "score=$((WHARF_ARRAY_INDEX * 10))" > $WHARF_OUTPUTS',
        Outputs={"Text": ["score"]}, Array={"Size": 3},
    )  # fmt: skip
    check = a_step(
        "check", "echo seen=${steps.train.score} > $WHARF_OUTPUTS", Outputs={"Text": ["seen"]}, Array={"Size": 3}
    )
    check["Depends"] = [{"On": "train", "Each": True}]

    run(node, "sweep", train, check)

    assert read_outputs(node, "sweep") == {
        "train": {"0": {"score": "0"}, "1": {"score": "10"}, "2": {"score": "20"}},
        "check": {"0": {"seen": "0"}, "1": {"seen": "10"}, "2": {"seen": "20"}},
    }


def test_a_condition_decides_by_an_output(node: NodeProcess) -> None:
    build = a_step("build", "echo changed=no > $WHARF_OUTPUTS", Outputs={"Text": ["changed"]})
    yes = a_step("yes", "true", "build", If="steps.build.changed == yes")
    no = a_step("no", "true", "build", If="steps.build.changed == no and meta.env == prod")

    allocations = run(node, "choice", build, yes, no, Meta={"env": "prod"})

    assert [*allocations] == ["build[0]", "no[0]"]


def test_an_agent_that_was_killed_reports_the_outputs_after_its_restart(node: NodeProcess) -> None:
    build = a_step("build", "echo v=1 > $WHARF_OUTPUTS; sleep 3", Outputs={"Text": ["v"]})
    node.run({"ID": "killed", "Type": "batch", "TaskGroups": [build]})
    wait_until(
        lambda: [each["ClientStatus"] for each in node.allocations("killed")] == ["running"],
        what="the step runs",
    )

    node.kill_agent()

    wait_until(lambda: read_status(node, "killed") == "dead", what="the run has ended", within_s=60)
    assert read_outputs(node, "killed") == {"build": {"0": {"v": "1"}}}


def test_exit_codes_decide_about_retries_and_no_task_is_restarted_on_the_node(node: NodeProcess) -> None:
    again = a_step("again", "exit 75", Retry={"Attempts": 1, "OnExit": [75]})
    never = a_step("never", "exit 2", Retry={"Attempts": 5, "OnExit": [75]})
    for step in (again, never):
        del step["RestartPolicy"], step["ReschedulePolicy"]

    allocations = run(node, "codes", again, never)

    assert [each["Name"] for each in node.allocations("codes")].count("codes.again[0]") == 2
    assert allocations["again[0]"]["DesiredDescription"] == "not retried: all retries are used up: 1 of 1"
    assert allocations["never[0]"]["DesiredDescription"] == "not retried: exit code 2 is not in OnExit (75)"
    events = allocations["again[0]"]["RescheduleTracker"]["Events"]
    assert [(each["Cause"], each["Detail"]) for each in events] == [("program", "t: Exit Code: 75")]
    assert {each["TaskStates"]["t"]["Restarts"] for each in allocations.values()} == {0}


def test_a_task_that_cannot_start_uses_up_no_attempt(node: NodeProcess) -> None:
    step = a_step("train", "true", Retry={"Attempts": 0})
    del step["RestartPolicy"], step["ReschedulePolicy"]
    step["Tasks"][0]["Config"]["command"] = "/bin/does-not-exist"
    node.run({"ID": "driver", "Type": "batch", "TaskGroups": [step]})

    wait_until(lambda: len(node.allocations("driver")) >= 2, what="the step runs again", within_s=60)

    newest = max(node.allocations("driver"), key=lambda each: each["CreateIndex"])
    assert newest["RescheduleTracker"]["Events"][0]["Cause"] == "driver"


@pytest.mark.needs("namespaces")
def test_a_program_in_a_sandbox_writes_and_receives_outputs(node: NodeProcess) -> None:
    build = a_step(
        "build", 'echo "where=$WHARF_OUTPUTS" > "$WHARF_OUTPUTS"', driver="exec", Outputs={"Text": ["where"]}
    )
    ship = a_step(
        "ship",
        'echo "seen=$WHARF_STEP_BUILD_WHERE" > "$WHARF_OUTPUTS"',
        "build",
        driver="exec",
        Outputs={"Text": ["seen"]},
    )

    run(node, "sandbox", build, ship)

    path = "/alloc/.wharf_outputs"
    assert read_outputs(node, "sandbox") == {"build": {"0": {"where": path}}, "ship": {"0": {"seen": path}}}
