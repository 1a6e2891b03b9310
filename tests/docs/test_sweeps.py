"""The commands and examples of docs/sweeps.md and docs/from-slurm.md, against one agent, and the tables of the latter."""

import re
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from tests.agent.processes import RunningAgent, running
from tests.docs.walking import PAGES, CommandStep, Walk, read_steps, wait_for_nodes
from tests.waiting import wait_until
from wharf.cli.slurm.rows import COMPACT_STATES
from wharf.cli.slurm.sbatch_options import LOCAL, REFUSED, SBATCH_OPTIONS, TRANSLATED, WITHOUT_EFFECT
from wharf.cli.slurm.translation import VARIABLES

SWEEPS, SLURM = PAGES / "docs/sweeps.md", PAGES / "docs/from-slurm.md"
ROW = re.compile(r"^\| (?:`-\w`, )?`--([\w-]+)` \| (.*) \|$", re.MULTILINE)


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningAgent]:
    with running(tmp_path_factory.mktemp("sweeps") / "walk", "dev", "--port", "0") as agent:
        wait_for_nodes(agent)
        yield agent


def stop_all_jobs(agent: RunningAgent) -> None:
    """Stop all jobs, and wait until the node is free."""
    jobs: Any = agent.get("/v1/jobs")
    for job in jobs:
        request = urllib.request.Request(f"{agent.address}/v1/job/{job['ID']}", method="DELETE")
        with urllib.request.urlopen(request):
            pass

    def is_free() -> bool:
        allocations: Any = agent.get("/v1/allocations")
        return all(each["ClientStatus"] not in ("pending", "running") for each in allocations)

    wait_until(is_free, what="the work of all jobs has ended")


@pytest.mark.parametrize(("page", "least"), [(SWEEPS, 8), (SLURM, 6)], ids=["sweeps", "from-slurm"])
def test_the_commands_of_the_page_print_what_the_page_shows(agent: RunningAgent, page: object, least: int) -> None:
    stop_all_jobs(agent)  # Work of the other page may still hold cores, for which that of this page would wait.
    walk = Walk(agent, nodes="vm")
    steps = list(read_steps(page))  # type: ignore[arg-type]  # A path.
    for step in steps:
        walk.run_step(step)

    assert sum(isinstance(step, CommandStep) for step in steps) >= least


def test_every_example_in_python_runs(agent: RunningAgent, monkeypatch: pytest.MonkeyPatch) -> None:
    examples = re.findall(r"```python\n(.*?)```", SWEEPS.read_text(), re.DOTALL)
    monkeypatch.setenv("WHARF_ADDR", agent.address)
    namespace: dict[str, object] = {"__name__": "the page"}
    for example in examples:
        exec(compile(example, str(SWEEPS), "exec"), namespace)

    assert len(examples) == 3


def test_the_tables_of_options_are_those_of_the_command() -> None:
    rows = {name: text.replace("\\|", "|") for name, text in ROW.findall(SLURM.read_text())}

    expected = {option.name: option.help for option in (*TRANSLATED, *LOCAL)} | WITHOUT_EFFECT | REFUSED
    assert rows == expected
    assert set(rows) == {option.name for option in SBATCH_OPTIONS}


def test_the_page_lists_all_variables_and_states() -> None:
    text = SLURM.read_text()

    assert [name for name in VARIABLES if f"`{name}`" not in text] == []
    assert [state for state, short in COMPACT_STATES.items() if f"| `{state}` ({short}) |" not in text] == []
