"""Rules for the steps of a run and for needs between them: each problem has the path of its field."""

from typing import Any

import pytest

from tests.builders import a_batch_job, a_group, a_job, a_task, some_job_settings
from wharf.contract.model.decoding import convert_object
from wharf.contract.model.jobs.arrays import GroupArray
from wharf.contract.model.jobs.canonical_form import canonicalize_job
from wharf.contract.model.jobs.group_policies import DisconnectPolicy, ReschedulePolicy, RestartPolicy
from wharf.contract.model.jobs.groups import Task, TaskGroup
from wharf.contract.model.jobs.job import Job, Periodic
from wharf.contract.model.jobs.steps import Flow, Gate, Lock, Need, Outputs, StepRetry
from wharf.contract.model.jobs.validation import validate_job
from wharf.contract.model.times import SECOND

HOUR = 3_600 * SECOND
STEP = "TaskGroups[1]"


def list_problems(job: Job) -> list[tuple[str, str, str]]:
    findings = validate_job(canonicalize_job(job, some_job_settings()), some_job_settings())
    return [(problem.path, problem.message, problem.fix) for problem in findings.problems]


def with_step(size: int = 1, *tasks: Task, **fields: Any) -> Job:
    """Return a run with the steps `build`, which has `size` elements, and `ship`, which has these fields."""
    return a_batch_job("nightly", a_group("build", array=GroupArray(size=size)), a_group("ship", *tasks, **fields))


def needing(*needs: Need, size: int = 1, **fields: Any) -> Job:
    return with_step(size, depends=needs, **fields)


def test_a_run_with_all_fields_is_valid() -> None:
    job = a_batch_job(
        "nightly",
        a_group("build", outputs=Outputs(text=("version", "x1_Y"), keep=("data/", "./report.txt")), retry=StepRetry(attempts=100, on_exit=(1, 255))),
        a_group("test", array=GroupArray(size=3), depends=(Need(on="build"),), retry=StepRetry(attempts=2, not_on_exit=(2,))),
        a_group("check", array=GroupArray(size=3), depends=(Need(on="test", each=True),), may_fail=True),
        a_group("ship", depends=(Need(on="test", at_least=3), Need(on="check", when="ended", optional=True)),
            condition='steps.build.version != "" and meta.kind is not empty', gate=Gate(ask="Now?", policy="deployers", timeout=720 * HOUR),
            lock=Lock(key="production", slots=10_000, policy="replace-running")),
        a_group("clean", depends=(Need(on="ship"),), final=True),
        a_group("report", final=True),
        depends=(Need(on="import", when="any", optional=True),),
        meta={"kind": "full"},
        flow=Flow(deadline=8_760 * HOUR, final_timeout=24 * HOUR, overlap="queue"),
    )  # fmt: skip

    assert list_problems(job) == []


