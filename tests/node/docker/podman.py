"""Podman as a container engine for tests, with its own images and containers, and a registry that serves one image.

Podman serves Docker's API on a socket in a temporary folder.
"""

import contextlib
import hashlib
import io
import json
import os
import shutil
import signal
import subprocess
import tarfile
import tempfile
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Final

from tests.agent.processes import kill_remaining_processes
from tests.mounts import unmount_below
from tests.waiting import wait_until

BUSYBOX: Final = "busybox"
LINKS: Final = ("sh", "echo", "cat", "sleep", "true", "false", "ls", "id", "env", "stat", "tail", "kill", "dd")
"""The programs in the image: names of busybox."""


class Podman:
    """A container engine whose files are all below one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.socket = folder / "s"
        self._process: subprocess.Popen[bytes] | None = None
        runtime = shutil.which("runc") or "/usr/sbin/runc"
        (folder / "containers.conf").write_text(
            '[containers]\ndefault_ulimits = ["nofile=1024:1024", "nproc=1024:1024"]\nlog_driver = "k8s-file"\n'
            f'[engine]\ncgroup_manager = "cgroupfs"\nevents_logger = "file"\nruntime = "{runtime}"\n'
        )
        (folder / "registries.conf").write_text("")
        (folder / "policy.json").write_text('{"default": [{"type": "insecureAcceptAnything"}]}')

    @property
    def environment(self) -> dict[str, str]:
        """The environment of commands of Podman, with the configuration of this engine."""
        return os.environ | {
            "CONTAINERS_CONF": str(self.folder / "containers.conf"),
            "CONTAINERS_REGISTRIES_CONF": str(self.folder / "registries.conf"),
            "TMPDIR": str(self.folder),
        }

    def trust(self, registry: str) -> None:
        """Permit plain HTTP for a registry. Call it before `start`."""
        (self.folder / "registries.conf").write_text(f'[[registry]]\nlocation = "{registry}"\ninsecure = true\n')

    def command(self, *words: str) -> list[str]:
        """Return a command line of Podman for this engine. Run it in `environment`."""
        root, run = self.folder / "root", self.folder / "run"
        return ["podman", "--root", str(root), "--runroot", str(run), "--tmpdir", str(self.folder / "t"), *words]

    def start(self) -> None:
        """Start the engine, and wait until its socket exists."""
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                self.command("system", "service", "--time=0", f"unix://{self.socket}"),
                env=self.environment,
                cwd=self.folder,  # The container monitor writes its file about lack of memory there.
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
            )
        wait_until(self.socket.exists, what=f"Podman at {self.socket}")

    def kill(self) -> None:
        """Kill the engine; containers keep running."""
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()
            self._process = None
            self.socket.unlink(missing_ok=True)

    def names(self) -> list[str]:
        """Return the names of all containers, running or not."""
        return self._run_command("ps", "--all", "--format", "{{.Names}}").split()

    def remove(self, name: str) -> None:
        """Remove a container without the node, as an operator would."""
        self._run_command("rm", "--force", "--time", "0", name)

    def _run_command(self, *words: str) -> str:
        result = subprocess.run(
            self.command(*words), env=self.environment, capture_output=True, timeout=60, check=True, text=True
        )
        return result.stdout

    def clean_up(self) -> None:
        """Remove all containers, kill the engine and everything that it started."""
        subprocess.run(
            self.command("rm", "--all", "--force", "--time", "0"),
            env=self.environment,
            capture_output=True,
            timeout=60,
        )
        self.kill()
        # Container monitors may still be running; they would mount the storage again.
        kill_remaining_processes(self.folder)
        unmount_below(self.folder)


def build_layer() -> bytes:
    """Return the image's only layer: a static busybox with its links."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for folder in ("bin", "tmp", "etc"):
            entry = tarfile.TarInfo(folder)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o755
            archive.addfile(entry)
        program = Path(shutil.which(BUSYBOX) or "/bin/busybox").read_bytes()
        entry = tarfile.TarInfo("bin/busybox")
        entry.size, entry.mode = len(program), 0o755
        archive.addfile(entry, io.BytesIO(program))
        for name in LINKS:
            entry = tarfile.TarInfo(f"bin/{name}")
            entry.type, entry.linkname = tarfile.SYMTYPE, "busybox"
            archive.addfile(entry)
    return buffer.getvalue()


def _digest(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


class Registry:
    """Serves one image under any name and tag, except `missing`. Counts downloads of its layer; can delay responses."""

    def __init__(self) -> None:
        data = build_layer()
        config = json.dumps(
            {
                "architecture": "amd64",
                "os": "linux",
                "config": {"Env": ["PATH=/bin"], "Cmd": ["sh"]},
                "rootfs": {"type": "layers", "diff_ids": [_digest(data)]},
            }
        ).encode()
        kinds = "application/vnd.docker.container.image.v1+json", "application/vnd.docker.image.rootfs.diff.tar"
        manifest_kind = "application/vnd.docker.distribution.manifest.v2+json"
        manifest = json.dumps(
            {
                "schemaVersion": 2,
                "mediaType": manifest_kind,
                "config": {"mediaType": kinds[0], "size": len(config), "digest": _digest(config)},
                "layers": [{"mediaType": kinds[1], "size": len(data), "digest": _digest(data)}],
            }
        ).encode()
        blobs = {_digest(data): data, _digest(config): config}
        registry = self
        self.layers_fetched = 0
        self.requested_paths: list[str] = []
        """The path of each request."""
        self.can_respond = threading.Event()
        self.can_respond.set()
        self.required_authorization = ""

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, format: str, *args: object) -> None:
                """Log nothing."""

            def do_HEAD(self) -> None:
                self.do_GET()

            def do_GET(self) -> None:
                registry.requested_paths.append(self.path)
                required = registry.required_authorization
                if required and self.headers.get("authorization") != required:
                    self._respond(401, "application/json", b"{}", {"www-authenticate": 'Basic realm="test"'})
                elif self.path == "/v2/":
                    self._respond(200, "application/json", b"{}", {})
                elif "/manifests/" in self.path and "/missing/" not in self.path:
                    registry.can_respond.wait(60)
                    self._respond(200, manifest_kind, manifest, {"docker-content-digest": _digest(manifest)})
                elif (blob := blobs.get(self.path.rpartition("/")[2])) is not None:
                    if blob is data:
                        registry.layers_fetched += 1
                        registry.can_respond.wait(60)
                    self._respond(200, "application/octet-stream", blob, {})
                else:
                    self._respond(404, "application/json", b'{"errors":[{"code":"MANIFEST_UNKNOWN"}]}', {})

            def _respond(self, status: int, kind: str, body: bytes, headers: dict[str, str]) -> None:
                self.send_response(status)
                for name, value in {**headers, "content-type": kind, "content-length": str(len(body))}.items():
                    self.send_header(name, value)
                self.end_headers()
                if self.command != "HEAD":
                    with contextlib.suppress(OSError):
                        self.wfile.write(body)

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.address = f"127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02})
        self._thread.start()

    def close(self) -> None:
        self.can_respond.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@contextlib.contextmanager
def running_podman() -> Iterator[tuple[Podman, Registry]]:
    """Run Podman and a registry with a temporary folder, which is deleted at the end."""
    # Not in the folder of pytest, because the paths of sockets and containers must be short.
    folder = Path(tempfile.mkdtemp(prefix="wp-"))
    registry = Registry()
    podman = Podman(folder)
    podman.trust(registry.address)
    try:
        podman.start()
        yield podman, registry
    finally:
        podman.clean_up()
        registry.close()
        shutil.rmtree(folder)
