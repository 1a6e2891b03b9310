"""Sinks: streams of records, such as audit records and decisions, to files, syslog, HTTP receivers and object stores.

Rate limiter and cluster share this package. It must not know what the records are about: it gets encoded lines, each with
the envelope of `records`, and delivers them at least once or counts their loss.
"""
