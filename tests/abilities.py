"""System programs and machine abilities (such as writing cgroups) that tests require.

    @pytest.mark.needs_program("etcd")      the test starts this program
    @pytest.mark.needs("cgroups")           the machine must be able to do this; the probes are below

A missing program can be installed: its tests are skipped and listed, and in CI (CI=true) they fail. Abilities are detected
by probes. If an ability is missing, the tests that `tests/unavailable.toml` lists with this probe count as `unavailable`,
and all other tests that need it fail. A listed test runs on machines that have the ability. In CI no test may be skipped
for any other reason.
"""

import os
import shutil
import subprocess
import tempfile
import tomllib
from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from wharf.node.networks.namespaces import find_bridge_error

Probe = Callable[[], str | None]  # Returns why the ability is missing, or None if the machine has it.

# The package of each program in the distribution, for the message that names what to install.
PACKAGES = {
    "etcd": "etcd-server",
    "etcdctl": "etcd-client",
    "redis-server": "redis-server",
    "chromium": "chromium",
    "podman": "podman",
    "runc": "runc",
    "busybox": "busybox-static",
    "iptables": "iptables",
    "nginx": "nginx-light",
    "gcc": "gcc",
    "zsh": "zsh",
    "fish": "fish",
    "systemd-analyze": "systemd",
}


def probe_cgroups() -> str | None:
    """Create and remove a control group in the group of this process."""
    mounted = Path("/sys/fs/cgroup")
    if not (mounted / "cgroup.controllers").exists():
        return "cgroup v2 is not mounted at /sys/fs/cgroup"
    lines = Path("/proc/self/cgroup").read_text("utf-8").splitlines()
    own = next((line.removeprefix("0::") for line in lines if line.startswith("0::")), "/")
    group = mounted / own.lstrip("/") / f"wharf-probe-{os.getpid()}"
    try:
        group.mkdir()
    except OSError as error:
        return f"a control group cannot be made: {error.strerror}"
    try:
        with (group / "cgroup.procs").open("w"):
            return None
    except OSError as error:
        return f"a control group cannot be filled: {error.strerror}"
    finally:
        group.rmdir()


def probe_processor_limits() -> str | None:
    """Create and remove a control group that limits processor time, in version 1 or 2 of control groups."""
    mounted = Path("/sys/fs/cgroup")
    is_version_2 = (mounted / "cgroup.controllers").exists()
    group = (mounted if is_version_2 else mounted / "cpu") / f"wharf-probe-{os.getpid()}"
    try:
        group.mkdir()
    except OSError as error:
        return f"a control group cannot be made: {error.strerror}"
    has_limit = (group / ("cpu.max" if is_version_2 else "cpu.cfs_quota_us")).exists()
    group.rmdir()
    return None if has_limit else "control groups do not limit processor time"


def probe_namespaces() -> str | None:
    """Start a program in new namespaces."""
    command = ["unshare", "--mount", "--pid", "--fork", "true"]
    try:
        process = subprocess.run(command, capture_output=True, text=True, timeout=10)
    except FileNotFoundError:
        return "the program unshare is missing"
    except subprocess.TimeoutExpired:
        return "unshare did not end within 10 s"
    return None if process.returncode == 0 else process.stderr.strip() or f"unshare ended with {process.returncode}"


