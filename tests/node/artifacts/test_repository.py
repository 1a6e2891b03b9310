"""Artifacts from git repositories, served by a git daemon of the test."""

import asyncio
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.ports import free_ports
from tests.waiting import wait_until
from wharf.node.artifacts import ArtifactError, ArtifactLimits, ArtifactRequest, fetch_artifact

pytestmark = pytest.mark.needs_program("git")


def git(folder: Path, *words: str) -> str:
    names = {"GIT_AUTHOR_NAME": "t", "GIT_AUTHOR_EMAIL": "t@t", "GIT_COMMITTER_NAME": "t", "GIT_COMMITTER_EMAIL": "t@t"}
    environment = os.environ | names | {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
    process = subprocess.run(["git", *words], cwd=folder, env=environment, check=True, capture_output=True, text=True)
    return process.stdout.strip()


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Return the URL of a repository with two commits: tag v1 on the first, branch main on the second."""
    folder = tmp_path_factory.mktemp("git")
    work = folder / "tools"
    work.mkdir()
    git(work, "init", "--quiet", "--initial-branch=main")
    (work / "bin").mkdir()
    (work / "bin/run").write_text("one")
    (work / "link").symlink_to("bin/run")
    (work / "alias").symlink_to(".")
    git(work, "add", ".")
    git(work, "commit", "--quiet", "-m", "one")
    git(work, "tag", "v1")
    (work / "bin/run").write_text("two")
    git(work, "commit", "--quiet", "-am", "two")
    [port] = free_ports(1)
    daemon = subprocess.Popen(
        [
            "git",
            "daemon",
            "--export-all",
            "--listen=127.0.0.1",
            f"--port={port}",
            f"--base-path={folder}",
            "--reuseaddr",
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    address = f"git://127.0.0.1:{port}/tools"
    try:
        wait_until(
            lambda: subprocess.run(["git", "ls-remote", address], capture_output=True).returncode == 0,
            what="the git server",
        )
        yield address
    finally:
        os.killpg(daemon.pid, 15)
        daemon.wait()


@pytest.fixture
def task(tmp_path: Path) -> Path:
    (tmp_path / "local").mkdir()
    return tmp_path


def fetch(
    task: Path, source: str, destination: str = "local/tools", mode: str = "any", limits: ArtifactLimits | None = None
) -> None:
    asyncio.run(fetch_artifact(ArtifactRequest(source, {}, {}, mode, False, destination), task, limits=limits))


def test_a_repository_is_cloned_without_its_git_folder(repository: str, task: Path) -> None:
    fetch(task, f"git::{repository}")

    assert "two" == (task / "local/tools/bin/run").read_text()
    assert "two" == (task / "local/tools/link").read_text()
    assert [task / "local"] == list(task.iterdir())


@pytest.mark.parametrize("depth", ["", "&depth=1"])
def test_a_tag_is_checked_out(repository: str, task: Path, depth: str) -> None:
    fetch(task, f"git::{repository}?ref=v1{depth}")

    assert "one" == (task / "local/tools/bin/run").read_text()


def test_only_the_requested_folder_of_a_repository_is_copied(repository: str, task: Path) -> None:
    fetch(task, f"git::{repository}//bin")

    assert ["run"] == [path.name for path in (task / "local/tools").iterdir()]


@pytest.mark.parametrize(
    ("source_suffix", "mode", "message"),
    [
        ("?ref=none", "any", "git: "),
        ("//none", "any", "the repository has no folder none"),
        ("//alias/bin", "any", "the repository has no folder alias/bin; links are not followed"),
        ("", "file", "a repository is a folder: set mode to any or dir"),
    ],
)
def test_a_missing_ref_or_folder_and_mode_file_are_errors(
    repository: str, task: Path, source_suffix: str, mode: str, message: str
) -> None:
    with pytest.raises(ArtifactError, match=message):
        fetch(task, f"git::{repository}{source_suffix}", mode=mode)

    assert [task / "local"] == list(task.iterdir())


def test_a_repository_above_the_size_limit_is_rejected(repository: str, task: Path) -> None:
    with pytest.raises(ArtifactError, match="the repository has more than 10 bytes"):
        fetch(task, f"git::{repository}", limits=ArtifactLimits(max_bytes=10))
