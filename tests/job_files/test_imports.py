"""Each module of job files can be the first that a process imports."""

import subprocess
import sys

IMPORT_EACH = """
import importlib, pkgutil, sys, wharf.job_files
names = [each.name for each in pkgutil.walk_packages(wharf.job_files.__path__, "wharf.job_files.")]
for name in names:
    if not name.endswith("__main__"):
        for loaded in [each for each in sys.modules if each.startswith("wharf.job_files")]:
            del sys.modules[loaded]
        importlib.import_module(name)
print(len(names))
"""


def test_each_module_can_be_imported_first() -> None:
    result = subprocess.run([sys.executable, "-c", IMPORT_EACH], capture_output=True, text=True, check=False)

    assert result.stderr == ""
    assert int(result.stdout) > 20
