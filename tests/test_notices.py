"""Notices of commands, as tests remove them."""

from tests.notices import remove_notices


def test_only_lines_about_slow_servers_are_removed() -> None:
    output = (
        "waiting for a reply from http://127.0.0.1:4646; Ctrl-C ends the command\n"
        "waiting for evaluation 18795213: the scheduler is paused; Ctrl-C stops watching\n"
        "wharf: http://127.0.0.1:4646 does not reply; trying again for up to 60 s; Ctrl-C ends the command\n"
        "Not placed, waiting for capacity:\n"
        "wharf: job web does not exist\n"
    )

    assert remove_notices(output) == "Not placed, waiting for capacity:\nwharf: job web does not exist\n"
