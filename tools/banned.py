"""Find calls that the architecture bans, and name what to use instead.

Most rules are data: a set of names, the packages in which they are banned, and the replacement. `tools/allowed.toml` lists
exceptions with their reasons; an entry that nothing needs any more is reported.
"""

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from tools.allowances import print_remaining_findings
from tools.findings import ROOT, Finding
from tools.imported_names import ImportedNames, imported_modules
from tools.set_order import find_set_iterations

CHECKED_FOLDERS = ("src/wharf", "simulation", "benchmarks", "tests", "tools")

# These compute a result from their arguments and never wait.
SYNCHRONOUS_PACKAGES = (
    *("wharf.contract.model", "wharf.contract.wire", "wharf.job_files", "wharf.languages"),
    *("wharf.cluster.state", "wharf.cluster.scheduling", "wharf.cluster.access", "wharf.cluster.operations"),
    *("wharf.cluster.controllers", "wharf.limits.core", "wharf.node.core"),
)
# These run in the simulation, where one seed must always give the same history.
SIMULATED_PACKAGES = (
    *("wharf.cluster.server", "wharf.cluster.operations", "wharf.cluster.controllers", "wharf.cluster.api"),
    *("wharf.cluster.state", "wharf.node.core"),
)

TLS_CONTEXT_MODULE = "wharf.world.tls_contexts"
TLS_CONTEXT_ADVICE = (
    f"{TLS_CONTEXT_MODULE}, which reads the certificates once: load_client_context on an event loop, get_client_context "
    "where the caller may wait 20 ms"
)


@dataclass(frozen=True, slots=True)
class BannedNames:
    """Names that must not be used in some packages. A name ending in `.*` stands for all below it."""

    rule: str
    names: tuple[str, ...]
    packages: tuple[str, ...]
    instead: str
    excepted_packages: tuple[str, ...] = ()

    def covers_package(self, module: str) -> bool:
        return is_inside(module, self.packages) and not is_inside(module, self.excepted_packages)

    def covers_name(self, name: str) -> bool:
        return any(name.startswith(n[:-1]) if n.endswith(".*") else name == n for n in self.names)