@pytest.mark.parametrize(
    ("job", "path", "message", "fix"),
    [
        (needing(Need(on="bild")), "Depends[0].On", 'The job has no group "bild"', 'did you mean "build"?'),
        (needing(Need(on="Z")), "Depends[0].On", 'The job has no group "Z"', "name a group of the same job"),
        (needing(Need()), "Depends[0].On", "The need names nothing", "set On"),
        (needing(Need(on="ship")), "Depends[0].On", 'The step "ship" needs itself', "name another step"),
        (needing(Need(on="build"), Need(on="build", when="any")), "Depends[1].On", '"build" is needed twice: need 2 repeats need 1', "remove one of them"),
        (needing(Need(on="build", when="failure")), "Depends[0].When", 'Unknown word "failure"', 'did you mean "failed"?'),
        (needing(Need(on="build", at_least=-1)), "Depends[0].AtLeast", "AtLeast must not be negative; got -1", ""),
        (needing(Need(on="build", at_least=4), size=3), "Depends[0].AtLeast", 'AtLeast is 4, and "build" has 3 elements', "use a number from 1 to 3"),
        (needing(Need(on="build", at_least=2)), "Depends[0].AtLeast", 'AtLeast is 2, and "build" has 1 element', "remove AtLeast"),
        (needing(Need(on="build", each=True), size=3), "Depends[0].Each", 'Each needs arrays of the same size: "ship" has 1 element, and "build" has 3', "make the arrays equally large, or remove Each"),
        (needing(Need(on="build", each=True, at_least=1)), "Depends[0].AtLeast", "AtLeast cannot be used with Each: each element then waits for one other element", "remove one of them"),
        (with_step(condition="steps.build.version ="), "If", "If is not a valid condition: \"=\" is where \"!=\", \"==\", \"contains\", \"in\", \"is\", \"matches\" or \"not\" is expected; write \"==\"", ""),
        (with_step(condition="meta.score > 3"), "If", "If is not a valid condition: \"> 3\" is where \"!=\", \"==\", \"contains\", \"in\", \"is\", \"matches\" or \"not\" is expected; there is no comparison by order", "let a program compare, and test its text: steps.GROUP.NAME == yes"),
        (with_step(condition="Status == x"), "If", "If is not a valid condition: \"Status == x\" begins with an unknown name; a condition reads meta.NAME and steps.GROUP.NAME", ""),
        (with_step(condition='outputs.build.x == "1"'), "If", "If is not a valid condition: \"outputs.build.x == \"…\" begins with an unknown name; a condition reads meta.NAME and steps.GROUP.NAME", ""),
        (with_step(condition=f'meta.a == "{"x" * 4_096}"'), "If", "The condition is 4108 bytes long; the limit is 4096 bytes", ""),
        (needing(Need(on="build"), final=True, gate=Gate()), "Gate", "Gate cannot be used with Final: the step must also run when the run was canceled", ""),
        (needing(Need(on="build", when="ended"), final=True), "Depends[0].When", "When cannot be used with Final: its needs hold however the needed steps ended", "remove When"),
        (needing(Need(on="build", optional=True), final=True), "Depends[0].Optional", "Optional cannot be used with Final: its needs hold however the needed steps ended", "remove Optional"),
        (with_step(gate=Gate(timeout=721 * HOUR)), "Gate.Timeout", "The duration must be between 0s and 720h; got 721h0m0s", ""),
        (with_step(gate=Gate(ask="é" * 513)), "Gate.Ask", "The text is 1026 bytes long; the limit is 1024 bytes", ""),
        (with_step(gate=Gate(policy="a\0")), "Gate.Policy", "The text contains a null character", ""),
        (with_step(lock=Lock()), "Lock.Key", "The lock has no key", "set Key"),
        (with_step(lock=Lock(key="k", slots=0)), "Lock.Slots", "Slots must be between 1 and 10000; got 0", ""),
        (with_step(lock=Lock(key="k", policy="replace")), "Lock.Policy", 'Unknown policy "replace"', 'use one of "queue", "replace-waiting", "replace-running"'),
        (with_step(outputs=Outputs(text=("a", "a-b"))), "Outputs.Text[1]", '"a-b" is not a name of an output', "use 1 to 128 letters, digits and _"),
        (with_step(outputs=Outputs(text=("a", "a"))), "Outputs.Text[1]", 'Text has "a" twice', "remove one"),
        (with_step(outputs=Outputs(text=tuple(f"a{n}" for n in range(101)))), "Outputs.Text", "Text has 101 names; a step has at most 100 text outputs", ""),
        (with_step(outputs=Outputs(keep=("data", "../x"))), "Outputs.Keep[1]", 'The path "../x" can be outside of the folder alloc/', "write a path below alloc/, such as data/, without a leading slash and without .."),
        (with_step(outputs=Outputs(keep=("/",))), "Outputs.Keep[0]", 'The path "/" names no file or folder', "write a path below alloc/, such as data/"),
        (with_step(outputs=Outputs(keep=tuple(f"a{n}" for n in range(101)))), "Outputs.Keep", "Keep has 101 paths; the limit is 100", ""),
        (with_step(retry=StepRetry(attempts=101)), "Retry.Attempts", "Attempts must be between 0 and 100; got 101", ""),
        (with_step(retry=StepRetry(on_exit=(1, 256))), "Retry.OnExit[1]", "256 is not an exit code of a failure: they are from 1 to 255", ""),
        (with_step(retry=StepRetry(not_on_exit=(0,))), "Retry.NotOnExit[0]", "0 is not an exit code of a failure: they are from 1 to 255", ""),
        (with_step(retry=StepRetry(on_exit=(1,) * 101)), "Retry.OnExit", "OnExit has 101 codes; the limit is 100", ""),
        (with_step(retry=StepRetry(on_exit=(1,), not_on_exit=(2,))), "Retry.NotOnExit", "OnExit and NotOnExit cannot be used together", "remove one of them"),
        (with_step(retry=StepRetry(), restart_policy=RestartPolicy(attempts=1, interval=HOUR, delay=SECOND, mode="fail")), "RestartPolicy", "RestartPolicy cannot be used with Retry", "remove it: Retry decides which failures are tried again"),
        (with_step(retry=StepRetry(), reschedule_policy=ReschedulePolicy(attempts=3, unlimited=False, interval=HOUR)), "ReschedulePolicy", "ReschedulePolicy cannot be used with Retry", "remove it: Retry decides which failures are tried again"),
        (with_step(1, a_task(restart_policy=RestartPolicy(attempts=1, interval=HOUR, delay=SECOND, mode="fail")), retry=StepRetry()), "Tasks[0].RestartPolicy", "RestartPolicy cannot be used with Retry of the group", "remove it: Retry decides which failures are tried again"),
        (needing(Need(on="build"), count=3), "Count", "Count must be 1 for a step of a run; got 3", "write an Array with the Size 3"),
        (needing(Need(on="build"), disconnect=DisconnectPolicy(lost_after=HOUR)), "Disconnect", "Disconnect cannot be used with Array, nor with a step of a run: an element begins again as soon as its node is lost", ""),
    ],
)  # fmt: skip
def test_rules_of_a_step(job: Job, path: str, message: str, fix: str) -> None:
    assert list_problems(job) == [(f"{STEP}.{path}", message, fix)]


