"""Two fixed seeds of the whole cluster, and the output of the command. `make simulate` runs hundreds of new seeds."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def simulate(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "simulation", *arguments]
    environment = {**os.environ, "PYTHONHASHSEED": "random"}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def two_seeds() -> subprocess.CompletedProcess[str]:
    return simulate("--seeds", "2", "--first", "1")


@pytest.fixture(scope="module")
def planted_seeds() -> subprocess.CompletedProcess[str]:
    return simulate("--seeds", "20", "--first", "1", "--plant", "split-batch")


def test_two_seeds_hold_every_invariant(two_seeds: subprocess.CompletedProcess[str]) -> None:
    assert two_seeds.returncode == 0, two_seeds.stdout[-20_000:] + two_seeds.stderr[-5_000:]


def test_a_seed_is_the_same_run_in_every_process_and_is_long_enough(
    two_seeds: subprocess.CompletedProcess[str],
) -> None:
    alone = simulate("--seed", "1").stdout  # The shorter one.

    counts = re.match(r"seed 1: (\d+) events, (\d+) faults, no violations\nfingerprint .+\n\Z", alone)
    assert counts is not None, alone
    assert alone in two_seeds.stdout
    assert int(counts[1]) >= 2_000
    assert int(counts[2]) >= 10


def test_a_failure_prints_its_seed_timeline_and_the_command_to_repeat_it(
    planted_seeds: subprocess.CompletedProcess[str],
) -> None:
    assert planted_seeds.returncode == 0
    seed = re.search(r"seed (\d+) FAILED", planted_seeds.stdout)
    assert seed is not None, planted_seeds.stdout
    assert f"python -m simulation --seed {seed[1]} --plant split-batch" in planted_seeds.stdout
    assert re.search(r"^ +\d+\.\d{4}  \[\d+\] server-", planted_seeds.stdout, re.MULTILINE)


def test_a_failure_happens_again_when_its_seed_is_run_again(
    tmp_path: Path, planted_seeds: subprocess.CompletedProcess[str]
) -> None:
    timeline_file = tmp_path / "story.txt"

    repeated = simulate("--seed", "1", "--plant", "split-batch", "--story", str(timeline_file))

    assert repeated.returncode == 1
    assert "seed 1 FAILED" in repeated.stdout
    assert repeated.stdout in planted_seeds.stdout
    assert "founded" in timeline_file.read_text("utf-8")
