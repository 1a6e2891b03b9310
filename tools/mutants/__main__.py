"""Plants random single mistakes in the deciding packages, one at a time, and runs the tests that reach the changed line.

python -m tools.mutants                        300 mistakes with a new seed
python -m tools.mutants --count 50 --seed 7    50 of seed 7
python -m tools.mutants --package limits       only one package
python -m tools.mutants --compare              try each mistake in a forked and in a new process, and print differences

A mistake that no test notices is printed, and written to build/mutants/report.json. It needs a test, or a sentence why
it changes nothing. The first run records which test reaches which line, in build/mutants/coverage; delete that folder
after larger changes.

The tests of a package are collected once, and a forked process tries each mistake. If a mistake would not have its full
effect there, pytest is started for it.
"""

import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

from coverage import CoverageData

from tools.findings import ROOT
from tools.mutants.collected_tests import CollectedTests, CollectionLost, get_test_environment
from tools.mutants.mutations import Mutation, find_function_lines, list_mutations

WORK_FOLDER = ROOT / "build" / "mutants"
COVERAGE_FOLDER = WORK_FOLDER / "coverage"
# The packages that decide, each with the tests that must hold it.
PACKAGES: Mapping[str, tuple[str, ...]] = {
    "cluster/scheduling": (
        "tests/cluster/scheduling",
        # Capacity reports and proposed moves are tested through the operation and the controller that use them.
        "tests/cluster/operations/test_job_explanations.py",
        "tests/cluster/controllers/test_rebalancing.py",
    ),
    "cluster/operations": ("tests/cluster/operations", "tests/cluster/controllers", "tests/cluster/api"),
    "cluster/controllers": ("tests/cluster/controllers", "tests/cluster/operations"),
    "cluster/state": ("tests/cluster/state", "tests/cluster/operations"),
    "cluster/engines": ("tests/cluster/engines",),
    "limits": ("tests/limits",),
    "node/core": ("tests/node/core",),
}
DEFAULT_COUNT = 300
DEFAULT_SECONDS = 120.0  # Per mistake. If the tests need more, those that are left don't run, and the report says so.
# Tests that take this much longer than before hang: for a loop without end, that is how a test notices. It holds for each
# test in a forked process, and for all tests together.
HANG_FACTOR = 5.0
HANG_SECONDS = 15.0  # Added to it: the start of pytest, or of a service that tests share, on a busy machine.
COVERAGE_SECONDS = 3_600.0  # For the recording of one package: tracing makes tests about three times slower.
NO_TESTS_COLLECTED = 5  # pytest's exit status.
COPIED_FOLDERS = ("src", "tests", "tools", "simulation", "benchmarks", "docs", "examples")


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the tests said about one mistake."""

    mutation: Mutation
    outcome: str  # "caught", "survived", "not reached" or "out of time" (no test failed until then).
    tests: int  # How many tests reach the line.
    seconds: float
    detail: str = ""  # Of a caught mistake: the test that noticed it.
    way: str = "forked"  # Or why pytest was started for it.

    @property
    def is_caught(self) -> bool:
        return self.outcome == "caught"


@dataclass(frozen=True, slots=True)
class ChosenTests:
    """Tests in the order in which they run, each with the seconds that it took when coverage was recorded."""

    durations: Mapping[str, float]

    def compute_hang_seconds(self) -> float:
        """Return the seconds after which the tests together hang."""
        return HANG_SECONDS + HANG_FACTOR * sum(self.durations.values())

    def compute_test_seconds(self) -> dict[str, float]:
        """Return the seconds after which each test hangs."""
        return {i: HANG_SECONDS + HANG_FACTOR * seconds for i, seconds in self.durations.items()}


class Reach:
    """Which tests of a package reach which lines, and how long they take."""

    def __init__(self, package: str) -> None:
        path = get_coverage_path(package)
        self._data = CoverageData(str(path))
        self._data.read()
        self._durations: Mapping[str, float] = json.loads(path.with_suffix(".json").read_text())
        # The data names the files of the copy in which the tests ran.
        self._by_file: dict[str, Mapping[int, Sequence[str]]] = {}
        self._files = {name[name.index("src/wharf/") :]: name for name in self._data.measured_files()}

    def select_tests(self, mutation: Mutation) -> ChosenTests:
        """Return the tests that reach the line, the fastest first. Every test reaches a line that runs on import.

        If none is recorded, return the tests that reach its function: Python 3.11 does not trace the rest of a coroutine
        after a timeout or cancellation.
        """
        by_line = self._read_lines(mutation.path)
        contexts = {name for line in range(mutation.line, mutation.end_line + 1) for name in by_line.get(line, ())}
        if not contexts:
            lines = find_function_lines((ROOT / mutation.path).read_text(), mutation.line)
            contexts = {name for line in lines for name in by_line.get(line, ())}
        durations = {i: self._durations[i] for i in contexts if i in self._durations}
        if contexts == {""}:
            durations = {**self._durations}
        return ChosenTests(dict(sorted(durations.items(), key=lambda item: (item[1], item[0]))))

    def _read_lines(self, path: str) -> Mapping[int, Sequence[str]]:
        if path not in self._by_file:
            file = self._files.get(path)
            self._by_file[path] = self._data.contexts_by_lineno(file) if file else {}
        return self._by_file[path]


class _NeedsNewProcess(Exception):
    """A forked process cannot judge the mistake. The text says why."""


class SourceCopy:
    """A copy of the project in which mistakes are planted and tests run."""

    def __init__(self, number: int) -> None:
        self._folder = WORK_FOLDER / f"copy-{number}"
        self._planted = 0
        self._collected: tuple[str, CollectedTests] | None = None
        self._lost_packages: set[str] = set()
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir(parents=True)
        for name in COPIED_FOLDERS:
            if (ROOT / name).is_dir():
                shutil.copytree(ROOT / name, self._folder / name, symlinks=True)
        for path in ROOT.iterdir():
            if path.is_file():
                shutil.copy2(path, self._folder)
        (self._folder / ".venv").symlink_to(ROOT / ".venv")

    def record_coverage(self, package: str) -> None:
        path = get_coverage_path(package)
        path.parent.mkdir(parents=True, exist_ok=True)
        # The second folder makes processes that tests start record their lines too.
        folders = (self._folder / "src", self._folder / "tools" / "mutants" / "child_processes")
        environment = {"MUTANT_COVERAGE": str(path), "PYTHONPATH": os.pathsep.join(map(str, folders))}
        code, output = self._run_pytest([*PACKAGES[package]], environment, COVERAGE_SECONDS)
        if code not in (0, 1):  # 1: some tests fail while they are traced. Those are not used.
            raise SystemExit(f"The tests of {package} could not be recorded:\n{output[-4_000:]}")

    def judge(
        self, package: str, mutation: Mutation, tests: ChosenTests, limit: float, *, is_forked: bool = True
    ) -> Verdict:
        """Plant the mistake, run the tests until one fails, and take the mistake back."""
        if not tests.durations:
            return Verdict(mutation, "not reached", 0, 0.0)
        hang_seconds = tests.compute_hang_seconds()
        seconds, is_hang = min(limit, hang_seconds), hang_seconds < limit
        started = time.monotonic()
        try:
            if not is_forked:
                raise _NeedsNewProcess("requested")
            code, output, is_hang = self._run_forked(package, mutation, tests, seconds, is_hang)
            way = "forked"
        except _NeedsNewProcess as reason:
            with self._plant(mutation):
                code, output, way = *self._run_chosen([*tests.durations], seconds), str(reason)
        outcome, detail = interpret_exit(code, output, is_hang)
        return Verdict(mutation, outcome, len(tests.durations), time.monotonic() - started, detail, way)

    def close(self) -> None:
        if self._collected is not None:
            self._collected[1].close()
        self._collected = None

    def _run_forked(
        self, package: str, mutation: Mutation, tests: ChosenTests, seconds: float, is_hang: bool
    ) -> tuple[int | None, str, bool]:
        """Return the exit status and the output as `_run_pytest` does, and whether a test hangs if its time was over.

        Raises `_NeedsNewProcess`.
        """
        test_seconds = tests.compute_test_seconds()
        try:
            collected = self._collect(package)
            with self._plant(mutation):
                reply, output = collected.run(test_seconds, seconds, mutation)
            if reply.obstacle:
                raise _NeedsNewProcess(reply.obstacle)
            if reply.code not in (0, 1, None):
                raise _NeedsNewProcess(f"the forked process ended with {reply.code}")
            is_hang = is_hang or reply.has_hanging_test
            is_noticed = reply.code == 1 or (reply.code is None and is_hang)
            if is_noticed and not (
                reply.last_test and collected.is_sound(reply.last_test, test_seconds[reply.last_test])
            ):
                raise _NeedsNewProcess(f"without the mistake, this test fails in a forked process: {reply.last_test}")
        except CollectionLost as error:
            self.close()
            self._lost_packages.add(package)
            raise _NeedsNewProcess(str(error)) from error
        return reply.code, output, is_hang

    def _collect(self, package: str) -> CollectedTests:
        """Return the collected tests of the package. Those of one package are held at a time, which limits memory."""
        if package in self._lost_packages:
            raise _NeedsNewProcess("the process with the collected tests ended before")
        if self._collected is not None and self._collected[0] != package:
            self.close()
        if self._collected is None:
            environment = get_test_environment(self._folder)
            self._collected = package, CollectedTests(self._folder, PACKAGES[package], environment)
        return self._collected[1]

    @contextlib.contextmanager
    def _plant(self, mutation: Mutation) -> Iterator[None]:
        """Write the mistake to its file, for new processes and for modules that are imported later."""
        path = self._folder / mutation.path
        original = path.read_bytes()
        try:
            self._write(path, mutation.apply(original))
            yield
        finally:
            self._write(path, original)

    def _run_chosen(self, tests: Sequence[str], seconds: float) -> tuple[int | None, str]:
        chosen = self._folder / "chosen-tests.json"
        chosen.write_text(json.dumps(list(tests)))
        files = dict.fromkeys(node_id.partition("::")[0] for node_id in tests)
        return self._run_pytest(["-x", *files], {"MUTANT_TESTS": str(chosen)}, seconds)

    def _run_pytest(self, args: Iterable[str], extra: Mapping[str, str], seconds: float) -> tuple[int | None, str]:
        """Return the exit status (None: out of time) and the output. No process of the tests remains."""
        command = (sys.executable, "-m", "pytest", "-q", "-rfE", "--tb=no", "-p", "tools.mutants.pytest_plugin", *args)
        environment = {**get_test_environment(self._folder), **extra}
        output = self._folder / "output.txt"
        with output.open("wb") as file:
            process = subprocess.Popen(
                command, cwd=self._folder, env=environment, stdout=file, stderr=file, start_new_session=True
            )
            code: int | None
            try:
                code = process.wait(seconds)
            except subprocess.TimeoutExpired:
                code = None
            finally:
                end_process_group(process.pid)
                process.wait()
        return code, output.read_text(errors="replace")

    def _write(self, path: Path, source: bytes) -> None:
        """Write a file with a time of its own: Python would keep the former bytecode for an equal time and size."""
        path.write_bytes(source)
        self._planted += 1
        stamp = time.time() - 1_000_000 + self._planted
        os.utime(path, (stamp, stamp))


def interpret_exit(code: int | None, output: str, is_hang: bool) -> tuple[str, str]:
    """Return the outcome and its detail for an exit status of pytest; None if its time was over."""
    if code is None:
        return ("caught", "a test hangs") if is_hang else ("out of time", "")
    if code == 0:
        return "survived", ""
    if code == NO_TESTS_COLLECTED:
        return "not reached", "the recorded tests no longer exist; delete build/mutants/coverage"
    failed = [line for line in output.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return "caught", failed[0][:200] if failed else f"pytest ended with {code}"


def end_process_group(process_id: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process_id, signal.SIGKILL)


def get_coverage_path(package: str) -> Path:
    return COVERAGE_FOLDER / f"{package.replace('/', '-')}.db"


def list_package_mutations(package: str) -> list[Mutation]:
    files = sorted((ROOT / "src" / "wharf" / package).rglob("*.py"))
    return [m for file in files for m in list_mutations(file.relative_to(ROOT).as_posix(), file.read_bytes())]


def draw_sample(packages: Sequence[str], count: int, seed: int) -> list[tuple[str, Mutation]]:
    """Draw mutations from all sites of the packages with equal chances, so that large packages get more."""
    sites = [(package, mutation) for package in packages for mutation in list_package_mutations(package)]
    return random.Random(seed).sample(sites, min(count, len(sites)))


def run_sample(
    sample: Sequence[tuple[str, Mutation]], copies: Sequence[SourceCopy], seconds: float, way: str
) -> list[Verdict]:
    """Judge each mistake. The `way` is "forked", "new" (start pytest for each) or "compare" (both)."""
    reaches = {package: Reach(package) for package in {package for package, _ in sample}}
    free = list(copies)

    def judge(item: tuple[str, Mutation]) -> Verdict:
        package, mutation = item
        tests = reaches[package].select_tests(mutation)
        copy = free.pop()
        try:
            verdict = copy.judge(package, mutation, tests, seconds, is_forked=way != "new")
            if way == "compare" and verdict.way == "forked" and tests.durations:
                other = copy.judge(package, mutation, tests, seconds, is_forked=False)
                is_different = other.outcome != verdict.outcome
                print(f"{'DIFFERENT: ' if is_different else ''}in a new process: {describe(other)}", flush=True)
        finally:
            free.append(copy)
        print(describe(verdict), flush=True)
        return verdict

    # Packages one after the other, so that the tests of each are collected once in each copy.
    with ThreadPoolExecutor(len(copies)) as pool:
        return list(pool.map(judge, sorted(sample)))


def describe(verdict: Verdict) -> str:
    mutation = verdict.mutation
    place = f"{mutation.path}:{mutation.line}"
    effort = f"{verdict.tests} tests, {verdict.seconds:.1f} s{'' if verdict.way == 'forked' else f', {verdict.way}'}"
    return f"{verdict.outcome:<12} {place}: {mutation.mistake} ({effort}) {verdict.detail}"


def write_report(verdicts: Sequence[Verdict], seed: int) -> None:
    counts = Counter(verdict.outcome for verdict in verdicts)
    report = {"seed": seed, "counts": counts, "verdicts": [asdict(verdict) for verdict in verdicts]}
    path = WORK_FOLDER / "report.json"
    path.write_text(json.dumps(report, indent=1))
    print(f"\nSeed {seed}: {counts['caught']} of {len(verdicts)} mistakes caught. Not noticed:")
    for verdict in sorted(verdicts, key=lambda verdict: verdict.mutation):
        if not verdict.is_caught:
            print(f"  {describe(verdict)}")
    print(f"The report is in {path.relative_to(ROOT)}.")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.mutants", description=__doc__)
    parser.add_argument("--count", type=int, default=DEFAULT_COUNT, help="how many mistakes (default: %(default)s)")
    parser.add_argument("--seed", type=int, help="which mistakes are drawn (default: a new seed)")
    parser.add_argument("--package", action="append", choices=[*PACKAGES], help="only this package; may be repeated")
    parser.add_argument(
        "--seconds", type=float, default=DEFAULT_SECONDS, help="time per mistake (default: %(default)s)"
    )
    parser.add_argument(
        "--jobs", type=int, default=2, help="how many mistakes are tried at a time (default: %(default)s)"
    )
    ways = parser.add_mutually_exclusive_group()
    ways.add_argument("--new", dest="way", action="store_const", const="new", help="start pytest for each mistake")
    ways.add_argument(
        "--compare", dest="way", action="store_const", const="compare", help="try each mistake in both ways"
    )
    arguments = parser.parse_args()
    # Python ends at once by default, and the processes of the tests would remain.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    packages = arguments.package or [*PACKAGES]
    seed = random.SystemRandom().randrange(1_000_000) if arguments.seed is None else arguments.seed
    copies = [SourceCopy(number) for number in range(arguments.jobs)]
    for package in packages:
        if not get_coverage_path(package).with_suffix(".json").exists():
            print(f"Recording which tests of {package} reach which lines ...", flush=True)
            copies[0].record_coverage(package)
    started = time.monotonic()
    sample = draw_sample(packages, arguments.count, seed)
    try:
        verdicts = run_sample(sample, copies, arguments.seconds, arguments.way or "forked")
    finally:
        for copy in copies:
            copy.close()
    write_report(verdicts, seed)
    forked = sum(verdict.way == "forked" for verdict in verdicts)
    print(f"{time.monotonic() - started:.0f} s; {forked} of {len(verdicts)} mistakes in forked processes.")


if __name__ == "__main__":
    main()