BANNED_NAMES = (
    BannedNames(
        rule="wait-for",
        names=("asyncio.wait_for",),
        packages=("wharf",),
        instead="use `async with asyncio.timeout`: in Python 3.11, `wait_for` loses a cancellation that arrives with the result",
    ),
    BannedNames(
        rule="clock",
        names=(
            *("time.time", "time.time_ns", "time.monotonic", "time.monotonic_ns", "time.clock_gettime"),
            *("time.clock_gettime_ns", "time.localtime", "time.gmtime", "time.ctime"),
            *("datetime.datetime.now", "datetime.datetime.utcnow", "datetime.datetime.today", "datetime.date.today"),
        ),
        packages=("wharf", "simulation"),
        excepted_packages=("wharf.world",),
        instead="time comes from World (now_ns, monotonic_s) or, in a deciding package, as an argument",
    ),
    BannedNames(
        rule="clock",
        names=("time.perf_counter", "time.perf_counter_ns", "time.process_time", "time.process_time_ns"),
        packages=("wharf",),  # A simulation may print its duration.
        excepted_packages=("wharf.world",),
        instead="durations are differences of World.monotonic_s",
    ),
    BannedNames(
        rule="chance",
        names=("random.*", "numpy.random.*", "os.urandom", "os.getrandom", "secrets.*"),
        packages=("wharf", "simulation"),
        excepted_packages=("wharf.world",),
        instead="chance comes from World (random, token_bytes, new_secret); hmac.compare_digest compares secrets",
    ),
    BannedNames(
        rule="ids",
        names=("uuid.uuid1", "uuid.uuid4", "uuid.uuid6", "uuid.uuid7"),
        packages=("wharf", "simulation"),
        excepted_packages=("wharf.world",),
        instead="ids come from World.new_id or, in a deciding package, as an argument",
    ),
    BannedNames(
        rule="tasks",
        names=("asyncio.create_task", "asyncio.ensure_future", "asyncio.TaskGroup", "asyncio.tasks.*"),
        packages=("wharf", "simulation"),
        excepted_packages=("wharf.world",),
        instead="tasks begin at World.start, so that a simulation knows them all",
    ),
    BannedNames(
        rule="threads",
        names=(
            *("threading.Thread", "threading.Timer", "_thread.*", "multiprocessing.*", "concurrent.futures.*"),
            *("subprocess.*", "os.fork", "asyncio.to_thread", "asyncio.create_subprocess_exec"),
            "asyncio.create_subprocess_shell",
        ),
        packages=tuple(dict.fromkeys((*SIMULATED_PACKAGES, *SYNCHRONOUS_PACKAGES))),
        instead="threads and processes belong to wharf.agent and to adapters",
    ),
    BannedNames(
        rule="programs",
        names=("asyncio.create_subprocess_exec", "asyncio.create_subprocess_shell"),
        packages=("wharf",),
        instead="wharf.node.subprocesses.start_program, whose programs inherit no other open file",
    ),
    BannedNames(
        rule="blocking",
        names=("time.sleep",),
        packages=("wharf",),
        excepted_packages=("wharf.world",),
        instead="await asyncio.sleep on a loop; a thread waits on a threading.Event, so that it can be ended",
    ),
    BannedNames(
        rule="http-clients",
        names=("httpx2.AsyncClient", "httpx2.Client", "httpx2.get", "httpx2.post", "httpx2.request", "httpx2.stream"),
        packages=("wharf",),
        excepted_packages=("wharf.world.http_clients",),
        instead="wharf.world.http_clients, whose replies are limited",
    ),
    BannedNames(
        rule="tls-contexts",
        names=(
            *("ssl.create_default_context", "ssl._create_unverified_context", "ssl._create_default_https_context"),
            *("ssl._create_stdlib_context", "httpx2.create_ssl_context", "httpcore2.default_ssl_context"),
        ),
        packages=("wharf",),
        excepted_packages=(TLS_CONTEXT_MODULE,),
        instead=TLS_CONTEXT_ADVICE,
    ),
    BannedNames(
        rule="skipped-test",
        names=(
            *("pytest.mark.skip", "pytest.mark.skipif", "pytest.mark.xfail", "pytest.skip", "pytest.xfail"),
            *("pytest.importorskip", "unittest.skip", "unittest.skipIf", "unittest.skipUnless"),
        ),
        packages=("tests", "simulation", "benchmarks"),
        instead='@pytest.mark.needs("<ability>") or needs_program("<program>") where the machine may lack it; otherwise fix the test',
    ),
    BannedNames(
        rule="sleeping-test",
        names=("time.sleep", "asyncio.sleep", "anyio.sleep"),
        packages=("tests",),
        instead="wait for a state with a deadline (tests.waiting), or pass the time in",
    ),
    BannedNames(
        rule="mock",
        names=("unittest.mock.*",),
        packages=("tests",),
        instead="use the in-memory adapter of the port (or write it: a mock says that a port is missing)",
    ),
)

# These read and write in folders in which tasks write too. `tasks.folders` also works in their parents.
TASK_FOLDER_PACKAGES = ("wharf.node.tasks", "wharf.node.migration.archive")
TASK_FOLDER_EXCEPTIONS = ("wharf.node.tasks.folders",)
PATH_FUNCTIONS = frozenset(
    f"os.{name}"
    for name in (
        *("open", "mkdir", "makedirs", "mknod", "mkfifo", "chmod", "chown", "lchown", "rename", "renames", "replace"),
        *(
            "unlink",
            "remove",
            "rmdir",
            "removedirs",
            "symlink",
            "link",
            "readlink",
            "stat",
            "lstat",
            "utime",
            "truncate",
        ),
        *("walk", "path.exists", "path.lexists", "path.isdir", "path.isfile", "path.islink", "path.realpath"),
    )
)
PATH_METHODS = frozenset(
    (
        *(
            "touch",
            "write_text",
            "write_bytes",
            "read_text",
            "read_bytes",
            "mkdir",
            "chmod",
            "unlink",
            "rmdir",
            "iterdir",
        ),
        *("symlink_to", "hardlink_to", "readlink", "is_dir", "is_file", "is_symlink", "glob", "rglob", "lstat"),
    )
)
DESCRIPTOR_KEYWORDS = frozenset(("dir_fd", "src_dir_fd", "dst_dir_fd"))

