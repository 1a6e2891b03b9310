"""Runs the benchmarks: every module of this package that has `measure() -> Figures`.

python -m benchmarks                        all: a table, and JSON in benchmarks/results/
python -m benchmarks engines_sqlite         those that are named
python -m benchmarks --json FILE            JSON in this file
"""

import argparse
import importlib
import pkgutil
import platform
import sys
import time
from pathlib import Path

import msgspec

import benchmarks
from benchmarks.figures import Figures, print_table

RESULTS_FOLDER = Path(__file__).parent / "results"


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks")
    parser.add_argument("modules", nargs="*", help="all when none is named")
    parser.add_argument("--json", type=Path, default=None)
    chosen = parser.parse_args(arguments)
    modules = chosen.modules or [module.name for module in pkgutil.iter_modules(benchmarks.__path__)]
    measured: dict[str, Figures] = {}
    for name in modules:
        module = importlib.import_module(f"benchmarks.{name}")
        if not hasattr(module, "measure"):
            continue
        print(f"\n{name}: {(module.__doc__ or '').strip().splitlines()[0]}")
        figures: Figures = module.measure()
        measured[name] = figures
        print_table(figures)
    write_results(measured, chosen.json)
    return 0


def write_results(measured: dict[str, Figures], path: Path | None) -> None:
    if path is None:
        RESULTS_FOLDER.mkdir(exist_ok=True)
        path = RESULTS_FOLDER / f"{time.strftime('%Y-%m-%dT%H%M%S')}.json"
    machine = {"python": platform.python_version(), "system": platform.platform()}
    path.write_bytes(msgspec.json.format(msgspec.json.encode({"machine": machine, "figures": measured})))
    print(f"\nwritten to {path}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
