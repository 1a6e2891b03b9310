"""Records which lines a process reaches that a test starts: Python imports this module at the start of each process.

Its folder is in PYTHONPATH while coverage is recorded. MUTANT_TEST names the test, MUTANT_CHILDREN the folder for the
recording. A process that is killed records nothing.
"""

import atexit
import os
from pathlib import Path

if "MUTANT_TEST" in os.environ and "MUTANT_CHILDREN" in os.environ:
    import coverage

    _coverage = coverage.Coverage(
        data_file=str(Path(os.environ["MUTANT_CHILDREN"]) / "child"),
        data_suffix=True,
        source=[str(Path(__file__).parents[3] / "src" / "wharf")],
        context=os.environ["MUTANT_TEST"],
        messages=False,
    )
    _coverage.start()

    @atexit.register
    def _save() -> None:
        _coverage.stop()
        _coverage.save()