def probe_containers() -> str | None:
    """Run a program in a container with Podman, from an empty root folder."""
    podman, busybox = shutil.which("podman"), shutil.which("busybox")
    if podman is None or busybox is None:
        return None  # `needs_program` reports a missing program.
    # The container's monitor can still write into the folder after Podman has ended.
    with tempfile.TemporaryDirectory(prefix="wp-", ignore_cleanup_errors=True) as folder:
        root = Path(folder) / "rootfs"
        root.mkdir()
        shutil.copy(busybox, root / "busybox")
        options = ["--root", f"{folder}/root", "--runroot", f"{folder}/run", "--tmpdir", f"{folder}/t"]
        runtime = shutil.which("runc", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin") or "runc"
        command = [podman, *options, "--storage-driver", "vfs", "--runtime", runtime, "--cgroup-manager", "cgroupfs"]
        command += ["run", "--rm", "--network", "none", "--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1024:1024"]
        try:
            process = subprocess.run(
                [*command, "--rootfs", str(root), "/busybox", "true"], capture_output=True, text=True, timeout=60
            )
        except subprocess.TimeoutExpired:
            return "a container did not end within 60 s"
        return (
            None
            if process.returncode == 0
            else process.stderr.strip()[-200:] or f"podman ended with {process.returncode}"
        )


def probe_memory_bounds() -> str | None:
    """Create and remove a control group, of version 1 or 2, that can limit memory."""
    for root, file in (("memory", "memory.limit_in_bytes"), ("", "memory.max")):
        group = Path("/sys/fs/cgroup", root, f"wharf-probe-{os.getpid()}")
        try:
            group.mkdir()
        except OSError:
            continue
        has_limit = (group / file).exists()
        group.rmdir()
        if has_limit:
            return None
    return "no control group that bounds memory can be made"


def probe_bridges() -> str | None:
    """Create a bridge and list its iptables rules, in a separate network namespace."""
    iptables = shutil.which("iptables")
    if iptables is None:
        return None  # `needs_program` reports a missing program.
    if error := find_bridge_error():
        return error
    command = ["unshare", "--net", iptables, "--table", "nat", "--list-rules"]
    try:
        process = subprocess.run(command, capture_output=True, text=True, timeout=10)
    except FileNotFoundError:
        return "the program unshare is missing"
    return None if process.returncode == 0 else process.stderr.strip() or f"iptables ended with {process.returncode}"


def probe_mounts() -> str | None:
    """Mount a small tmpfs and unmount it."""
    with tempfile.TemporaryDirectory(prefix="wm-") as folder:
        try:
            process = subprocess.run(
                ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", folder], capture_output=True, text=True, timeout=10
            )
        except FileNotFoundError:
            return "the program mount is missing"
        if process.returncode == 0:
            subprocess.run(["umount", folder], capture_output=True, timeout=10)
            return None
        return process.stderr.strip() or f"mount ended with {process.returncode}"


def probe_file_owners() -> str | None:
    """Give a file to another user."""
    with tempfile.NamedTemporaryFile() as file:
        try:
            os.chown(file.name, 65_534, 65_534)
        except OSError as error:
            return f"a file cannot be given to another user: {error.strerror}"
    return None


def probe_breaking_disks() -> str | None:
    """Mount a file as an ext4 disk and check that the kernel can simulate errors of it."""
    make = shutil.which("mkfs.ext4", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
    if make is None:
        return None  # `needs_program` reports a missing program.
    with tempfile.TemporaryDirectory(prefix="wd-") as folder:
        image, mount_point = Path(folder) / "image", Path(folder) / "place"
        image.write_bytes(bytes(1 << 20))
        mount_point.mkdir()
        before = set(Path("/sys/fs/ext4").glob("*/trigger_fs_error"))
        for command in ([make, "-q", str(image)], ["mount", "-o", "loop", str(image), str(mount_point)]):
            process = subprocess.run(command, capture_output=True, text=True, timeout=10)
            if process.returncode:
                return process.stderr.strip() or f"{command[0]} ended with {process.returncode}"
        has_limit = bool(set(Path("/sys/fs/ext4").glob("*/trigger_fs_error")) - before)
        subprocess.run(["umount", str(mount_point)], capture_output=True, timeout=10)
    return None if has_limit else "the kernel does not let a disk be broken"


PROBES: Mapping[str, Probe] = {
    "breaking_disks": probe_breaking_disks,
    "bridges": probe_bridges,
    "file_owners": probe_file_owners,
    "mounts": probe_mounts,
    "cgroups": probe_cgroups,
    "processor_limits": probe_processor_limits,
    "namespaces": probe_namespaces,
    "memory_bounds": probe_memory_bounds,
    "containers": probe_containers,
}


@dataclass(frozen=True, slots=True)
class Allowed:
    """One entry of tests/unavailable.toml."""

    id: str
    probe: str
    because: str


def read_allowed(file: Path) -> list[Allowed]:
    return [Allowed(**entry) for entry in tomllib.loads(file.read_text("utf-8")).get("test", [])]


def is_ci(environment: Mapping[str, str]) -> bool:
    return environment.get("CI", "").lower() not in ("", "0", "false")


UNAVAILABLE = pytest.StashKey[str]()

# Keys of a worker's output: the results of its probes, and the errors that reject the run.
PROBE_RESULTS, REFUSALS = "abilities", "refusals"


class AbilityRules:
    """The pytest plugin that enforces the rules in the docstring of this module."""

    def __init__(self, *, probes: Mapping[str, Probe], allowed: Iterable[Allowed], in_ci: bool) -> None:
        self._probes = probes
        self._allowed = tuple(allowed)
        self._in_ci = in_ci
        self._probe_results: dict[str, str | None] = {}
        self._unavailable: list[tuple[str, str]] = []
        self._skipped: list[str] = []
        self._refusals: list[str] = []
        for entry in self._allowed:
            if entry.probe not in probes:
                raise pytest.UsageError(
                    f"unavailable.toml: {entry.id} names the probe {entry.probe}, which does not exist"
                )

    def pytest_configure(self, config: pytest.Config) -> None:
        config.addinivalue_line("markers", "needs(ability): what the machine must be able to do (tests/abilities.py)")
        config.addinivalue_line("markers", "needs_program(name): a system program that the test starts")

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        collected = {_plain_id(item): item for item in items}
        is_whole = config.args_source is pytest.Config.ArgsSource.TESTPATHS
        for entry in self._allowed:
            item = collected.get(entry.id)
            if item is None and is_whole:
                self._refuse(config, f"unavailable.toml names {entry.id}, which does not exist: remove the entry")
            if item is not None and entry.probe not in _needed(item, "needs"):
                self._refuse(config, f'unavailable.toml: {entry.id} is not marked as needs("{entry.probe}")')

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        for program in _needed(item, "needs_program"):
            if shutil.which(program) is None:
                reason = f"the program {program} is missing (package {PACKAGES.get(program, program)})"
                if self._in_ci:
                    pytest.fail(f"{reason}; CI installs what tests need", pytrace=False)
                pytest.skip(reason)
        for ability in _needed(item, "needs"):
            if ability not in self._probes:
                known = ", ".join(sorted(self._probes))
                pytest.fail(f"there is no probe for {ability}; there are {known} (tests/abilities.py)", pytrace=False)
            missing_reason = self._run_probe(ability)
            if missing_reason is None:
                continue
            if not any(entry.id == _plain_id(item) and entry.probe == ability for entry in self._allowed):
                pytest.fail(
                    f"the machine lacks {ability} ({missing_reason}), and tests/unavailable.toml does not name this test for it",
                    pytrace=False,
                )
            item.stash[UNAVAILABLE] = f"{ability}: {missing_reason}"
            pytest.skip(f"unavailable: {ability}: {missing_reason}")

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        reason = item.stash.get(UNAVAILABLE, None)
        if call.when == "setup" and report.skipped and reason is not None:
            report.user_properties.append(("unavailable", reason))
        return report

    @pytest.hookimpl(tryfirst=True)
    def pytest_report_teststatus(self, report: pytest.TestReport | pytest.CollectReport) -> tuple[str, str, str] | None:
        return None if _unavailable_because(report) is None else ("unavailable", "u", "UNAVAILABLE")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        reason = _unavailable_because(report)
        if reason is not None:
            self._unavailable.append((report.nodeid, reason))
        elif report.skipped:
            self._skipped.append(report.nodeid)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.skipped:
            self._skipped.append(report.nodeid)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self._in_ci and self._skipped and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
        if (output := _workers_output(session.config)) is not None:
            output.update({PROBE_RESULTS: self._probe_results, REFUSALS: self._refusals})
        elif self._refusals:
            session.exitstatus = pytest.ExitCode.USAGE_ERROR

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: object) -> None:
        """Collect the results of a pytest-xdist worker: workers probe, and the controller prints the summary."""
        output = getattr(node, "workeroutput", {})
        self._probe_results.update(output.get(PROBE_RESULTS, {}))
        self._refusals.extend(text for text in output.get(REFUSALS, []) if text not in self._refusals)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        for text in self._refusals:
            terminalreporter.write_line(f"ERROR: {text}", red=True)
        for ability, missing_reason in sorted(self._probe_results.items()):
            terminalreporter.write_line(
                f"ability {ability}: {'there' if missing_reason is None else f'missing, {missing_reason}'}"
            )
        for nodeid, reason in self._unavailable:
            terminalreporter.write_line(f"UNAVAILABLE {nodeid} ({reason})")
        for nodeid in self._skipped:
            end = "CI allows none to be skipped, so this run has failed" if self._in_ci else "in CI this would fail"
            terminalreporter.write_line(f"SKIPPED {nodeid}: {end}")

    def _refuse(self, config: pytest.Config, text: str) -> None:
        """End the run with this error. A worker must run its tests first, so it passes the text to the controller."""
        if _workers_output(config) is None:
            raise pytest.UsageError(text)
        self._refusals.append(text)

    def _run_probe(self, ability: str) -> str | None:
        if ability not in self._probe_results:
            self._probe_results[ability] = self._probes[ability]()
        return self._probe_results[ability]


def _needed(item: pytest.Item, marker: str) -> list[str]:
    return [name for mark in item.iter_markers(marker) for name in mark.args]


def _workers_output(config: pytest.Config) -> dict[str, object] | None:
    """Return the output that this process passes to the controller, if it is a pytest-xdist worker."""
    output: dict[str, object] | None = getattr(config, "workeroutput", None)
    return output


def _plain_id(item: pytest.Item) -> str:
    """Return the id of a test without its parameters: all of its cases share one entry."""
    return item.nodeid.partition("[")[0]


def _unavailable_because(report: pytest.TestReport | pytest.CollectReport) -> str | None:
    if not isinstance(report, pytest.TestReport) or not report.skipped:
        return None
    return next((str(value) for name, value in report.user_properties if name == "unavailable"), None)
