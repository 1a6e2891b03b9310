"""Rules for outputs of steps: names, conditions and references that cannot work are refused with their path."""

import random
from typing import Any

import pytest

from tests.attempts import limited_cpu
from tests.builders import a_batch_job, a_group, a_task
from tests.kit.state import SETTINGS
from wharf.contract.model.jobs.arrays import GroupArray
from wharf.contract.model.jobs.groups import TaskGroup
from wharf.contract.model.jobs.job import Job
from wharf.contract.model.jobs.step_outputs import NeededSteps, list_needed_steps
from wharf.contract.model.jobs.steps import Need, Outputs
from wharf.contract.model.jobs.templates import Template
from wharf.contract.model.jobs.validation.findings import ValidationReport
from wharf.contract.model.jobs.validation.job import validate_job
from wharf.contract.model.jobs.validation.step_outputs import check_step_outputs


def a_step(name: str, *needs: str | Need, text: tuple[str, ...] | None = None, **fields: Any) -> TaskGroup:
    depends = tuple(need if isinstance(need, Need) else Need(on=need) for need in needs)
    return a_group(
        name,
        a_task(**fields.pop("task", {})),
        depends=depends or None,
        outputs=Outputs(text=text) if text is not None else None,
        **fields,
    )


def find_problems(*steps: TaskGroup, **fields: Any) -> list[tuple[str, str]]:
    report = ValidationReport()
    check_step_outputs(a_batch_job("shop", *steps, **fields), report)
    return [(problem.path, problem.message) for problem in report.build_findings().problems]


BUILD = a_step("build", text=("version",))


def test_outputs_that_later_steps_use_are_valid() -> None:
    task = {
        "env": {"V": "${steps.build.version}", "W": "$${steps.x.y} ${meta.rack}"},
        "config": {"args": ["a", "-v=${ steps.build.version }"]},
        "templates": (Template(embedded_tmpl="${steps.shell.variable}", dest_path="local/x"),),
    }
    ship = a_step("ship", "test", task=task, condition="steps.build.version == 1 and meta.env == prod")

    assert find_problems(BUILD, a_step("test", "build"), ship, meta={"env": "prod"}) == []


@pytest.mark.parametrize(
    ("task", "path", "problem"),
    [
        ({"env": {"V": "${steps.build.verzion}"}}, "Env.V", 'Outputs.Text of the step "build" does not name "verzion"; did you mean "version"?'),
        ({"config": {"args": ["x", "${steps.bild.version}"]}}, "Config.args[1]", 'no step has the name "bild"; did you mean "build"?'),
        ({"env": {"V": "${steps.other.version}"}}, "Env.V", 'the step does not need "other": add it to Depends'),
        ({"env": {"V": "${steps.train.score}"}}, "Env.V", '"train" is an array, whose elements have outputs of their own: only a step with a need with Each can use them'),
    ],
)  # fmt: skip
def test_a_reference_that_cannot_be_replaced_is_refused(task: dict[str, Any], path: str, problem: str) -> None:
    steps = (
        BUILD,
        a_step("other", text=("version",)),
        a_step("train", text=("score",), array=GroupArray(size=2)),
        a_step("ship", "build", "train", task=task),
    )

    ((found_path, message),) = find_problems(*steps)

    assert found_path == f"TaskGroups[3].Tasks[0].{path}"
    assert message.endswith(f"cannot be replaced: {problem}")


def test_a_reference_without_the_name_of_an_output_is_refused() -> None:
    ((_, message),) = find_problems(BUILD, a_step("ship", "build", task={"env": {"V": "${steps.build}"}}))

    assert message == "${steps.build} names no output: write ${steps.GROUP.NAME}"


def test_elements_may_refer_to_the_elements_that_they_need() -> None:
    array = GroupArray(size=2)
    train = a_step("train", text=("score",), array=array)
    task = {"env": {"V": "${steps.train.score}"}}

    assert find_problems(train, a_step("check", Need(on="train", each=True), array=array, task=task)) == []


def test_a_final_step_without_needs_may_refer_to_all_steps() -> None:
    task = {"env": {"V": "${steps.build.version}"}}

    assert find_problems(BUILD, a_step("tidy", final=True, task=task)) == []


