"""Blocks for products and features that Wharf does not have: a file with them is read, and its registration is refused."""

import pytest

from tests.job_files.hcl.job_texts import parse_file, wrap_block
from tests.job_files.hcl.test_canonical_form import SETTINGS
from wharf.contract.model.decoding import convert_object
from wharf.contract.model.jobs.canonical_form import canonicalize_job
from wharf.contract.model.jobs.job import Job
from wharf.contract.model.jobs.validation import Findings, validate_job
from wharf.contract.model.jobs.volumes import NO_PLUGINS_TEXT
from wharf.job_files.hcl.parsed_job import ParsedJob


def validate(path: str, text: str) -> tuple[ParsedJob, Findings]:
    """Return a job file with one block, and what a registration finds in it."""
    job = parse_file(wrap_block(path, text))
    return job, validate_job(canonicalize_job(convert_object(Job, job.document).value, SETTINGS), SETTINGS)


@pytest.mark.parametrize(
    ("path", "text", "line", "message", "fix"),
    [
        ("job.multiregion", "multiregion {}", 2, "Multiregion jobs are not supported", "submit the job to each region"),
        ("job.vault", "vault {}\ntask \"t\" {}", 2, "Vault is not supported",
         "store secrets in variables, and read them with templates"),
        ("job.group.task.vault", "vault {}", 4, "Vault is not supported",
         "store secrets in variables, and read them with templates"),
        ("job.group.task.csi_plugin", "csi_plugin {}", 4, NO_PLUGINS_TEXT,
         "delete the block, and use host volumes, which need no plug-in"),
        ("job.group.task.scaling", 'scaling "cpu" {}', 4, "Scaling of a task's resources is not supported", "scale the group"),
        ("job.group.service.connect", "connect {\n sidecar_service {}\n}", 4,
         "services cannot include Connect blocks: the service mesh of Consul is not supported",
         "delete the block, and read the addresses of other services with nomadService in a template"),
    ],
)  # fmt: skip
def test_a_block_is_refused_with_one_sentence_and_its_line(
    path: str, text: str, line: int, message: str, fix: str
) -> None:
    job, findings = validate(path, text)

    (problem,) = [each for each in findings.problems if each.message == message]
    assert problem.fix == fix
    assert str(job.find_place(problem.path)).startswith(f"job.hcl:{line}:")


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("job.group.consul", "consul {}"),
        ("job.group.task.consul", "consul {}"),
        ("job.group.task.schedule", "schedule { cron {} }"),
        ("job.group.task.secret", 'secret "db" {\n provider = "wharf"\n path = "shop/db"\n}'),
    ],
)
def test_a_block_without_effect_has_a_warning(path: str, text: str) -> None:
    text = text.replace("{ cron {} }", "{\n cron {}\n}")
    job, findings = validate(path, text)

    (warning,) = [each for each in findings.warnings if each.message.endswith("the block has no effect")]
    assert str(job.find_place(warning.path)).startswith(f"job.hcl:{len(path.split('.'))}:")
