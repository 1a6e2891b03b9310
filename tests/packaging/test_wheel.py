"""The wheel: its name, its content, and a program that runs after `pip install`, without a network."""

import os
import re
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from tests.packaging.wheels import ROOT, build_wheel, run
from wharf import __version__


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(tmp_path_factory.mktemp("wheel"))


def test_readme_has_the_name_of_the_wheel(wheel: Path) -> None:
    name = wheel.name.partition("-")[0]

    assert name == "wharfinger"
    assert f"`{name}`" in (ROOT / "README.md").read_text()


def test_the_wheel_contains_each_source_file_and_data_file(wheel: Path) -> None:
    """A data file that `package-data` does not list would be missing in installations only."""
    packed = {name for name in zipfile.ZipFile(wheel).namelist() if name.startswith("wharf/")}
    files = [path.relative_to(ROOT / "src") for path in (ROOT / "src/wharf").rglob("*") if path.is_file()]
    expected = {str(path) for path in files if path.suffix not in (".pyc", ".so", ".c")}

    assert expected - packed == set()


def test_pip_installs_a_program_that_runs_an_agent_check(wheel: Path, tmp_path: Path) -> None:
    """The dependencies are those of the environment of the tests, because pip cannot download any."""
    python = tmp_path / "environment/bin/python"
    run("venv", "--without-pip", tmp_path / "environment")
    run("pip", "--python", python, "install", "--quiet", "--no-index", "--no-deps", "--no-compile", wheel)
    packages = subprocess.check_output(
        [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], text=True
    )
    Path(packages.strip(), "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    environment = {"PATH": os.environ["PATH"], "PYTHONPYCACHEPREFIX": str(tmp_path / "bytecode")}

    def run_wharf(*arguments: str) -> str:
        program = tmp_path / "environment/bin/wharf"
        return subprocess.check_output([program, *arguments], cwd=tmp_path, env=environment, text=True)

    assert __version__ in run_wharf("version")
    assert "1 file is valid" in (run_wharf("config", "init") and run_wharf("config", "check", "wharf.toml"))
    assert Path(packages.strip(), "wharf").is_dir()


def test_the_version_of_the_wheel_is_that_of_the_package(wheel: Path) -> None:
    assert re.match(rf"wharfinger-{re.escape(__version__)}-", wheel.name)


def test_the_wheel_has_compiled_counters_for_this_python(wheel: Path) -> None:
    assert f"-cp{sys.version_info.major}{sys.version_info.minor}-" in wheel.name
