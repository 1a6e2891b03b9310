"""Builds the wheel of this project, without a network and without a change of the source tree."""

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
SOURCES: Final = ("pyproject.toml", "README.md", "LICENSE")


def build_wheel(folder: Path) -> Path:
    """Build the wheel from a copy of the sources in the folder, and return it. The build takes a few seconds."""
    sources = folder / "sources"
    shutil.copytree(ROOT / "src", sources / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info", "*.so"))
    for name in SOURCES:
        shutil.copy(ROOT / name, sources)
    run("pip", "wheel", "--quiet", "--no-index", "--no-deps", "--no-build-isolation", "--wheel-dir", folder, sources)
    (wheel,) = folder.glob("*.whl")
    return wheel


def run(module: str, *arguments: str | Path) -> str:
    """Run a module of the environment of the tests. Return what it prints."""
    process = subprocess.run([sys.executable, "-m", module, *arguments], capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stdout + process.stderr
    return process.stdout
