"""Runs benchmarks, which are the modules of this package with a function `measure() -> Figures`.

python -m benchmarks                        run all; print a table and write JSON to benchmarks/results/. Exit 1 if a target is missed
                                            by more than a factor of two, twice
python -m benchmarks engines_sqlite         run the named benchmarks
python -m benchmarks --json FILE            write JSON to this file
"""

import argparse
import importlib
import pkgutil
import platform
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

import benchmarks
from benchmarks.figures import Figures, print_table

RESULTS_FOLDER = Path(__file__).parent / "results"


def main(arguments: list[str]) -> int:
    """Run the named benchmarks, print their figures, and write them as JSON.

    Return the exit status: 1 if a figure misses its target by more than noise, twice.
    """
    parser = argparse.ArgumentParser(prog="python -m benchmarks")
    parser.add_argument("modules", nargs="*", help="names of benchmarks; all if omitted")
    parser.add_argument("--json", type=Path, default=None, metavar="FILE", help="write the figures to this file")
    options = parser.parse_args(arguments)
    modules = options.modules or [module.name for module in pkgutil.iter_modules(benchmarks.__path__)]
    figures_by_module: dict[str, Figures] = {}
    for name in modules:
        module = importlib.import_module(f"benchmarks.{name}")
        if not hasattr(module, "measure"):
            continue
        print(f"\n{name}: {(module.__doc__ or '').strip().splitlines()[0]}")
        figures_by_module[name] = measure_again_if_missed(module.measure)
    write_results(figures_by_module, options.json)
    failures = list_failures(figures_by_module)
    print("".join(f"\nMISSED by more than noise: {failure}" for failure in failures))
    return 1 if failures else 0


def measure_again_if_missed(measure: Callable[[], Figures]) -> Figures:
    """Run a benchmark and print its figures. Run it again if a figure misses its target by more than noise.

    Of the second run, a figure counts only if the same one missed its target in the first run too.
    """
    first = measure()
    print_table(first)
    missed = [name for name, figure in first.items() if figure.describe_failure()]
    if not missed:
        return first
    print("  a target is missed by more than noise: measuring again")
    second = measure()
    print_table(second)
    return {**first, **{name: second[name] for name in missed if name in second}}


def list_failures(figures_by_module: Mapping[str, Figures]) -> list[str]:
    """Return a sentence for each figure that misses its target by more than noise."""
    return [
        f"{module}, {name}: {failure}"
        for module, figures in figures_by_module.items()
        for name, figure in figures.items()
        if (failure := figure.describe_failure())
    ]


def write_results(figures_by_module: dict[str, Figures], path: Path | None) -> None:
    """Write the figures as JSON to a file; by default to a new file in the results folder."""
    if path is None:
        RESULTS_FOLDER.mkdir(exist_ok=True)
        path = RESULTS_FOLDER / f"{time.strftime('%Y-%m-%dT%H%M%S')}.json"
    machine = {"python": platform.python_version(), "system": platform.platform()}
    path.write_bytes(msgspec.json.format(msgspec.json.encode({"machine": machine, "figures": figures_by_module})))
    print(f"\nwrote {path}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