@pytest.mark.parametrize(
    ("fields", "path", "message", "fix"),
    [
        ({"depends": (Need(on="nightly"),)}, "Depends[0].On", "The job needs itself", "name another job"),
        ({"depends": (Need(on="import", each=True),)}, "Depends[0].Each", "Each can only be used between steps of one job", "remove Each"),
        ({"depends": (Need(on="import", at_least=1),)}, "Depends[0].AtLeast", "AtLeast can only be used between steps of one job", "remove AtLeast"),
        ({"depends": (Need(on="import", when=""),)}, "Depends[0].When", 'Unknown word ""', 'use one of "succeeded", "failed", "ended", "any"'),
        ({"depends": tuple(Need(on=f"j{n}") for n in range(101))}, "Depends", "Depends has 101 needs; the limit is 100", ""),
        ({"flow": Flow(deadline=-1)}, "Flow.Deadline", "The duration must be between 0s and 8760h; got -1ns", ""),
        ({"flow": Flow(final_timeout=25 * HOUR)}, "Flow.FinalTimeout", "The duration must be between 0s and 24h; got 25h0m0s", ""),
        ({"flow": Flow(overlap="queues")}, "Flow.Overlap", 'Unknown rule "queues"', 'did you mean "queue"?'),
        ({"flow": Flow(overlap="queue"), "periodic": Periodic(specs=("@daily",), prohibit_overlap=True)}, "Flow.Overlap", 'Overlap "queue" contradicts Periodic.ProhibitOverlap, which skips runs', "remove ProhibitOverlap"),
        ({"flow": Flow(), "all_at_once": True}, "AllAtOnce", "AllAtOnce cannot be used with steps: each begins when its needs allow", ""),
    ],
)  # fmt: skip
def test_rules_of_a_run(fields: dict[str, Any], path: str, message: str, fix: str) -> None:
    assert list_problems(a_batch_job(**fields)) == [(path, message, fix)]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("Depends", {"depends": (Need(on="other"),)}),
        ("If", {"condition": "meta.a == b"}),
        ("MayFail", {"may_fail": True}),
        ("Final", {"final": True, "depends": (Need(on="other"),)}),
        ("Gate", {"gate": Gate()}),
        ("Lock", {"lock": Lock(key="k")}),
        ("Outputs", {"outputs": Outputs()}),
        ("Retry", {"retry": StepRetry()}),
    ],
)
@pytest.mark.parametrize("job_type", ["service", "system", "sysbatch"])
def test_steps_are_refused_in_jobs_that_are_no_batch_jobs(field: str, value: dict[str, Any], job_type: str) -> None:
    job = a_job("shop", a_group("web", **value), a_group("other"), type=job_type)

    assert (f"TaskGroups[0].{field}", f"{field} can only be used with batch jobs, not with {job_type} jobs", "") in (
        list_problems(job)
    )


@pytest.mark.parametrize(
    ("name", "fields"), [("Depends", {"depends": (Need(on="import"),)}), ("Flow", {"flow": Flow()})]
)
def test_needs_and_flows_of_other_jobs_than_batch_jobs_are_refused(name: str, fields: dict[str, Any]) -> None:
    assert list_problems(a_job(**fields)) == [
        (name, f"{name} can only be used with batch jobs, not with service jobs", "")
    ]


