"""The check of banned calls: the calls that it finds and the calls that it allows."""

import pytest

from tools.banned import check_source, get_module_name


def rules_broken(path: str, source: str) -> list[str]:
    return [finding.rule for finding in check_source(path, source)]


SERVER = "src/wharf/cluster/server/channel.py"
STATE = "src/wharf/cluster/state/table.py"
TEST = "tests/cluster/server/test_channel.py"


@pytest.mark.parametrize(
    ("path", "module"),
    [
        ("src/wharf/cluster/state/table.py", "wharf.cluster.state.table"),
        ("src/wharf/cluster/state/__init__.py", "wharf.cluster.state"),
        ("tests/cluster/state/test_table.py", "tests.cluster.state.test_table"),
        ("simulation/__main__.py", "simulation.__main__"),
    ],
)
def test_a_file_name_is_converted_to_its_module_name(path: str, module: str) -> None:
    assert get_module_name(path) == module


@pytest.mark.parametrize(
    ("source", "rule"),
    [
        ("import time\nnow = time.time()", "clock"),
        ("from time import monotonic as now\nnow()", "clock"),
        ("import datetime as dt\ndt.datetime.now(dt.UTC)", "clock"),
        ("from datetime import datetime\ndefault = datetime.utcnow", "clock"),
        ("import time\nbegan = time.perf_counter()", "clock"),
        ("import random\nrandom.choice([1, 2])", "chance"),
        ("from random import Random\nRandom()", "chance"),
        ("import numpy as np\nnp.random.default_rng(1)", "chance"),
        ("import os\nos.urandom(8)", "chance"),
        ("import secrets\nsecrets.token_hex()", "chance"),
        ("import uuid\nuuid.uuid4()", "ids"),
        ("import asyncio\nasyncio.create_task(work())", "tasks"),
        ("import asyncio\nasyncio.get_running_loop().create_task(work())", "tasks"),
        ("def f(loop):\n    loop.create_task(work())", "tasks"),
        ("import asyncio\nasyncio.ensure_future(work())", "tasks"),
        ("import time\ntime.sleep(1)", "blocking"),
        ("import ssl\nssl.create_default_context()", "tls-contexts"),
        ("from ssl import SSLContext, PROTOCOL_TLS_CLIENT\nSSLContext(PROTOCOL_TLS_CLIENT)", "tls-contexts"),
        ("import httpx2\nhttpx2.create_ssl_context()", "tls-contexts"),
        ("print('hello')", "print"),
        ("import threading\nthreading.Thread()", "threads"),
        ("def f(loop):\n    loop.run_in_executor(None, work)", "threads"),
    ],
)
def test_a_banned_call_is_found_under_every_import_name(source: str, rule: str) -> None:
    assert rules_broken(SERVER, source) == [rule]


@pytest.mark.parametrize(
    "source",
    [
        "import datetime\ndatetime.datetime.fromtimestamp(1, datetime.UTC)",
        "import uuid\nuuid.UUID('0' * 32)",
        "from random import Random\ndef shuffle(chance: Random) -> None: ...",
        "from random import Random\nchance = Random(7)",
        "def f(clock):\n    return clock.time()",
        "import ssl\ndef connect(context: ssl.SSLContext) -> None: ...",
        "async def f():\n    await g()",
        "def f(world):\n    world.start(work(), name='work')",
    ],
)
def test_a_harmless_call_with_a_similar_name_passes(source: str) -> None:
    assert rules_broken(SERVER, source) == []


@pytest.mark.parametrize(
    "source", ["import time\ntime.time()", "import os\nos.urandom(8)", "import uuid\nuuid.uuid4()"]
)
def test_the_world_package_may_call_the_system(source: str) -> None:
    assert rules_broken("src/wharf/world/real.py", source) == []


def test_one_module_builds_tls_contexts() -> None:
    source = "import ssl\nssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)\nssl.create_default_context()"

    assert rules_broken("src/wharf/world/tls_contexts.py", source) == []


def test_a_package_with_the_same_prefix_is_another_package() -> None:
    assert rules_broken("src/wharf/worldwide/real.py", "import time\ntime.time()") == ["clock"]


def test_a_command_may_print_and_a_simulation_may_measure_its_duration() -> None:
    assert rules_broken("src/wharf/cli/jobs.py", "print('hello')") == []
    assert rules_broken("simulation/__main__.py", "import time\nprint(time.perf_counter())") == []


def test_a_message_names_what_to_use_instead() -> None:
    (finding,) = check_source(SERVER, "import uuid\n\nuuid.uuid4()")

    assert str(finding) == (
        "src/wharf/cluster/server/channel.py:3: uuid.uuid4 is not used here: ids come from World.new_id or, in a deciding"
        " package, as an argument [ids]"
    )


