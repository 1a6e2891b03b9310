"""Clones a repository with the program git, without prompts and without running hooks of the repository."""

import base64
import binascii
import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Final

from wharf.node.artifacts.source import ArtifactSource
from wharf.node.fair_queue import ItemOwner
from wharf.node.subprocesses import run_program
from wharf.node.threads import ThreadGroup, run_in_owned_thread
from wharf.node.unpacking.budget import CopyBudget
from wharf.node.unpacking.errors import ArtifactError

MAX_ERROR_CHARS: Final = 400
"""Limit of git's error text in the events of a task."""


async def clone_repository(
    source: ArtifactSource, target: Path, scratch: Path, *, budget: CopyBudget, owner: ItemOwner
) -> None:
    """Clone the repository into the new folder `target` and check out the requested ref.

    `scratch` is the folder for the SSH key. `owner` is the owner of the threads.
    Raises ArtifactError and OSError.
    """
    git = shutil.which("git")
    if git is None:
        raise ArtifactError("git is not installed on this node")
    if source.ref.startswith("-"):
        raise ArtifactError(f"ref {source.ref[:80]!r} cannot be a branch, tag or commit", is_permanent=True)
    environment = _build_environment(source, scratch)
    depth = [f"--depth={source.depth}"] if source.depth else []
    quiet = [git, "-c", "core.hooksPath=/dev/null", "-c", "protocol.ext.allow=never", "-c", "protocol.file.allow=never"]
    if source.ref and source.depth:
        # A shallow clone contains only what was requested by name.
        await _run_git([*quiet, "init", "--quiet", str(target)], environment, target, budget, owner)
        fetch = [*quiet, "-C", str(target), "fetch", "--quiet", *depth, "--", source.address, source.ref]
        await _run_git(fetch, environment, target, budget, owner)
        await _run_git(
            [*quiet, "-C", str(target), "checkout", "--quiet", "FETCH_HEAD"],
            environment,
            target,
            budget,
            owner,
        )
        return
    clone = [*quiet, "clone", "--quiet", *depth, "--", source.address, str(target)]
    await _run_git(clone, environment, target, budget, owner)
    if source.ref:
        checkout = [*quiet, "-C", str(target), "checkout", "--quiet", source.ref, "--"]
        await _run_git(checkout, environment, target, budget, owner)


def _build_environment(source: ArtifactSource, scratch: Path) -> dict[str, str]:
    """Return the environment variables for git.

    Also writes the source's SSH key, if it has one, into the folder `scratch`. Raises ArtifactError and OSError.
    """
    ssh = "ssh -o BatchMode=yes -o StrictHostKeyChecking=accept-new"
    if source.sshkey:
        key = scratch / "key"
        try:
            data = base64.b64decode(source.sshkey, validate=True)
        except binascii.Error:
            raise ArtifactError("sshkey is not in base64", is_permanent=True) from None
        descriptor = os.open(key, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
        ssh += f" -o IdentitiesOnly=yes -i {key}"
    return {
        "PATH": os.environ.get("PATH", "/usr/bin:/bin"),
        "HOME": str(scratch),
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_SSH_COMMAND": ssh,
        "LC_ALL": "C",
    }


async def _run_git(
    command: list[str], environment: dict[str, str], folder: Path, budget: CopyBudget, owner: ItemOwner
) -> None:
    """Run a git command. Raises ArtifactError if it fails or if `folder` exceeds the budget."""

    async def check_size() -> None:
        """Check the size of the folder and the disk, because git cannot limit its disk usage.

        Raises ArtifactError above the limit.
        """
        await run_in_owned_thread(ThreadGroup.ARTIFACTS, owner, budget.cancel, _check_folder, folder, budget)

    result = await run_program(command, environment=environment, max_output_bytes=MAX_ERROR_CHARS, check=check_size)
    if result.exit_code:
        error_text = result.errors.decode(errors="replace").strip()
        raise ArtifactError(f"git: {error_text or f'it failed with exit code {result.exit_code}'}")


def _check_folder(folder: Path, budget: CopyBudget) -> None:
    """Raise ArtifactError if the files below a folder have more bytes than the budget, or the disk is nearly full."""
    total, remaining = 0, [str(folder)]
    while remaining:
        budget.require_needed()
        with suppress(FileNotFoundError), os.scandir(remaining.pop()) as entries:
            for entry in entries:
                with suppress(FileNotFoundError):
                    if entry.is_dir(follow_symlinks=False):
                        remaining.append(entry.path)
                    else:
                        total += entry.stat(follow_symlinks=False).st_size
    if total > budget.max_bytes:
        raise ArtifactError(f"the repository has more than {budget.max_bytes:,} bytes", is_permanent=True)
    budget.check_disk()
