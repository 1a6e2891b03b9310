"""What servers say is wrong, taken apart."""

import pytest

from wharf.cli.complaints import Complaint, complaints_in, in_one_list


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("Permission denied", [Complaint("", "Permission denied")]),
        ("Job.ID: missing; Job.Type: no such type", [Complaint("ID", "missing"), Complaint("Type", "no such type")]),
        ("Job: expected an object", [Complaint("Job", "expected an object")]),
        ("1 error occurred:\n\t* Missing (TaskGroups[0].Tasks)\n\n", [Complaint("TaskGroups[0].Tasks", "Missing")]),
        (
            "2 errors occurred:\n\t* a (ID)\n\t* Task group x failed: 1 error occurred:\n\t* b (Name): mend it\n\n\n\n",
            [Complaint("ID", "a"), Complaint("Name", "b: mend it")],
        ),
        ("1 error occurred:\n\t* too large (at most 9)\n\n", [Complaint("", "too large (at most 9)")]),
    ],
)
def test_lists_in_lists_become_one(text: str, found: list[Complaint]) -> None:
    assert complaints_in(text) == found


def test_what_is_no_list_is_one_line() -> None:
    assert in_one_list("no path\n  to node (Ready)\n") == "no path to node (Ready)"
    assert in_one_list("policy 0 invalid: 2 errors occurred:\n\t* a\n\t* b (Name)\n\n") == "a\nName: b"
