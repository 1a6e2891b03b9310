"""Mistakes that are tried in a process forked from collected tests: everything that holds a changed function runs it."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tools.findings import ROOT
from tools.mutants.collected_tests import CollectedTests, CollectionLost
from tools.mutants.forking_plugin import Reply, wait_for_group
from tools.mutants.mutations import Mutation

PARTS = """
import functools
from dataclasses import dataclass, field

import msgspec


def add(n):
    return n + 1  # imported by name


@functools.lru_cache
def add_cached(n):
    return n + 1  # cached


def decorate(function):
    @functools.wraps(function)
    def call(n):
        return function(n - 1 + 1)  # around a function

    return call


@decorate
def add_decorated(n):
    return n + 1  # decorated


def _handle(n):
    return n + 1  # in a table


HANDLERS = {"add": _handle}


def _make_default():
    return 0 + 1  # default factory


@dataclass(frozen=True, slots=True)
class Point:
    x: int
    y: int = field(default_factory=_make_default)

    def __post_init__(self):
        object.__setattr__(self, "x", self.x + 1)  # dataclass

    @property
    def next(self):
        return self.y + 1  # property


class Record(msgspec.Struct):
    x: int
    y: int = msgspec.field(default_factory=_make_default)

    def __post_init__(self):
        self.x = self.x + 1  # msgspec type

    @classmethod
    def build(cls, x):
        return cls(x + 1)  # class method


class Base:
    def __init__(self, n):
        self.n = n


class Derived(Base):
    def __init__(self, n):
        super().__init__(n + 1)  # inherited
        self.log()

    def log(self):
        super().__init__(3)  # uses super


def add_inside(n):
    def inner():
        return n + 1  # inner function

    return inner()


async def add_later(n):
    return n + 1  # coroutine


def count(n):
    yield n + 1  # generator


def wait(n):
    while n + 1 == 0:  # loop
        pass


def end_process(n):
    import os

    if n + 1 == 0:  # end of the process
        os._exit(7)


def remove(n):
    return n + 1  # deleted


del remove


def compute():
    return 1 + 1  # constant of the module


CONSTANT = compute()


def list_cases():
    return [1 + 1]  # cases of a test
"""
TESTS = """
import asyncio
import os
import subprocess
import sys

import pytest
from sample.parts import *
from sample.parts import add as renamed

PARENT = os.getpid()


def test_imported_by_name():
    assert renamed(1) == 2


def test_cached():
    assert add_cached(1) == 2


def test_decorated():
    assert add_decorated(1) == 2


def test_in_a_table():
    assert HANDLERS["add"](1) == 2


def test_default_factory():
    assert Record(1).y == Point(1).y == 1


def test_dataclass():
    assert Point(1).x == 2


def test_property():
    assert Point(1).next == 2


def test_msgspec_type():
    assert msgspec.json.decode(b'{"x": 1}', type=Record).x == 2


def test_class_method():
    assert Record.build(1).x == 3


def test_inherited():
    assert type("Quiet", (Derived,), {"log": lambda self: None})(1).n == 2


def test_uses_super():
    assert Derived(1).n == 3


def test_inner_function():
    assert add_inside(1) == 2


def test_coroutine():
    assert asyncio.run(add_later(1)) == 2


def test_generator():
    assert next(count(1)) == 2


def test_imported_later():
    from sample import late

    assert late.add(1) == 2


def test_child_process():
    command = [sys.executable, "-c", "from sample.parts import add; print(add(1))"]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "2\\n"


def test_loop():
    wait(1)


def test_end_of_the_process():
    end_process(1)


def test_constant_of_the_module():
    assert CONSTANT == 2


@pytest.mark.parametrize("case", list_cases())
def test_cases_of_a_test(case):
    assert case == 2


def test_unfit_for_a_fork():
    assert os.getpid() == PARENT


def test_temporary_folder(tmp_path, capfd):
    print("captured")
    assert capfd.readouterr().out == "captured\\n"
    (tmp_path / "file").write_text("")
