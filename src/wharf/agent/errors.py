"""Errors of the agent with texts for the operator: one sentence that says what failed and what to do."""


class CommandError(Exception):
    """A command or the agent cannot run. The text is shown without a traceback, and the exit code is not 0."""


class StartupError(Exception):
    """A role cannot start its process. The text names the cause and what the operator can do."""