RULES = frozenset(
    {*(banned.rule for banned in BANNED_NAMES), "print", "await", "late-import", "set-order", "task-folders"}
)


def is_inside(module: str, packages: Iterable[str]) -> bool:
    return any(module == package or module.startswith(f"{package}.") for package in packages)


def get_module_name(path: str) -> str:
    """Return the dotted name of a file of the project: src/wharf/cluster/state/__init__.py is wharf.cluster.state."""
    parts = path.removeprefix("src/").removesuffix(".py").split("/")
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def check_source(path: str, source: str) -> list[Finding]:
    """Return the findings of one file. The path decides which rules apply."""
    tree = ast.parse(source, filename=path)
    module = get_module_name(path)
    found = [
        *_check_names(path, module, tree),
        *_check_methods(path, module, tree),
        *_check_prints(path, module, tree),
        *_check_waiting(path, module, tree),
        *_check_late_imports(path, module, tree),
        *_check_set_order(path, module, tree),
        *_check_task_folders(path, module, tree),
    ]
    return sorted(set(found))


def _check_names(path: str, module: str, tree: ast.Module) -> Iterator[Finding]:
    """Yield a finding for each use of a banned name, unless the use is harmless."""
    rules = [rule for rule in BANNED_NAMES if rule.covers_package(module)]
    if not rules:
        return
    names = ImportedNames(tree)
    harmless = {id(node) for node in _harmless_uses(tree, names)}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Attribute | ast.Name) or id(node) in harmless:
            continue
        name = names.resolve(node)
        for rule in rules:
            if name is not None and rule.covers_name(name):
                yield Finding(path, node.lineno, rule.rule, f"{name} is not used here: {rule.instead}")


def _harmless_uses(tree: ast.Module, names: ImportedNames) -> Iterator[ast.expr]:
    """Yield harmless uses of banned names: a seeded generator, its type, and `asyncio.sleep(0)`."""
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=function, args=[ast.Constant(value=0)]) if names.resolve(function) == "asyncio.sleep":
                yield function
            case ast.Name() | ast.Attribute() if names.resolve(node) == "random.Random":
                if not any(_is_unseeded(call, node) for call in ast.walk(tree)):
                    yield node
            case _:
                pass


def _is_unseeded(call: ast.AST, function: ast.expr) -> bool:
    return isinstance(call, ast.Call) and call.func is function and not call.args and not call.keywords


def _check_methods(path: str, module: str, tree: ast.Module) -> Iterator[Finding]:
    """Yield a finding for each call of a method `create_task`, of the type of TLS contexts, and in simulated packages also
    of `run_in_executor`.

    The methods are found by name, because the type of their object is unknown. The type may be used in annotations.
    """
    if not is_inside(module, ("wharf", "simulation")) or is_inside(module, ("wharf.world",)):
        return
    names = ImportedNames(tree)
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=function) if names.resolve(function) == "ssl.SSLContext" and is_inside(
                module, ("wharf",)
            ):
                yield Finding(
                    path, node.lineno, "tls-contexts", f"ssl.SSLContext is not used here: {TLS_CONTEXT_ADVICE}"
                )
            case ast.Call(func=ast.Attribute(attr="create_task") as function) if names.resolve(function) is None:
                yield Finding(path, node.lineno, "tasks", "create_task is not used here: tasks begin at World.start")
            case ast.Call(func=ast.Attribute(attr="run_in_executor")) if is_inside(module, SIMULATED_PACKAGES):
                message = "run_in_executor is not used here: threads belong to wharf.agent and to adapters"
                yield Finding(path, node.lineno, "threads", message)
            case _:
                pass


