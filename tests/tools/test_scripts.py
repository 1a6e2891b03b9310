"""The shell scripts of `make setup` on machines without the required programs."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tools.findings import ROOT


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """A folder that is the only entry of PATH: it has a shell and few other programs."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("sh", "dirname", "id", "env"):
        found = shutil.which(name)
        assert found is not None
        (folder / name).symlink_to(found)
    return folder


def run(script: str, *arguments: str, path: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(ROOT / "tools" / script), *arguments],
        env={"PATH": str(path), **environment},
        capture_output=True,
        text=True,
        timeout=30,
    )


def test_without_python_the_error_names_what_to_install(programs: Path) -> None:
    process = run("find-python.sh", path=programs)

    assert process.returncode == 1
    assert process.stderr == (
        "Wharf needs Python 3.11 or newer, and none is on the path: install one, or name it with"
        " PYTHON=/path/to/python3.\n"
    )


def test_a_python_that_is_too_old_or_cannot_start_is_skipped(programs: Path) -> None:
    for name in ("python3.14", "python3"):
        (programs / name).write_text("#!/bin/sh\nexit 127\n")
        (programs / name).chmod(0o755)
    (programs / "python3.11").write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    (programs / "python3.11").chmod(0o755)

    assert run("find-python.sh", path=programs).stdout == f"{programs / 'python3.11'}\n"


def test_the_named_python_is_used(programs: Path) -> None:
    assert run("find-python.sh", path=programs, PYTHON=sys.executable).stdout == f"{sys.executable}\n"


def test_a_named_python_that_is_unsuitable_is_rejected(programs: Path) -> None:
    process = run("find-python.sh", path=programs, PYTHON="no-such-python")

    assert (process.returncode, process.stdout) == (1, "")
    assert process.stderr.startswith("PYTHON=no-such-python does not suit:")


def test_programs_that_may_not_be_installed_here_are_named(programs: Path) -> None:
    process = run("install-programs.sh", "etcd=etcd-server", "sh=dash", path=programs)

    assert process.returncode == 0
    assert "please install etcd-server (" in process.stderr


def test_nothing_is_printed_if_no_program_is_missing(programs: Path) -> None:
    process = run("install-programs.sh", "sh=dash", path=programs)

    assert (process.returncode, process.stdout, process.stderr) == (0, "", "")


def test_a_python_without_venv_leads_to_the_package_that_has_it(programs: Path) -> None:
    (programs / "python3").write_text(
        f'#!/bin/sh\ncase "$*" in *ensurepip*) exit 1 ;; esac\nexec "{sys.executable}" "$@"\n'
    )
    (programs / "python3").chmod(0o755)
    version = f"{sys.version_info.major}.{sys.version_info.minor}"

    process = run("find-python.sh", path=programs)

    assert (process.returncode, process.stdout) == (1, "")
    assert f"please install python{version}-venv" in process.stderr
    assert f"Python {version} is here, but it cannot make virtual environments" in process.stderr
