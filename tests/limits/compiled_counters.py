"""Builds the compiled functions of the counters from this checkout, so that tests do not depend on what is installed."""

import functools
import importlib.machinery
import importlib.util
import shutil
import subprocess
import sysconfig
import tempfile
from pathlib import Path

from wharf.limits.core.counting import compiled
from wharf.limits.core.counting.compiled import UsualCalls

SOURCE = Path(compiled.__file__).with_name("usual_calls.c")


@functools.cache
def build_usual_calls() -> UsualCalls:
    """Return the compiled functions, built once in each test process. Needs the program gcc."""
    compiler = shutil.which("gcc")
    assert compiler is not None
    include = sysconfig.get_paths()["include"]
    options = ["-O1", "-Wall", "-Wextra", "-Werror", "-Wno-unused-parameter", "-shared", "-fPIC", f"-I{include}"]
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "_usual_calls.so"
        subprocess.run([compiler, *options, str(SOURCE), "-o", str(target)], check=True)
        loader = importlib.machinery.ExtensionFileLoader("_usual_calls", str(target))
        spec = importlib.util.spec_from_loader("_usual_calls", loader)
        assert spec is not None
        module = importlib.util.module_from_spec(spec)
        loader.exec_module(module)
    return compiled.configure(module)
