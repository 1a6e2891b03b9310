"""Fixed seeds of the whole cluster (six, with those of `test_seeds_more`), and the output of the command.

`make simulate` runs hundreds of new seeds.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def simulate(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "simulation", *arguments]
    environment = {**os.environ, "PYTHONHASHSEED": "random"}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


def test_three_seeds_hold_every_invariant() -> None:
    process = simulate("--seeds", "3", "--first", "1")

    assert process.returncode == 0, process.stdout[-20_000:] + process.stderr[-5_000:]


def test_a_seed_is_the_same_run_in_every_process_and_is_long_enough() -> None:
    first, second = simulate("--seed", "3"), simulate("--seed", "3")

    assert first.stdout == second.stdout
    counts = re.search(r"seed 3: (\d+) events, (\d+) faults", first.stdout)
    assert counts is not None, first.stdout + first.stderr
    assert int(counts[1]) >= 2_000
    assert int(counts[2]) >= 10


def test_a_failure_prints_its_seed_timeline_and_the_command_to_repeat_it() -> None:
    process = simulate("--seeds", "20", "--first", "1", "--plant", "split-batch")

    assert process.returncode == 0
    seed = re.search(r"seed (\d+) FAILED", process.stdout)
    assert seed is not None, process.stdout
    assert f"python -m simulation --seed {seed[1]} --plant split-batch" in process.stdout
    assert re.search(r"^ +\d+\.\d{4}  \[\d+\] server-", process.stdout, re.MULTILINE)


def test_a_failure_happens_again_when_its_seed_is_run_again(tmp_path: Path) -> None:
    timeline_file = tmp_path / "story.txt"
    process = simulate("--seed", "1", "--plant", "split-batch", "--story", str(timeline_file))
    repeated = simulate("--seed", "1", "--plant", "split-batch")

    assert process.returncode == repeated.returncode == 1
    assert process.stdout == repeated.stdout
    assert "founded" in timeline_file.read_text("utf-8")