@pytest.mark.parametrize(
    ("condition", "problem"),
    [
        ("meta.envv == prod", 'If cannot be evaluated: the job has no metadata "envv"; did you mean "env"?'),
        ("steps.build.sha == x", 'If cannot be evaluated: Outputs.Text of the step "build" does not name "sha"'),
        ("meta.env ==", "If is not a valid condition: it ends where a number, a text in quotes or a word is expected"),
    ],
)
def test_a_condition_that_cannot_be_evaluated_is_refused(condition: str, problem: str) -> None:
    ((path, message),) = find_problems(BUILD, a_step("ship", "build", condition=condition), meta={"env": "prod"})

    assert path == "TaskGroups[1].If"
    assert message.startswith(problem)


@pytest.mark.parametrize(
    ("text", "fields", "path", "problem"),
    [
        (("my-name",), {}, "Text[0]", '"my-name" is not a name of an output'),
        (("a", "a"), {}, "Text[1]", 'Text has "a" twice'),
        (tuple(f"n{number}" for number in range(101)), {}, "Text", "Text has 101 names; a step has at most 100 text outputs"),
        (("a",), {"array": GroupArray(size=1_001)}, "Text", "An array with Outputs.Text has at most 1,000 elements; this one has 1,001"),
    ],
)  # fmt: skip
def test_names_of_outputs_are_checked(text: tuple[str, ...], fields: dict[str, Any], path: str, problem: str) -> None:
    assert find_problems(a_step("build", text=text, **fields)) == [(f"TaskGroups[0].Outputs.{path}", problem)]


@pytest.mark.parametrize(
    ("steps", "path", "problem"),
    [
        ((("a-b", "v"), ("a_b", "v")), "TaskGroups[1].Outputs.Text[0]", '"a_b.v" and "a-b.v" would share the variable WHARF_STEP_A_B_V'),
        ((("a", "b_c"), ("a.b", "c")), "TaskGroups[1].Outputs.Text[0]", '"a.b.c" and "a.b_c" would share the variable WHARF_STEP_A_B_C'),
        ((("a", "v", "V"),), "TaskGroups[0].Outputs.Text[1]", '"a.V" and "a.v" would share the variable WHARF_STEP_A_V'),
    ],
)  # fmt: skip
def test_texts_that_would_share_a_variable_are_refused(
    steps: tuple[tuple[str, ...], ...], path: str, problem: str
) -> None:
    assert find_problems(*(a_step(name, text=tuple(text)) for name, *text in steps)) == [(path, problem)]


def test_the_variables_of_many_texts_are_compared_quickly() -> None:
    steps = [a_step(f"s{number}", text=tuple(f"n{text}" for text in range(100))) for number in range(500)]

    with limited_cpu(2.0, "the comparison"):
        problems = find_problems(*steps)

    assert problems == []


def test_the_rules_apply_to_submitted_jobs() -> None:
    job = Job(id="shop", type="batch", task_groups=(a_step("build", text=("my-name",)),))

    assert any("is not a name of an output" in str(each) for each in validate_job(job, SETTINGS).problems)


def test_many_references_of_many_steps_are_checked_quickly() -> None:
    names = [f"s{number}" for number in range(500)]
    steps = [
        a_step(
            name,
            *names[max(0, position - 2) : position],
            text=("v",),
            condition=f"steps.{names[0]}.v is empty" if position else "",
            task={"env": {f"V{number}": f"${{steps.{names[0]}.v}}" * 20 for number in range(20)}} if position else {},
        )
        for position, name in enumerate(names)
    ]

    with limited_cpu(5.0, "the check"):
        problems = find_problems(*steps)

    assert problems == []


def test_the_steps_that_500_steps_need_are_found_quickly_in_whatever_order_the_file_has_them() -> None:
    finals = [a_step(f"f{number}", final=True) for number in range(250)]
    chain = [a_step(f"s{at}", *([f"s{at - 1}"] if at else []), text=("v",)) for at in range(250)]

    with limited_cpu(0.1, "the search"):  # About 0.03 s.
        needed = NeededSteps(a_batch_job("shop", *finals, *chain[::-1]))

    assert needed.has("s249", "s0")
    assert needed.has("f0", "s249")
    assert not needed.has("s0", "s249")


@pytest.mark.parametrize("seed", range(20))
def test_the_steps_that_a_step_needs_are_those_that_its_needs_reach(seed: int) -> None:
    chance = random.Random(seed)
    names = [f"s{number}" for number in range(8)]
    job = a_batch_job("shop", *(a_step(name, *chance.sample(names, chance.randint(0, 2))) for name in names))
    needed = NeededSteps(job)

    for group in job.groups:
        reached = set(list_needed_steps(job, group))
        assert {name for name in names if needed.has(group.name, name)} == reached
