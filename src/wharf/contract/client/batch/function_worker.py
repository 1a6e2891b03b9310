"""Runs one call of `wharf.client.map` on a node. It travels with the job, so it uses Python's own modules and cloudpickle.

Arguments: the folder with `function.b64` and `items.b64`, and the index of the item. The outcome is written to the file
`result` in the same folder, in one step.
"""

import base64
import os
import pickle
import sys
import traceback
from pathlib import Path

MAX_RESULT_BYTES = 64 * 1024 * 1024
INTERRUPTED_EXIT_CODE = 130


def run(folder: Path, index: int) -> int:
    """Call the function with the item, and write the outcome. Returns the exit code.

    A program that its node ends has no outcome: it may run again, or the node knows the reason.
    """
    try:
        function = pickle.loads(base64.b64decode((folder / "function.b64").read_bytes()))
        with (folder / "items.b64").open("rb") as file:
            line = next(line for number, line in enumerate(file) if number == index)
        outcome = pickle_value(function(pickle.loads(base64.b64decode(line))))
        code = 0
    except KeyboardInterrupt:  # The signal with which nodes end programs.
        traceback.print_exc()
        return INTERRUPTED_EXIT_CODE
    except BaseException as error:  # The caller receives it, whatever it is.
        traceback.print_exc()
        outcome, code = pickle_error(error), 1
    temporary = folder / "result.new"
    temporary.write_bytes(outcome)
    os.replace(temporary, folder / "result")
    return code


def pickle_value(value: object) -> bytes:
    """Return the outcome of a call that succeeded. Raises `ValueError` if it is too large to be sent."""
    import cloudpickle

    outcome = pickle.dumps(("value", cloudpickle.dumps(value), "", ""))
    if len(outcome) > MAX_RESULT_BYTES:
        raise ValueError(
            f"the result has {len(outcome):,} bytes, and at most {MAX_RESULT_BYTES:,} are returned: write it to a file, and "
            "return the path"
        )
    return outcome


def pickle_error(error: BaseException) -> bytes:
    """Return the outcome of a call that raised, also if the error cannot be pickled."""
    text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    try:
        try:
            from cloudpickle import dumps
        except ImportError:
            from pickle import dumps
        pickled = dumps(error)
        pickle.loads(pickled)  # Some errors can be pickled but not read again.
    except Exception:
        pickled = b""
    return pickle.dumps(("error", pickled, f"{type(error).__name__}: {error}"[:10_000], text[-100_000:]))


if __name__ == "__main__":
    sys.exit(run(Path(sys.argv[1]), int(sys.argv[2])))
