"""Settings of all tests: the rules for machine abilities, the Hypothesis profiles, and the order of files."""

import gc
import getpass
import os
import signal
import sys
import tempfile
from collections.abc import Generator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.abilities import PROBES, AbilityRules, is_ci, read_allowed
from tests.attempts import pytest_runtest_call as pytest_runtest_call
from tests.failures import pytest_runtest_makereport as pytest_runtest_makereport
from tests.file_durations import FileDurations
from tests.file_order import pytest_collection_modifyitems as pytest_collection_modifyitems
from tests.mounts import unmount_left_by_test_runs
from wharf.agent.forks import disable_grpc_fork_support
from wharf.cluster.state.codec import RecordDecoder

# Always store bytecode, whatever the environment says. Tests start hundreds of agents of up to five processes, and each
# process would compile all modules again: half of the processor time of its start.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

disable_grpc_fork_support()  # Some tests fork this process, and forks never use gRPC.

# No deadline: cores are shared, so the duration of an example means nothing. Tests leave `max_examples` to the profile, so
# `make fuzz` can raise it for all of them.
settings.register_profile("local", deadline=None, max_examples=50, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", settings.get_profile("local"), derandomize=True, database=None, print_blob=True)
settings.register_profile("fuzz", settings.get_profile("local"), max_examples=2_000, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE") or ("ci" if is_ci(os.environ) else "local"))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--rewrite-golden", action="store_true", help="rewrite the transcripts of tests/golden")
    parser.addoption(
        "--slowest-files", type=int, default=0, metavar="COUNT", help="list this many of the slowest files at the end"
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "fuzz: requests made up by chance; `make fuzz` makes many more")
    config.addinivalue_line(
        "markers", "faults: a long proof by real faults, run by `make faults` and not by `make test`"
    )
    allowed = read_allowed(Path(__file__).with_name("unavailable.toml"))
    config.pluginmanager.register(
        AbilityRules(probes=PROBES, allowed=allowed, in_ci=is_ci(os.environ)), "ability-rules"
    )
    if count := config.getoption("slowest_files"):
        config.pluginmanager.register(FileDurations(count), "file-durations")


def pytest_sessionstart() -> None:
    """Verify in every test that adopted records equal the records that others decode."""
    RecordDecoder.should_verify_adopted = True
    # A shell may start background tests with these signals ignored. All programs that tests start would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, lambda *_: None)


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Unmount what tests left mounted, before pytest deletes the folders of old runs."""
    if not hasattr(session.config, "workerinput"):
        unmount_left_by_test_runs(Path(tempfile.gettempdir()) / f"pytest-of-{getpass.getuser()}")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect tests without garbage collection: they and the imported modules stay, and scanning them takes seconds."""
    gc.disable()
    try:
        return (yield)
    finally:
        _freeze_objects()
        gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Freeze the garbage collector's objects after each file: caches would make later virtual-time tests ten times slower."""
    if nextitem is None or nextitem.path != item.path:
        _freeze_objects()


def _freeze_objects() -> None:
    """Exempt all current objects from garbage collection, which each test in virtual time runs at its end."""
    gc.collect()
    gc.freeze()
