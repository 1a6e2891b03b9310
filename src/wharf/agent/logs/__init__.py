"""Logging of processes: setup, line formats, redaction, rotation, forwarding to followers, and the audit log."""
