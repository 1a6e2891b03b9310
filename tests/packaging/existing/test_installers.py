"""`pip`, `pipx` and `uv tool` install the wheel with its dependencies from a package index, and its program runs."""

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.packaging.wheels import build_wheel
from wharf import __version__

CLIENTS = Path(os.environ["WHARF_CLIENTS"]).resolve() / "installers" / "bin"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(tmp_path_factory.mktemp("wheel"))


def install(folder: Path, variables: Mapping[str, str], *command: str | Path) -> str:
    """Install with a command, and return what `wharf version` prints then."""
    folders = {name: str(folder / part) for name, part in variables.items()}
    environment = {**os.environ, **folders, "HOME": str(folder)}
    process = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=300)
    assert process.returncode == 0, process.stdout + process.stderr
    return subprocess.check_output(
        [folder / "bin/wharf", "version"], text=True, cwd=folder, env={"PATH": "/usr/bin:/bin"}
    )


def test_pip_installs_the_wheel(wheel: Path, tmp_path: Path) -> None:
    subprocess.run([CLIENTS / "python", "-m", "venv", tmp_path], check=True)

    assert __version__ in install(tmp_path, {}, tmp_path / "bin/pip", "install", "--quiet", wheel)


def test_pipx_installs_the_wheel(wheel: Path, tmp_path: Path) -> None:
    folders = {"PIPX_HOME": "home", "PIPX_BIN_DIR": "bin", "PIPX_MAN_DIR": "man"}

    assert __version__ in install(tmp_path, folders, CLIENTS / "pipx", "install", wheel)


def test_uv_tool_installs_the_wheel(wheel: Path, tmp_path: Path) -> None:
    folders = {"UV_TOOL_DIR": "tools", "UV_TOOL_BIN_DIR": "bin"}

    assert __version__ in install(tmp_path, folders, CLIENTS / "uv", "tool", "install", "--no-managed-python", wheel)
