"""Rules of identities, secrets and Vault (jobs.md 2.14)."""

import re
from typing import Final

from wharf.model.identity import DEFAULT_IDENTITY_NAME, Secret, Vault, WorkloadIdentity
from wharf.model.validation.findings import Report, one_of

IDENTITY_CHANGE_MODES: Final = ("", "noop", "restart", "signal")
VAULT_CHANGE_MODES: Final = ("noop", "restart", "signal")
BUILT_IN_SECRET_PROVIDERS: Final = frozenset({"wharf", "nomad", "vault"})
_IDENTITY_NAME = re.compile(r"[A-Za-z0-9_-]{1,128}\Z")
_SECRET_NAME = re.compile(r"[a-zA-Z0-9_]{1,128}\Z")


def check_identities(
    default: WorkloadIdentity | None, others: tuple[WorkloadIdentity, ...] | None, path: str, report: Report
) -> None:
    """The default identity of a task, and the others."""
    if default is not None:
        _check_identity(default, f"{path}.Identity", report)
    names: set[str] = {default.name} if default is not None else set()
    for position, identity in enumerate(others or ()):
        where = f"{path}.Identities[{position}]"
        _check_identity(identity, where, report)
        if identity.name in names:
            report.error(f"{where}.Name", f'Identity "{identity.name}" is defined twice')
        names.add(identity.name)
        if not identity.audience:
            report.warn(f"{where}.Audience", f'identities without an audience are insecure ("{identity.name}")')
        if not identity.ttl:
            report.warn(
                f"{where}.TTL", f'identities without an expiration are insecure ("{identity.name}")', "set a TTL"
            )


def _check_identity(identity: WorkloadIdentity, path: str, report: Report) -> None:
    if not _IDENTITY_NAME.match(identity.name):
        report.error(
            f"{path}.Name",
            f'invalid identity name "{identity.name}"',
            "use 1 to 128 letters, digits, dashes and underscores",
        )
    if identity.change_mode not in IDENTITY_CHANGE_MODES:
        report.error(
            f"{path}.ChangeMode", f'invalid change_mode "{identity.change_mode}"', one_of(IDENTITY_CHANGE_MODES[1:])
        )
    if identity.change_mode == "signal" and not identity.change_signal:
        report.error(f"{path}.ChangeSignal", "change_signal must be specified when using change_mode=signal")
    if identity.change_mode != "signal" and identity.change_signal:
        report.error(f"{path}.ChangeSignal", "can only use change_signal with change_mode=signal")
    if identity.filepath and not identity.file:
        report.error(f"{path}.Filepath", "file parameter must be true in order to specify filepath")
    if identity.ttl < 0:
        report.error(f"{path}.TTL", "ttl must be >= 0")
    elif identity.ttl > 0 and identity.name == DEFAULT_IDENTITY_NAME:
        report.error(f"{path}.TTL", "ttl for default identity not yet supported")


def check_secrets(secrets: tuple[Secret, ...] | None, path: str, report: Report) -> None:
    """The secrets of one task."""
    names: set[str] = set()
    for position, secret in enumerate(secrets or ()):
        where = f"{path}.Secrets[{position}]"
        inner = report.section(f"Secret {position + 1} validation failed")
        if not _SECRET_NAME.match(secret.name):
            inner.error(
                f"{where}.Name", f'invalid secret name "{secret.name}"', "use 1 to 128 letters, digits and underscores"
            )
        elif secret.name in names:
            inner.error(f"{where}.Name", f'Secret name "{secret.name}" is used twice')
        names.add(secret.name)
        if not secret.provider:
            inner.error(f"{where}.Provider", "Missing secret provider")
        elif secret.provider in BUILT_IN_SECRET_PROVIDERS:
            if secret.env:
                inner.error(f"{where}.Env", f'secret provider "{secret.provider}" cannot use the env block')
        elif secret.config:
            inner.error(f"{where}.Config", f'secret plugin "{secret.provider}" cannot use the config block')
        if not secret.path:
            inner.error(f"{where}.Path", "Missing secret path")


def check_vault(vault: Vault | None, path: str, report: Report) -> None:
    """How a task uses Vault."""
    if vault is None:
        return
    if vault.change_mode not in VAULT_CHANGE_MODES:
        report.error(
            f"{path}.Vault.ChangeMode", f'Unknown change mode "{vault.change_mode}"', one_of(VAULT_CHANGE_MODES)
        )
    if vault.change_mode == "signal" and not vault.change_signal:
        report.error(f"{path}.Vault.ChangeSignal", 'Signal must be specified when using change mode "signal"')