"""
LATE = "def add(n):\n    return n + 1  # imported later\n"


def to_test(case: str) -> str:
    return f"tests/test_parts.py::test_{case.replace(' ', '_')}"


class Project:
    """A small project with one mistake at a time."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name, text in (
            ("src/sample/parts.py", PARTS),
            ("src/sample/late.py", LATE),
            ("tests/test_parts.py", TESTS),
        ):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text)
        (folder / "pytest.ini").write_text(
            "[pytest]\naddopts = -p no:cacheprovider -p no:schemathesis -p no:hypothesispytest -p no:xdist\n"
        )
        self.environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join((str(folder / "src"), str(ROOT))),
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        self.collected = CollectedTests(folder, ["tests"], self.environment)

    def run(self, case: str, test: str = "", *, seconds: float = 30.0, test_seconds: float = 30.0) -> tuple[Reply, str]:
        """Run a test, by default that of the case, while the line with the name of the case contains a mistake."""
        path = self.folder / "src" / "sample" / ("late.py" if case == "imported later" else "parts.py")
        source = path.read_text()
        number, line = next((n, text) for n, text in enumerate(source.splitlines(), 1) if text.endswith(f"# {case}"))
        changed = line.replace(" + 1", " - 1") if " + 1" in line else "        pass"
        path.write_text(source.replace(line, changed))
        try:
            mutation = Mutation(path.relative_to(self.folder).as_posix(), number, number, 0, 0, "", "")
            return self.collected.run({to_test(test or case): test_seconds}, seconds, mutation)
        finally:
            path.write_text(source)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    project = Project(tmp_path_factory.mktemp("project"))
    with project.collected:
        yield project


@pytest.mark.parametrize(
    "case",
    [
        "imported by name",
        "cached",
        "decorated",
        "in a table",
        "default factory",
        "dataclass",
        "property",
        "msgspec type",
        "class method",
        "inherited",
        "inner function",
        "coroutine",
        "generator",
        "imported later",
    ],
)
def test_a_mistake_is_noticed_whatever_holds_the_function(project: Project, case: str) -> None:
    reply, output = project.run(case)
    assert (reply.code, reply.obstacle, reply.last_test) == (1, "", to_test(case))
    assert f"FAILED {to_test(case)}" in output
    assert project.collected.is_sound(to_test(case), 30)


def test_a_mistake_is_noticed_by_a_process_that_a_test_starts(project: Project) -> None:
    reply, _ = project.run("imported by name", "child process")
    assert (reply.code, reply.obstacle) == (1, "")
    assert project.collected.is_sound(to_test("child process"), 30)


def test_a_mistake_is_gone_after_its_run(project: Project) -> None:
    project.run("cached")
    reply, _ = project.collected.run({to_test("cached"): 30}, 30)
    assert reply.code == 0


def test_tests_of_other_functions_pass(project: Project) -> None:
    reply, _ = project.run("cached", "dataclass")
    assert (reply.code, reply.obstacle) == (0, "")


@pytest.mark.parametrize(
    ("case", "obstacle"),
    [
        ("constant of the module", "already ran"),
        ("cases of a test", "already ran"),
        ("around a function", "already ran"),
        ("uses super", "outer names"),
        ("deleted", "not in memory"),
    ],
)
def test_a_mistake_without_its_full_effect_needs_a_new_process(project: Project, case: str, obstacle: str) -> None:
    reply, _ = project.run(case, "cached")
    assert obstacle in reply.obstacle
    assert reply.code is None


def test_tests_that_are_not_collected_need_a_new_process(project: Project) -> None:
    assert "collected" in project.collected.run({"tests/test_parts.py::test_gone": 30}, 30)[0].obstacle


def test_a_test_that_only_fails_in_forked_processes_is_not_sound(project: Project) -> None:
    assert not project.collected.is_sound(to_test("unfit for a fork"), 30)


def test_a_test_that_hangs_is_ended_at_the_limit(project: Project) -> None:
    reply, _ = project.run("loop", seconds=0.5)
    assert (reply.code, reply.has_hanging_test) == (None, False)
    assert project.collected.is_sound(to_test("loop"), 30)


def test_a_test_that_hangs_is_ended_at_its_own_limit(project: Project) -> None:
    reply, _ = project.run("loop", test_seconds=0.5)
    assert (reply.code, reply.has_hanging_test, reply.last_test) == (None, True, to_test("loop"))
    assert project.collected.is_sound(to_test("loop"), 30)


def test_processes_of_a_test_that_hangs_are_ended_also_in_other_sessions() -> None:
    script = "setsid sh -c 'echo started; exec sleep 600' & wait"
    leader = subprocess.Popen(["sh", "-c", script], stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert leader.stdout is not None
    with leader.stdout as output:
        assert output.readline() == "started\n"
        assert wait_for_group(leader.pid, 0.0) is None
        leader.wait()
        assert output.read() == ""  # The pipe ends because no process holds it any more.


def test_the_status_of_a_forked_process_that_ends_abruptly_is_returned(project: Project) -> None:
    assert project.run("end of the process")[0].code == 7


def test_the_other_runs_are_not_affected_by_a_process_that_ends_abruptly(project: Project) -> None:
    project.run("end of the process")
    assert project.collected.is_sound(to_test("temporary folder"), 30)


def test_tests_that_cannot_be_collected_are_reported(project: Project) -> None:
    with pytest.raises(CollectionLost, match=r"no-such-folder"):
        CollectedTests(project.folder, ["no-such-folder"], project.environment)
