"""Why an agent does not start or a command does not run: one sentence that says what and what to do."""


class Refused(Exception):
    """For people. Shown without a traceback; the exit code is not 0."""
