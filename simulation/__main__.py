"""The command `python -m simulation`: runs seeds, two at a time, and prints the results.

python -m simulation --seeds 300               new seeds
python -m simulation --seed 17                 one seed again, with exactly the same steps
python -m simulation --seed 17 --story FILE    the same, and write all its events to FILE
python -m simulation --seeds 300 --batch         only batch jobs with arrays and steps
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
MAX_NEW_SEED = 1 << 32
SEEDS_PER_PROGRESS_LINE = 10
SEEDS_PER_PROCESS = 25  # Then a new process replaces the old one, so that memory does not grow.


def main(arguments: Sequence[str]) -> int:
    """Run the command with these arguments. Return the exit status."""
    options = _parse_arguments(arguments)
    if os.environ.get("PYTHONHASHSEED") != "0":
        # The order of sets of strings depends on the hash seed. A seed must give the same run in every process.
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, [sys.executable, "-m", "simulation", *arguments])
    bug = PlantedBug(options.plant) if options.plant else None
    if options.seed is not None:
        return _run_one(
            options.seed, bug, only_batch=options.batch, in_order=options.in_order, timeline_file=options.story
        )
    return _run_many(options.seeds, options.first, bug, only_batch=options.batch)


def _parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m simulation", description="Run whole clusters with random faults on a virtual clock."
    )
    parser.add_argument("--seeds", type=int, default=300, metavar="N", help="number of new seeds (default 300)")
    parser.add_argument(
        "--first", type=int, metavar="S", help="run consecutive seeds from this one on, instead of new ones"
    )
    parser.add_argument("--seed", type=int, metavar="S", help="run only this seed")
    parser.add_argument("--story", metavar="FILE", help="with --seed: write all events to this file")
    parser.add_argument(
        "--in-order", action="store_true", help="with --seed: run callbacks in the order of a real event loop"
    )
    parser.add_argument("--batch", action="store_true", help="use only batch jobs, of which most have arrays or steps")
    parser.add_argument(
        "--plant", choices=[bug.value for bug in PlantedBug], help="plant this bug; a seed must detect it"
    )
    return parser.parse_args(arguments)


def _run_one(seed: int, bug: PlantedBug | None, *, only_batch: bool, in_order: bool, timeline_file: str | None) -> int:
    """Run one seed. Return the exit status."""
    run = SeedRun(seed, bug=bug, is_shuffled=not in_order, only_batch=only_batch)
    result = run.run()
    if timeline_file:
        Path(timeline_file).write_text("".join(f"{line}\n" for line in run.timeline.entries), "utf-8")
    _print_result(result, bug, only_batch=only_batch)
    return 1 if result.failure is not None else 0


def _run_many(count: int, first: int | None, bug: PlantedBug | None, *, only_batch: bool) -> int:
    """Run consecutive seeds. Return the exit status: 0 if all pass, or if one detects the planted bug."""
    start = RealWorld().random.randrange(MAX_NEW_SEED) if first is None else first
    print(f"running {count} seeds from {start}" + (f" with planted bug {bug}" if bug else ""), flush=True)
    results: list[SeedResult] = []
    for result in _iterate_results(range(start, start + count), bug, only_batch=only_batch):
        results.append(result)
        if len(results) % SEEDS_PER_PROGRESS_LINE == 0:
            print(f"{len(results)} of {count} seeds done", flush=True)
        if result.failure is not None or count < SEEDS_PER_PROGRESS_LINE:
            _print_result(result, bug, only_batch=only_batch)
        if result.failure is not None and bug is not None:
            print(f"seed {result.seed} detected {bug} (seeds run: {len(results)})")
            return 0
    if bug is not None:
        print(f"no seed of {count} detected {bug}")
        return 1
    return _print_summary(results, measure_coverage(results))


def _iterate_results(seeds: Sequence[int], bug: PlantedBug | None, *, only_batch: bool) -> Iterator[SeedResult]:
    """Run the seeds in two processes, and yield the results in order.

    Objects from before the first seed are excluded from garbage collection. `concurrent.futures` is not used, because it
    hangs in Python 3.11 when it replaces its processes.
    """
    with get_context("spawn").Pool(PROCESS_COUNT, gc.freeze, maxtasksperchild=SEEDS_PER_PROCESS) as pool:
        yield from pool.imap(partial(run_seed, bug=bug, only_batch=only_batch), seeds)


def _print_result(result: SeedResult, bug: PlantedBug | None, *, only_batch: bool) -> None:
    """Print the result of a seed. For a failure, print its timeline, its error and the command that repeats it."""
    if result.failure is None:
        print(f"seed {result.seed}: {result.events} events, {sum(result.faults.values())} faults, no violations")
        print(
            f"fingerprint {result.fingerprint}, {result.steps} steps, {result.virtual_s:.0f} s of virtual time",
            flush=True,
        )
        return
    print(f"\nseed {result.seed} FAILED after {result.events} events\n")
    print("\n".join(result.failure.timeline))
    print(f"\n{result.failure.text}\n")
    planted = (" --batch" if only_batch else "") + (f" --plant {bug}" if bug else "")
    print(f"Repeat with: python -m simulation --seed {result.seed}{planted} --story story.txt\n", flush=True)


def _print_summary(results: Sequence[SeedResult], coverage: Coverage) -> int:
    """Print the figures and the coverage of a run. Return the exit status."""
    failed = [result.seed for result in results if result.failure is not None]
    events, faults = sum(r.events for r in results), sum(coverage.faults.values())
    print(f"{len(results)} seeds, {events} events, {faults} faults, {sum(r.calls for r in results)} calls,")
    print(
        f"{sum(r.reads_checked for r in results)} reads checked, {sum(r.full_checks for r in results)} checks of the whole state,"
    )
    print(f"{sum(r.virtual_s for r in results) / 3600:.1f} hours of virtual time")
    print("\nfaults")
    for fault, count in sorted(coverage.faults.items(), key=lambda item: -item[1]):
        print(f"  {count:8} {fault}")
    print("\nstate transitions")
    for (machine, source, target), count in sorted(coverage.transitions.items(), key=str):
        print(f"  {count:8} {machine}: {source or 'new'} -> {target}")
    for step in coverage.pending_steps:
        print(f"  did not happen: {step}")
    gaps = [
        *(f"this fault never happened: {fault}" for fault in coverage.missing_faults),
        *(f"this state transition never happened: {step}" for step in coverage.missing_steps),
        *(
            f"this state transition happened, but is listed as not implemented yet: {step}"
            for step in coverage.unexpected_steps
        ),
    ]
    print("\n" + "\n".join(gaps or ["every fault and every state transition happened"]))
    if failed:
        print(f"\n{len(failed)} of {len(results)} seeds failed: {' '.join(map(str, failed))}")
    has_low_coverage = bool(gaps) and len(results) >= MIN_SEEDS_FOR_COVERAGE
    return 1 if failed or has_low_coverage else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
