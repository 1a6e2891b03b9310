"""Logging of the agent's processes: lines, levels, redaction, rotation, followers and the audit log."""
