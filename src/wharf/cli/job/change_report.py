"""What a command changed, as `--json` and `--format` print it, with the field names of the API."""

from dataclasses import dataclass, field
from typing import Any

from wharf.cli.common.server_commands import Session


@dataclass
class ChangeReport:
    """A change of a job, its evaluation and deployment, and the outcome as far as the command waited for it."""

    job_id: str = ""
    namespace: str = ""
    eval_id: str = ""
    job_modify_index: int = 0
    index: int = 0
    """Log index of the write; 0 stands for the newest write of the command."""
    deployment_id: str = ""
    outcome: str = ""
    """`success`, `failed`, `not-placed`, `no-progress`, `evaluated`, or empty if the command did not wait."""
    text: str = ""
    exit_code: int = 0
    failures: list[str] = field(default_factory=list)
    """Why allocations failed or were not placed."""
    more: dict[str, Any] = field(default_factory=dict)
    """Further fields of the reply of one kind of change."""

    def add_outcome(self, outcome: str, text: str, exit_code: int) -> None:
        self.outcome, self.text, self.exit_code = outcome, text, int(exit_code)

    def build_document(self) -> dict[str, Any]:
        """Return the report with the field names of the API."""
        return {
            "JobID": self.job_id,
            "Namespace": self.namespace,
            "JobModifyIndex": self.job_modify_index,
            "Index": self.index,
            "EvalID": self.eval_id,
            "DeploymentID": self.deployment_id,
            "Outcome": self.outcome,
            "OutcomeDescription": self.text,
            "ExitCode": self.exit_code,
            "Failures": self.failures,
            **self.more,
        }

    def print_result(self, session: Session) -> None:
        """Print the report for programs. Users have read its lines already."""
        self.index = self.index or session.client.write_index
        if session.is_machine_readable:
            session.print_result(self.build_document(), str)