@pytest.mark.parametrize("package", ["contract/model", "cluster/scheduling", "limits/core", "node/core"])
@pytest.mark.parametrize(
    "source",
    ["async def f():\n    pass", "async def f():\n    await g()", "async def f():\n    async for _ in g(): ..."],
)
def test_a_deciding_package_never_waits(package: str, source: str) -> None:
    assert set(rules_broken(f"src/wharf/{package}/part.py", source)) == {"await"}


def test_a_package_around_a_deciding_package_may_wait() -> None:
    assert rules_broken("src/wharf/limits/gateway.py", "async def f():\n    await g()") == []


def test_commands_import_the_agent_late() -> None:
    early = "from wharf.agent import run"
    late = "def command():\n    from wharf.agent import run"
    for_types = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from wharf.agent import run"

    assert rules_broken("src/wharf/cli/agent.py", early) == ["late-import"]
    assert rules_broken("src/wharf/cli/agent.py", late) == []
    assert rules_broken("src/wharf/cli/agent.py", for_types) == []


@pytest.mark.parametrize(
    "source",
    [
        "for x in {1, 2}: ...",
        "for x in set(xs): ...",
        "xs = [x for x in {y for y in ys}]",
        "xs = list(set(ys) - set(zs))",
        "xs = {x: 1 for x in a.keys() & b.keys()}",
        "def f(names: set[str]):\n    for name in names: ...",
        "def f():\n    seen = set()\n    return tuple(seen)",
        "def f(xs):\n    return next(iter(frozenset(xs)))",
        "text = ', '.join({1, 2})",
        "def f(waiting: set[int]):\n    return waiting.pop()",
        "class C:\n    def __init__(self):\n        self.xs: set[int] = set()\n    def f(self):\n        return [*self.xs]",
        "def f(a: frozenset[int], b):\n    yield from a.union(b)",
    ],
)
def test_an_iteration_over_a_set_is_found(source: str) -> None:
    assert rules_broken(STATE, source) == ["set-order"]


@pytest.mark.parametrize(
    "source",
    [
        "for x in sorted({1, 2}): ...",
        "for x in dict.fromkeys(xs): ...",
        "ok = any(x > 1 for x in {1, 2})",
        "count = len(set(xs))",
        "both = {*set(xs), *set(ys)}",
        "least = min(x for x in set(xs))",
        "def f(xs):\n    names = set(xs)\n    names = sorted(names)\n    return list(names)",
        "def f(counts: dict[str, int]):\n    return [x for x in counts]",
        "squares = {x * x for x in {1, 2}}",
        "def f(stack: list[int]):\n    return stack.pop()",
    ],
)
def test_a_set_may_be_used_where_its_order_does_not_show(source: str) -> None:
    assert rules_broken(STATE, source) == []


@pytest.mark.parametrize(
    ("source", "rule"),
    [
        ("import pytest\n@pytest.mark.skip(reason='later')\ndef test_it(): ...", "skipped-test"),
        ("import pytest\n@pytest.mark.xfail\ndef test_it(): ...", "skipped-test"),
        ("import pytest\npytest.importorskip('redis')", "skipped-test"),
        ("import time\ntime.sleep(0.1)", "sleeping-test"),
        ("import asyncio\nasync def f():\n    await asyncio.sleep(0.1)", "sleeping-test"),
        ("from unittest.mock import patch\npatch('x')", "mock"),
    ],
)
def test_tests_neither_skip_nor_sleep_nor_mock(source: str, rule: str) -> None:
    assert rules_broken(TEST, source) == [rule]


def test_a_test_may_sleep_for_zero_seconds() -> None:
    assert rules_broken(TEST, "import asyncio\nasync def f():\n    await asyncio.sleep(0)") == []


@pytest.mark.parametrize(
    "source",
    [
        "import os\nos.chmod(folder / 'x', 0o777)",
        "from os import mkdir\nmkdir(path)",
        "marker.touch()",
        "(folders.task / 'x').read_bytes()",
        "import os\nos.path.isdir(path)",
        "with open(path) as file: ...",
    ],
)
def test_a_call_that_follows_links_of_tasks_is_found(source: str) -> None:
    assert rules_broken("src/wharf/node/tasks/artifacts.py", source) == ["task-folders"]
    assert rules_broken("src/wharf/node/tasks/folders.py", source) == []
    assert rules_broken("src/wharf/node/volumes/plugins.py", source) == []


@pytest.mark.parametrize(
    "source",
    [
        "import os\nos.mkdir(name, 0o700, dir_fd=folder)",
        "import os\nos.rename(a, b, src_dir_fd=old, dst_dir_fd=new)",
        "import os\nos.chmod(get_descriptor_path(entry), 0o666)",
        "import os\nfile = open(os.open(name, flags, dir_fd=folder), 'rb')",
        "ConfinedFolder(folder).replace_file(name, data, 0o600)",
    ],
)
def test_a_call_on_an_open_folder_of_a_task_is_not_found(source: str) -> None:
    assert rules_broken("src/wharf/node/tasks/artifacts.py", source) == []