# -- circles


def list_chain(*names: str) -> tuple[TaskGroup, ...]:
    """Return steps of which each needs the next one, and the last one the first."""
    return tuple(
        a_group(name, depends=(Need(on=following),))
        for name, following in zip(names, [*names[1:], names[0]], strict=True)
    )


def test_a_circle_is_named() -> None:
    assert list_problems(a_batch_job("x", *list_chain("a", "b", "c"))) == [
        ("TaskGroups[2].Depends[0].On", "Steps wait for each other in a circle: a -> b -> c -> a", "remove one of these needs")
    ]  # fmt: skip


def test_a_circle_is_named_without_the_steps_that_only_lead_to_it() -> None:
    steps = (a_group("z", depends=(Need(on="a"),)), *list_chain("a", "b"), a_group("last"))

    assert list_problems(a_batch_job("x", *steps))[0][1] == "Steps wait for each other in a circle: a -> b -> a"


def test_a_long_circle_is_shortened() -> None:
    ((_, message, _),) = list_problems(a_batch_job("x", *list_chain(*(f"s{n}" for n in range(100)))))

    assert message.endswith("s0 -> s1 -> s2 -> s3 -> s4 -> 90 more -> s95 -> s96 -> s97 -> s98 -> s99 -> s0")


def test_steps_that_meet_again_are_no_circle() -> None:
    needs = (Need(on="left"), Need(on="right"))
    steps = (
        a_group("end", depends=needs),
        a_group("left", depends=(Need(on="start"),)),
        a_group("right", depends=(Need(on="start"),)),
        a_group("start"),
    )

    assert list_problems(a_batch_job("x", *steps)) == []


# -- limits


def test_a_run_has_at_most_500_steps() -> None:
    steps = [a_group(f"s{number}", may_fail=True) for number in range(501)]

    assert list_problems(a_batch_job("x", *steps[:500])) == []
    assert list_problems(a_batch_job("x", *steps)) == [
        ("TaskGroups", "The job has 501 steps; the limit is 500", "use an Array")
    ]


def test_a_run_has_at_most_50_arrays_besides_steps_of_one_element() -> None:
    arrays = [a_group(f"a{number}", array=GroupArray(size=2)) for number in range(50)]
    steps = [a_group(f"s{number}", may_fail=True) for number in range(100)]

    assert list_problems(a_batch_job("x", *arrays, *steps)) == []
    assert list_problems(
        a_batch_job("x", *arrays, *steps, a_group("one-more", array=GroupArray(items=("a", "b"))))
    ) == [("TaskGroups", "51 groups have an Array; a job has at most 50", "use one array with more elements")]


def test_a_step_has_at_most_100_needs_and_a_run_1000() -> None:
    steps = [a_group(f"s{number}") for number in range(101)]
    many = [a_group(f"m{number}", depends=tuple(Need(on=f"s{n}") for n in range(100))) for number in range(10)]

    assert list_problems(a_batch_job("x", *steps, *many)) == []
    assert [
        message
        for _, message, _ in list_problems(a_batch_job("x", *steps, *many, a_group("o", depends=(Need(on="s0"),))))
    ] == ["All steps have 1001 needs together; the limit is 1000"]
    too_many = tuple(Need(on=step.name) for step in steps)
    assert list_problems(a_batch_job("x", *steps, a_group("o", depends=too_many)))[0][:2] == (
        "TaskGroups[101].Depends",
        "Depends has 101 needs; the limit is 100",
    )


def test_all_conditions_of_a_run_are_limited_together() -> None:
    steps = [a_group(f"s{number}", condition=f'meta.a == "{"x" * 4_000}"') for number in range(17)]

    assert [message for _, message, _ in list_problems(a_batch_job("x", *steps))] == [
        "The conditions of all steps are 68204 bytes long together; the limit is 65536"
    ]


def test_a_step_with_retry_has_no_restarts_on_its_node_unless_it_asks_for_them() -> None:
    document = {
        "ID": "x", "Type": "batch",
        "TaskGroups": [{"Name": "g", "Retry": {"Attempts": 2}, "Tasks": [{"Name": "t", "Driver": "mock"}]}],
    }  # fmt: skip

    (group,) = canonicalize_job(convert_object(Job, document).value, some_job_settings()).groups

    policies = (group.restart_policy, *(task.restart_policy for task in group.tasks or ()))
    assert [policy.attempts for policy in policies if policy is not None] == [0, 0]
