"""Why an agent does not start or a command does not run: one sentence that says what and what to do."""


class CommandError(Exception):
    """For people. Shown without a traceback; the exit code is not 0."""


class StartupError(Exception):
    """A sentence for people: what keeps this process from its work, and what to do. Raised by roles."""
