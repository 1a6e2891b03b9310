"""Rules for identities, secrets and Vault (jobs.md 2.14)."""

import re
from typing import Final

from wharf.contract.model.jobs.identities import (
    API_AUDIENCES,
    DEFAULT_IDENTITY_NAME,
    TaskSecret,
    Vault,
    WorkloadIdentity,
)
from wharf.contract.model.jobs.validation.findings import ValidationReport, suggest_one_of

IDENTITY_CHANGE_MODES: Final = ("", "noop", "restart", "signal")
BUILT_IN_SECRET_PROVIDERS: Final = frozenset({"wharf", "nomad", "vault"})
_IDENTITY_NAME = re.compile(r"[A-Za-z0-9_-]{1,128}\Z")
_SECRET_NAME = re.compile(r"[a-zA-Z0-9_]{1,128}\Z")


def check_identities(
    default: WorkloadIdentity | None, others: tuple[WorkloadIdentity, ...] | None, path: str, report: ValidationReport
) -> None:
    """Add each problem of a task's default identity and its additional identities to the report.

    Additional identities without an audience or an expiration get a warning, and so does a default identity for other
    services only. `path` is the path of the task.
    """
    if default is not None:
        _check_identity(default, f"{path}.Identity", report)
        if default.audience and API_AUDIENCES.isdisjoint(default.audience):
            report.add_warning(
                f"{path}.Identity.Audience",
                "the cluster accepts the default identity whatever its audience is",
                "declare an identity for other services under Identities",
            )
    names: set[str] = {default.name} if default is not None else set()
    for position, identity in enumerate(others or ()):
        field_path = f"{path}.Identities[{position}]"
        _check_identity(identity, field_path, report)
        if identity.name in names:
            report.add_error(f"{field_path}.Name", f'Identity "{identity.name}" is defined twice')
        names.add(identity.name)
        if not identity.audience:
            report.add_warning(
                f"{field_path}.Audience", f'identities without an audience are insecure ("{identity.name}")'
            )
        if not identity.ttl:
            report.add_warning(
                f"{field_path}.TTL", f'identities without an expiration are insecure ("{identity.name}")', "set a TTL"
            )


def _check_identity(identity: WorkloadIdentity, path: str, report: ValidationReport) -> None:
    """Add each problem of one workload identity to the report."""
    if not _IDENTITY_NAME.match(identity.name):
        report.add_error(
            f"{path}.Name",
            f'invalid identity name "{identity.name}"',
            "use 1 to 128 letters, digits, dashes and underscores",
        )
    if identity.change_mode not in IDENTITY_CHANGE_MODES:
        report.add_error(
            f"{path}.ChangeMode",
            f'invalid change_mode "{identity.change_mode}"',
            suggest_one_of(IDENTITY_CHANGE_MODES[1:], identity.change_mode),
        )
    if identity.change_mode == "signal" and not identity.change_signal:
        report.add_error(f"{path}.ChangeSignal", "change_signal must be specified when using change_mode=signal")
    if identity.change_mode != "signal" and identity.change_signal:
        report.add_error(f"{path}.ChangeSignal", "can only use change_signal with change_mode=signal")
    if identity.filepath and not identity.file:
        report.add_error(f"{path}.Filepath", "file parameter must be true in order to specify filepath")
    if identity.ttl < 0:
        report.add_error(f"{path}.TTL", "ttl must be >= 0")
    elif identity.ttl > 0 and identity.name == DEFAULT_IDENTITY_NAME:
        report.add_error(f"{path}.TTL", "ttl for default identity not yet supported")


def check_secrets(secrets: tuple[TaskSecret, ...] | None, path: str, report: ValidationReport) -> None:
    """Add each problem of a task's secrets to the report. `path` is the path of the task."""
    names: set[str] = set()
    for position, secret in enumerate(secrets or ()):
        field_path = f"{path}.Secrets[{position}]"
        section = report.add_section(f"Secret {position + 1} validation failed")
        if not _SECRET_NAME.match(secret.name):
            section.add_error(
                f"{field_path}.Name",
                f'invalid secret name "{secret.name}"',
                "use 1 to 128 letters, digits and underscores",
            )
        elif secret.name in names:
            section.add_error(f"{field_path}.Name", f'Secret name "{secret.name}" is used twice')
        names.add(secret.name)
        if not secret.provider:
            section.add_error(f"{field_path}.Provider", "Missing secret provider")
        elif secret.provider in BUILT_IN_SECRET_PROVIDERS:
            if secret.env:
                section.add_error(f"{field_path}.Env", f'secret provider "{secret.provider}" cannot use the env block')
        elif secret.config:
            section.add_error(f"{field_path}.Config", f'secret plugin "{secret.provider}" cannot use the config block')
        if not secret.path:
            section.add_error(f"{field_path}.Path", "Missing secret path")


def check_vault(vault: Vault | None, path: str, report: ValidationReport) -> None:
    """Add an error for a task's Vault block: no node fetches tokens of Vault. `path` is the path of the task."""
    if vault is not None:
        report.add_error(
            f"{path}.Vault", "Vault is not supported", "store secrets in variables, and read them with templates"
        )