def _check_prints(path: str, module: str, tree: ast.Module) -> Iterator[Finding]:
    """Yield a finding for each call of `print` outside of the command line interface."""
    if not is_inside(module, ("wharf",)) or is_inside(module, ("wharf.cli",)):
        return
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Name(id="print")):
                message = "print is for wharf.cli: log the text, or return it to the command that prints it"
                yield Finding(path, node.lineno, "print", message)
            case _:
                pass


def _check_waiting(path: str, module: str, tree: ast.Module) -> Iterator[Finding]:
    """Yield a finding for each `async` and `await` in packages that must not wait."""
    if not is_inside(module, SYNCHRONOUS_PACKAGES):
        return
    for node in ast.walk(tree):
        match node:
            case ast.AsyncFunctionDef() | ast.Await() | ast.AsyncFor() | ast.AsyncWith():
                message = "this package decides and never waits: return the effect; wharf.cluster.server carries it out"
                yield Finding(path, node.lineno, "await", message)
            case _:
                pass


def _check_late_imports(path: str, module: str, tree: ast.Module) -> Iterator[Finding]:
    """Yield a finding for each import at the top of a command's module that would slow down `wharf --help`."""
    if not is_inside(module, ("wharf.cli",)):
        return
    for node in _outside_functions(tree):
        for name in imported_modules(node):
            if is_inside(name, ("wharf.agent", "wharf.limits")):
                message = f"{name} is imported inside the command that needs it, so that `wharf --help` stays quick"
                yield Finding(path, getattr(node, "lineno", 1), "late-import", message)
                break


def _outside_functions(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of a module that run when it is imported: those outside of functions and of imports for types."""
    for child in ast.iter_child_nodes(node):
        is_for_types_only = isinstance(child, ast.If) and ast.unparse(child.test).endswith("TYPE_CHECKING")
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef) and not is_for_types_only:
            yield child
            yield from _outside_functions(child)


def _check_set_order(path: str, module: str, tree: ast.Module) -> Iterator[Finding]:
    """Yield a finding for each iteration over a set in simulated packages."""
    if not is_inside(module, SIMULATED_PACKAGES):
        return
    for line, iteration in find_set_iterations(tree):
        message = (
            f"{iteration} iterates over a set, and its order differs from run to run: use sorted(...), a dict or a list"
        )
        yield Finding(path, line, "set-order", message)


def _check_task_folders(path: str, module: str, tree: ast.Module) -> Iterator[Finding]:
    """Yield a finding for each call that reaches a file by its path where a task could have left a link."""
    if not is_inside(module, TASK_FOLDER_PACKAGES) or is_inside(module, TASK_FOLDER_EXCEPTIONS):
        return
    names = ImportedNames(tree)
    message = "{} follows the links of tasks: use wharf.node.confined_folder, with dir_fd or get_descriptor_path for other calls"
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or DESCRIPTOR_KEYWORDS & {keyword.arg for keyword in node.keywords}:
            continue
        name = names.resolve(node.func)
        match node.args:
            case [ast.Call(func=ast.Name(id="get_descriptor_path")), *_]:
                continue
            case _:
                pass
        match node:
            case ast.Call(func=ast.Name(id="open"), args=[ast.Call(), *_]):
                continue  # `os.open` or another function has opened it.
            case ast.Call(func=ast.Name(id="open")):
                name = "os.open"
            case _:
                pass
        if name in PATH_FUNCTIONS:
            yield Finding(path, node.lineno, "task-folders", message.format(name))
        elif name is None and isinstance(node.func, ast.Attribute) and node.func.attr in PATH_METHODS:
            yield Finding(path, node.lineno, "task-folders", message.format(node.func.attr))


def main() -> int:
    """Check all files and print the findings. Return the exit code."""
    findings: list[Finding] = []
    for folder in CHECKED_FOLDERS:
        for file in sorted((ROOT / folder).rglob("*.py")):
            findings.extend(check_source(file.relative_to(ROOT).as_posix(), file.read_text("utf-8")))
    return print_remaining_findings(findings, RULES)


if __name__ == "__main__":
    raise SystemExit(main())
