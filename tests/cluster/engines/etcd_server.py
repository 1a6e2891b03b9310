"""Real etcd servers for tests: one or several members on free ports, with data in a folder of the test."""

import contextlib
import http.client
import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.ports import free_ports
from tests.waiting import wait_until


class EtcdMember:
    """One etcd process."""

    def __init__(self, name: str, folder: Path, *, client_port: int, peer_port: int, options: Sequence[str]) -> None:
        self.name = name
        self.data = folder / name
        self.endpoint = f"127.0.0.1:{client_port}"
        self.peer_url = f"http://127.0.0.1:{peer_port}"
        self.scheme = "https" if any(option.startswith("--cert-file") for option in options) else "http"
        self._log = folder / f"{name}.log"
        self._options = list(options)
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, cluster: str) -> None:
        """Start the process. `cluster` lists the peer URLs of all members."""
        assert self._process is None, f"{self.name} runs already"
        client_url = f"{self.scheme}://{self.endpoint}"
        command = [
            "etcd",
            f"--name={self.name}",
            f"--data-dir={self.data}",
            f"--listen-client-urls={client_url}",
            f"--advertise-client-urls={client_url}",
            f"--listen-peer-urls={self.peer_url}",
            f"--initial-advertise-peer-urls={self.peer_url}",
            f"--initial-cluster={cluster}",
            "--log-level=error",
            *self._options,
        ]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)

    def is_healthy(self) -> bool:
        """Return whether the member replies and has a leader. Over TLS, whether it accepts connections."""
        assert self._process is not None, f"{self.name} was not started"
        assert self._process.poll() is None, f"{self.name} ended: {self._log.read_text(errors='replace')[-2000:]}"
        if self.scheme == "https":
            return self._accepts()
        host, port = self.endpoint.split(":")
        connection = http.client.HTTPConnection(host, int(port), timeout=2)
        with contextlib.closing(connection):
            try:
                connection.request("GET", "/health")
                response = connection.getresponse()
                return response.status == 200 and b"true" in response.read()
            except (OSError, http.client.HTTPException):
                return False

    def _accepts(self) -> bool:
        host, port = self.endpoint.split(":")
        with contextlib.suppress(OSError), socket.create_connection((host, int(port)), timeout=2):
            return True
        return False

    def kill(self) -> None:
        """Kill the process with SIGKILL. Unsynced data is lost."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def pid(self) -> int:
        assert self._process is not None, f"{self.name} was not started"
        return self._process.pid

    def pause(self) -> None:
        os.kill(self.pid(), signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self.pid(), signal.SIGCONT)


class EtcdCluster:
    """A cluster of etcd members. `running_etcd` starts it and kills its members."""

    def __init__(self, folder: Path, *, members: int = 1, options: Sequence[str] = ()) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        ports = free_ports(members * 2)
        self.members = [
            EtcdMember(
                f"m{n}", folder, client_port=ports[2 * n], peer_port=ports[2 * n + 1], options=options
            )
            for n in range(members)
        ]  # fmt: skip

    @property
    def endpoints(self) -> tuple[str, ...]:
        return tuple(member.endpoint for member in self.members)

    @property
    def initial_cluster(self) -> str:
        return ",".join(f"{member.name}={member.peer_url}" for member in self.members)

    def start(self, *members: EtcdMember) -> None:
        """Start these members, or all, and wait until each is part of a cluster with a leader."""
        starting = members or tuple(self.members)
        for member in starting:
            member.start(self.initial_cluster)
        for member in starting:
            wait_until(member.is_healthy, what=f"etcd member {member.name} is healthy")

    def kill(self) -> None:
        for member in self.members:
            member.kill()

    def leader(self) -> EtcdMember:
        """Return the current leader, as etcdctl shows it."""

        def find() -> EtcdMember | None:
            for member in self.members:
                status = self.ctl("endpoint", "status", "--write-out=fields", endpoint=member.endpoint, check=False)
                fields = dict(line.split(" : ") for line in status.splitlines() if " : " in line)
                if fields and fields.get('"MemberID"') == fields.get('"Leader"'):
                    return member
            return None

        return wait_until(find, what="the cluster has a leader")

    def ctl(self, *arguments: str, endpoint: str = "", check: bool = True) -> str:
        """Run etcdctl and return its output."""
        command = ["etcdctl", f"--endpoints={endpoint or self.endpoints[0]}", *arguments]
        environment = os.environ | {"ETCDCTL_API": "3"}
        process = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=30)
        assert process.returncode == 0 or not check, f"{' '.join(command)}: {process.stderr}"
        return process.stdout

    def save_snapshot(self) -> Path:
        file = self.folder / "snapshot.db"
        self.ctl("snapshot", "save", str(file))
        return file

    def restore_snapshot(self, file: Path) -> None:
        """Replace the only member's data by the snapshot, as an operator would, and start it again."""
        (member,) = self.members
        member.kill()
        shutil.rmtree(member.data)
        self.ctl(
            "snapshot",
            "restore",
            str(file),
            f"--name={member.name}",
            f"--data-dir={member.data}",
            f"--initial-cluster={self.initial_cluster}",
            f"--initial-advertise-peer-urls={member.peer_url}",
        )
        self.start()


@contextlib.contextmanager
def running_etcd(folder: Path, *, members: int = 1, options: Sequence[str] = ()) -> Iterator[EtcdCluster]:
    cluster = EtcdCluster(folder, members=members, options=options)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.kill()
