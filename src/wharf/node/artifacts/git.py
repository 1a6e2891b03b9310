"""Clones a repository with the program git, without prompts and without running hooks of the repository."""

import asyncio
import base64
import binascii
import contextlib
import os
import shutil
import signal
from pathlib import Path
from typing import Final

from wharf.node.artifacts.errors import ArtifactError
from wharf.node.artifacts.source import ArtifactSource

SIZE_CHECK_INTERVAL_S: Final = 0.5
MAX_ERROR_CHARS: Final = 400


async def clone_repository(source: ArtifactSource, into: Path, scratch: Path, *, max_bytes: int) -> None:
    """Clone into a new folder. Raises ArtifactError and OSError."""
    git = shutil.which("git")
    if git is None:
        raise ArtifactError("git is not installed on this node")
    if source.ref.startswith("-"):
        raise ArtifactError(f"ref is {source.ref[:80]}: no branch, tag or commit is named so", is_permanent=True)
    environment = _environment(source, scratch)
    depth = [f"--depth={source.depth}"] if source.depth else []
    quiet = [git, "-c", "core.hooksPath=/dev/null", "-c", "protocol.ext.allow=never", "-c", "protocol.file.allow=never"]
    if source.ref and source.depth:
        # Of a shallow clone only what is asked for by name is there.
        await _run([*quiet, "init", "--quiet", str(into)], environment, into, max_bytes)
        fetch = [*quiet, "-C", str(into), "fetch", "--quiet", *depth, "--", source.address, source.ref]
        await _run(fetch, environment, into, max_bytes)
        await _run([*quiet, "-C", str(into), "checkout", "--quiet", "FETCH_HEAD"], environment, into, max_bytes)
        return
    await _run([*quiet, "clone", "--quiet", *depth, "--", source.address, str(into)], environment, into, max_bytes)
    if source.ref:
        checkout = [*quiet, "-C", str(into), "checkout", "--quiet", source.ref, "--"]
        await _run(checkout, environment, into, max_bytes)


def _environment(source: ArtifactSource, scratch: Path) -> dict[str, str]:
    ssh = "ssh -o BatchMode=yes -o StrictHostKeyChecking=accept-new"
    if source.sshkey:
        key = scratch / "key"
        try:
            data = base64.b64decode(source.sshkey, validate=True)
        except binascii.Error:
            raise ArtifactError("sshkey is not in base64", is_permanent=True) from None
        handle = os.open(key, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "wb") as file:
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


async def _run(command: list[str], environment: dict[str, str], into: Path, bytes_max: int) -> None:
    process = await asyncio.create_subprocess_exec(
        *command,
        env=environment,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,  # So that all that it starts can be ended with it.
    )
    try:
        told = await _watched(process, into, bytes_max)
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):  # It ended just now, and nobody has asked for its code yet.
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
    if process.returncode:
        last = told.decode(errors="replace").strip()[-MAX_ERROR_CHARS:]
        raise ArtifactError(f"git: {last or f'it ended with {process.returncode}'}")


async def _watched(process: asyncio.subprocess.Process, into: Path, bytes_max: int) -> bytes:
    """Return git's error output. git cannot limit its disk usage, so the folder's size is checked regularly."""
    assert process.stderr is not None
    told, is_over = b"", False
    while not is_over:
        try:
            piece = await asyncio.wait_for(process.stderr.read(4_096), SIZE_CHECK_INTERVAL_S)
            told, is_over = (told + piece)[-MAX_ERROR_CHARS:], not piece
        except TimeoutError:
            pass
        if await asyncio.to_thread(_size, into) > bytes_max:
            raise ArtifactError(f"the repository has more than {bytes_max:,} bytes", is_permanent=True)
    await process.wait()
    return told


def _size(folder: Path) -> int:
    total = 0
    for where, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(os.path.join(where, name)).st_size
            except FileNotFoundError:
                continue
    return total
