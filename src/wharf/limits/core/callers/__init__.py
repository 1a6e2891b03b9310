"""Callers of the limited service: addresses, credentials, the directory of accounts, and how they identify a caller."""
