"""python -m simulation: runs seeds, two at a time, and says what they came to.

python -m simulation --seeds 300               fresh seeds
python -m simulation --seed 17                 one seed again, step by step the same
python -m simulation --seed 17 --story FILE    with all that happened in it
python -m simulation --seeds 300 --plant missed-wake
"""

import argparse
import gc
import os
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from multiprocessing import get_context
from pathlib import Path

from simulation.coverage import MIN_SEEDS_FOR_COVERAGE, Coverage, measure_coverage
from simulation.planted_bugs import PlantedBug
from simulation.run import SeedResult, SeedRun, run_seed
from wharf.world import RealWorld

PROCESS_COUNT = 2
MAX_FRESH_SEED = 1 << 32
SEEDS_PER_PROGRESS_LINE = 10
SEEDS_PER_PROCESS = 25  # Then a new one takes its place, so that no seed runs in a process grown old.


def main(given: Sequence[str]) -> int:
    arguments = _arguments(given)
    if os.environ.get("PYTHONHASHSEED") != "0":
        # The order of sets of text depends on it: a seed must mean the same in every process.
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, [sys.executable, "-m", "simulation", *given])
    bug = PlantedBug(arguments.plant) if arguments.plant else None
    if arguments.seed is not None:
        return _one(arguments.seed, bug, in_order=arguments.in_order, story=arguments.story)
    return _many(arguments.seeds, arguments.first, bug)


def _arguments(given: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m simulation", description="Whole clusters on a virtual clock.")
    parser.add_argument("--seeds", type=int, default=300, metavar="N", help="how many fresh seeds to run")
    parser.add_argument("--first", type=int, metavar="S", help="begin at this seed and count up, instead of fresh ones")
    parser.add_argument("--seed", type=int, metavar="S", help="run this one seed")
    parser.add_argument("--story", metavar="FILE", help="with --seed: write all that happened to this file")
    parser.add_argument(
        "--in-order", action="store_true", help="with --seed: the order of a real loop, to see whether order matters"
    )
    parser.add_argument("--plant", choices=[bug.value for bug in PlantedBug], help="plant this bug; it must be caught")
    return parser.parse_args(given)


def _one(seed: int, bug: PlantedBug | None, *, in_order: bool, story: str | None) -> int:
    run = SeedRun(seed, bug=bug, is_shuffled=not in_order)
    result = run.run()
    if story:
        Path(story).write_text("".join(f"{line}\n" for line in run.timeline.entries), "utf-8")
    _show(result, bug)
    print(f"fingerprint {result.fingerprint}, {result.steps} steps, {result.virtual_s:.0f} s of virtual time")
    return 1 if result.failure is not None else 0


def _many(count: int, first: int | None, bug: PlantedBug | None) -> int:
    start = RealWorld().random.randrange(MAX_FRESH_SEED) if first is None else first
    print(f"{count} seeds from {start} on" + (f", with {bug} planted" if bug else ""), flush=True)
    results: list[SeedResult] = []
    for result in _results(range(start, start + count), bug):
        results.append(result)
        if len(results) % SEEDS_PER_PROGRESS_LINE == 0:
            print(f"{len(results)} of {count} seeds", flush=True)
        if result.failure is not None:
            _show(result, bug)
            if bug is not None:
                print(f"{bug} was caught by seed {result.seed}, after {len(results)} seeds.")
                return 0
    if bug is not None:
        print(f"{bug} was not caught by {count} seeds.")
        return 1
    return _summary(results, measure_coverage(results))


def _results(seeds: Sequence[int], bug: PlantedBug | None) -> Iterator[SeedResult]:
    """In the order of the seeds. What is there before the first one is no garbage later. (concurrent.futures stands still in Python 3.11 when it replaces its processes.)"""
    with get_context("spawn").Pool(PROCESS_COUNT, gc.freeze, maxtasksperchild=SEEDS_PER_PROCESS) as pool:
        yield from pool.imap(partial(run_seed, bug=bug), seeds)


def _show(result: SeedResult, bug: PlantedBug | None) -> None:
    if result.failure is None:
        print(f"seed {result.seed}: {result.events} events, {sum(result.faults.values())} faults, all is well")
        return
    print(f"\nseed {result.seed} FAILED after {result.events} events\n")
    print("\n".join(result.failure.timeline))
    print(f"\n{result.failure.text}\n")
    planted = f" --plant {bug}" if bug else ""
    print(f"Again: python -m simulation --seed {result.seed}{planted} --story story.txt\n", flush=True)


def _summary(results: Sequence[SeedResult], coverage: Coverage) -> int:
    failed = [result.seed for result in results if result.failure is not None]
    events, faults = sum(r.events for r in results), sum(coverage.faults.values())
    print(f"{len(results)} seeds, {events} events, {faults} faults, {sum(r.calls for r in results)} calls,")
    print(f"{sum(r.reads_checked for r in results)} reads judged, {sum(r.full_checks for r in results)} full checks,")
    print(f"{sum(r.virtual_s for r in results) / 3600:.1f} hours of virtual time")
    print("\nfaults")
    for fault, count in sorted(coverage.faults.items(), key=lambda each: -each[1]):
        print(f"  {count:8} {fault}")
    print("\nsteps of the tables of states")
    for (machine, source, target), count in sorted(coverage.transitions.items(), key=str):
        print(f"  {count:8} {machine}: {source or 'new'} -> {target}")
    for step in coverage.pending_steps:
        print(f"   not yet {step}")
    gaps = [
        *(f"this fault never struck: {fault}" for fault in coverage.missing_faults),
        *(f"this step was never taken: {step}" for step in coverage.missing_steps),
        *(f"this step was taken and is said not to be possible yet: {step}" for step in coverage.unexpected_steps),
    ]
    print("\n" + "\n".join(gaps or ["Everything that can happen did."]))
    if failed:
        print(f"\n{len(failed)} of {len(results)} seeds failed: {' '.join(map(str, failed))}")
    is_short = bool(gaps) and len(results) >= MIN_SEEDS_FOR_COVERAGE
    return 1 if failed or is_short else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
