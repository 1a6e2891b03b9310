"""Sensitive fields of jobs: pointers to them, and differences that hide them (record 0249)."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.builders import a_group, a_job, a_task
from wharf.contract.model.jobs.constraints import Constraint
from wharf.contract.model.jobs.diff import annotate_job_diff, compare_jobs
from wharf.contract.model.jobs.job import Job
from wharf.contract.model.jobs.plan import FieldDiff, PlanAnnotations
from wharf.contract.model.jobs.sensitive_fields import (
    MAX_POINTER_CHARS,
    MAX_SENSITIVE_FIELDS,
    HiddenFields,
    list_masked_fields,
    parse_pointer,
    write_pointers,
)
from wharf.contract.model.jobs.templates import Template

HIDDEN = "(hidden)"


def list_fields(old: Job | None, new: Job | None, *pointers: str) -> list[tuple[str, str, str]]:
    """Return name, old and new text of all changed fields of a difference in which fields of the new job are hidden."""
    present = new or old
    assert present is not None
    found: list[tuple[str, str, str]] = []

    def collect(part: Any) -> None:
        if isinstance(part, FieldDiff):
            if part.type != "None":
                found.append((part.name, part.old, part.new))
        elif part is not None and not isinstance(part, str):
            for name in ("fields", "objects", "task_groups", "tasks"):
                for inner in getattr(part, name, None) or ():
                    collect(inner)

    collect(compare_jobs(old, new, hidden=HiddenFields().add_pointers(pointers, present)))
    return found


@given(st.lists(st.lists(st.text(max_size=5), max_size=4), max_size=5))
def test_a_pointer_leads_to_its_path(paths: list[list[str]]) -> None:
    assert {parse_pointer(pointer) for pointer in write_pointers(paths)} == {tuple(path) for path in paths}


def test_too_many_fields_are_replaced_by_the_objects_around_them() -> None:
    paths = [("TaskGroups", group, "Meta", f"k{n}") for group in (0, 1) for n in range(MAX_SENSITIVE_FIELDS)]

    assert write_pointers(paths) == ("/TaskGroups/0/Meta", "/TaskGroups/1/Meta")


def test_a_path_that_is_too_long_is_cut_at_a_field_around_it() -> None:
    assert write_pointers([("Meta", "x" * MAX_POINTER_CHARS)]) == ("/Meta",)


@pytest.mark.parametrize(
    ("old", "new", "pointer", "fields"),
    [
        ({"priority": 50}, {"priority": 70}, "/Priority", [("Priority", HIDDEN, HIDDEN)]),
        ({"meta": {"a": "1", "b": "1"}}, {"meta": {"a": "2", "b": "2"}}, "/Meta/a",
         [("Meta[a]", HIDDEN, HIDDEN), ("Meta[b]", "1", "2")]),
        ({"meta": {"a": "1"}}, {"meta": {"a": "2"}}, "/Meta", [("Meta[(hidden)]", HIDDEN, HIDDEN)]),
        ({"datacenters": ("a", "b")}, {"datacenters": ("a", "c")}, "/Datacenters/1",
         [("Datacenters", HIDDEN, ""), ("Datacenters", "", HIDDEN)]),
        ({}, {"constraints": (Constraint(l_target="x", operand="=", r_target="y"),)}, "/Constraints/3/RTarget",
         [("LTarget", "", "x"), ("Operand", "", "="), ("RTarget", "", HIDDEN)]),
        ({"meta": {"a": "1"}}, {"meta": {"a": "2"}}, "", [("Meta[(hidden)]", HIDDEN, HIDDEN)]),
        ({"meta": {"a": "1"}}, {"meta": {"a": "2"}}, "/Unknown/field", [("Meta[a]", "1", "2")]),
    ],
)  # fmt: skip
def test_a_difference_hides_the_texts_of_a_field(
    old: dict[str, Any], new: dict[str, Any], pointer: str, fields: list[tuple[str, str, str]]
) -> None:
    assert list_fields(a_job(**old), a_job(**new), pointer) == fields


@pytest.mark.parametrize(
    ("pointer", "fields"),
    [
        (
            "/TaskGroups/0/Tasks/0/Config/auth/0/password",
            [("auth[0][password]", "", HIDDEN), ("auth[0][user]", "", "u")],
        ),
        ("/TaskGroups/0/Tasks/0/Config/auth", [("auth[(hidden)]", "", HIDDEN), ("auth[(hidden)]", "", HIDDEN)]),
        ("/TaskGroups/0/Tasks/0/Config", [("(hidden)", "", HIDDEN), ("(hidden)", "", HIDDEN)]),
        ("/TaskGroups/0", [("(hidden)", "", HIDDEN), ("(hidden)", "", HIDDEN)]),
    ],
)
def test_a_difference_hides_parts_of_the_options_of_a_driver(pointer: str, fields: list[tuple[str, str, str]]) -> None:
    old = a_job("shop", a_group("web", a_task(config={})))
    new = a_job("shop", a_group("web", a_task(config={"auth": [{"user": "u", "password": "p"}]})))

    assert list_fields(old, new, pointer) == fields


def test_fields_of_groups_and_tasks_are_found_by_name() -> None:
    first, second = (a_group(name, a_task(env={"A": "1"})) for name in ("first", "second"))
    changed = a_group("second", a_task(env={"A": "2"}))

    assert list_fields(a_job("shop", second, first), a_job("shop", changed, first), "/TaskGroups/0/Tasks/0/Env/A") == [
        ("Env[A]", HIDDEN, HIDDEN)
    ]
    hidden = HiddenFields().add_pointers(["/TaskGroups/1/Tasks/0/Env/A"], a_job("shop", first, second))
    diff = compare_jobs(a_job("shop", second), a_job("shop", changed), hidden=hidden)
    assert diff.task_groups is not None
    assert HIDDEN in repr(diff.task_groups)


def test_a_removed_field_of_an_earlier_version_is_hidden() -> None:
    old = a_job(meta={"a": "secret"})
    hidden = HiddenFields().add_pointers(["/Meta/a"], old)

    assert "secret" not in repr(compare_jobs(old, a_job(), hidden=hidden))


def test_a_hidden_count_has_no_note_about_its_direction() -> None:
    old, new = a_job("shop", a_group(count=1)), a_job("shop", a_group(count=2))
    hidden = HiddenFields().add_pointers(["/TaskGroups/0/Count"], new)

    (group,) = annotate_job_diff(compare_jobs(old, new, hidden=hidden), PlanAnnotations()).task_groups or ()

    assert [(field.name, field.new, field.annotations) for field in group.fields or ()] == [("Count", HIDDEN, None)]


def test_the_mark_of_a_hidden_value_is_found_in_a_job() -> None:
    task = a_task(env={"A": "pg://(hidden)@h"}, templates=(Template(embedded_tmpl="(hidden)"),))

    assert list_masked_fields(a_job("shop", a_group("web", task))) == [
        "TaskGroups[0].Tasks[0].Env.A", "TaskGroups[0].Tasks[0].Templates[0].EmbeddedTmpl",
    ]  # fmt: skip


def test_a_longer_template_may_contain_the_text_of_the_mark() -> None:
    task = a_task(templates=(Template(embedded_tmpl="<b>(hidden)</b>"),))

    assert list_masked_fields(a_job("shop", a_group("web", task))) == []
