"""The container image: `Containerfile` builds it, and a server runs in it as a user without privileges.

What needs a network is replaced: the base image is a skeleton with the programs of this machine, and the dependencies are those of the
environment of the tests. All other instructions run as they are.
"""

import io
import os
import subprocess
import sys
import sysconfig
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from tests.node.docker.podman import Podman, running_podman
from tests.packaging.wheels import ROOT
from tests.waiting import wait_until
from wharf.config.starter_file import AgentRole, render_starter_file

pytestmark = [
    pytest.mark.needs("containers"),
    pytest.mark.needs_program("podman"),
    pytest.mark.needs_program("runc"),
    pytest.mark.needs_program("busybox"),
    pytest.mark.needs_program("gcc"),
]

PACKAGES: Final = sysconfig.get_path("purelib")
PYTHON: Final = f"{sys.base_prefix}/bin/python3"
SHARED: Final = ("/usr", sys.base_prefix, PACKAGES)
"""Folders of this machine that containers read."""
REPLACED: Final = {
    "apt-get update && apt-get install --yes --no-install-recommends gcc libc6-dev": "true",
    "/opt/wharf/bin/pip install --no-cache-dir --require-hashes -r requirements/run.txt": "link-dependencies /opt/wharf",
    "/opt/build/bin/pip install --no-cache-dir --require-hashes -r requirements/build.txt": "link-dependencies /opt/build",
}
"""Instructions that need a network, with what the test runs instead of them."""
LINK_DEPENDENCIES: Final = f"#!/bin/sh\n$1/bin/pip uninstall --quiet --yes setuptools\necho {PACKAGES} > $(echo $1/lib/python*/site-packages)/dependencies.pth\n"
FILES: Final = {
    "stand-ins/link-dependencies": LINK_DEPENDENCIES,
    "stand-ins/python": f'#!/bin/sh\nexec {PYTHON} "$@"\n',
    "etc/passwd": "root:x:0:0:root:/root:/bin/sh\n",
    "etc/group": "root:x:0:\n",
    "etc/shadow": "root:*:19000:0:99999:7:::\n",
    "etc/login.defs": "SYS_UID_MIN 100\nSYS_UID_MAX 999\n",
}
NAME: Final = "wharf-server"


def build_base_image() -> bytes:
    """Return the files of the base image: folders for those of this machine, and stand-ins for what needs a network."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for folder in ("etc", "usr", "tmp", "var", "opt", "stand-ins"):
            entry = tarfile.TarInfo(folder)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o1777 if folder == "tmp" else 0o755
            archive.addfile(entry)
        for link in ("bin", "sbin", "lib", "lib64"):
            entry = tarfile.TarInfo(link)
            entry.type, entry.linkname = tarfile.SYMTYPE, f"usr/{link}"
            archive.addfile(entry)
        for name, text in FILES.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(text), 0o755 if name.startswith("stand-ins") else 0o644
            archive.addfile(entry, io.BytesIO(text.encode()))
    return buffer.getvalue()


def run_engine(engine: Podman, *words: str, within_s: float = 300) -> str:
    process = subprocess.run(
        engine.command(*words), env=engine.environment, capture_output=True, text=True, check=False, timeout=within_s
    )
    assert process.returncode == 0, process.stdout[-4_000:] + process.stderr[-4_000:]
    return process.stdout


def build_image(engine: Podman, folder: Path) -> None:
    """Build the image of `Containerfile` in the engine."""
    text = (ROOT / "Containerfile").read_text()
    for instruction, replacement in REPLACED.items():
        assert text.count(instruction) == 1, f"Containerfile has another instruction than {instruction}"
        text = text.replace(instruction, replacement)
    (folder / "Containerfile").write_text(text)
    (folder / "base.tar").write_bytes(build_base_image())
    path = f"/stand-ins:{os.environ['PATH']}"
    run_engine(engine, "import", "--change", f"ENV PATH={path}", str(folder / "base.tar"), "localhost/python:3.12-slim")
    volumes = [word for path in SHARED for word in ("--volume", f"{path}:{path}:ro")]
    context = ["--ignorefile", str(ROOT / ".containerignore"), "--file", str(folder / "Containerfile"), str(ROOT)]
    run_engine(engine, "build", "--network", "none", "--pull=never", *volumes, "--tag", "wharf", *context)


@contextmanager
def running_server(engine: Podman, folder: Path) -> Iterator[None]:
    """Run a container of the image with the configuration that `wharf config init --server` writes."""
    file = folder / "wharf.toml"
    file.write_text(render_starter_file(AgentRole.SERVER))
    volumes = [f"{path}:{path}:ro" for path in SHARED] + [f"{file}:/etc/wharf/wharf.toml:ro", "data:/var/lib/wharf"]
    options = ["--detach", "--network", "none", "--name", NAME]
    run_engine(engine, "run", *options, *(word for volume in volumes for word in ("--volume", volume)), "wharf")
    try:
        yield
    finally:
        run_engine(engine, "rm", "--force", "--time", "0", NAME)


def test_the_image_runs_a_server_as_an_unprivileged_user_and_stops_it_on_request(tmp_path: Path) -> None:
    with running_podman() as (engine, _):
        build_image(engine, tmp_path)
        with running_server(engine, tmp_path):
            wait_until(
                lambda: "server ready" in run_engine(engine, "logs", NAME), what="the server is ready", within_s=120
            )
            user = run_engine(engine, "exec", NAME, "id", "--user").strip()
            health = run_engine(engine, "exec", NAME, "wharf", "operator", "api", "/v1/agent/health?type=server")
            run_engine(engine, "stop", "--time", "30", NAME)
            ended = run_engine(engine, "inspect", "--format", "{{.State.ExitCode}}", NAME).strip()

    assert user == "10001"
    assert '"ok":true' in health.replace(" ", "").lower()
    assert ended == "0"
