"""Applies rules to access logs, to show what they would have refused. No request is sent and nothing is stored."""
