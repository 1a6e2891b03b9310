"""Credentials that are not in the directory: which ones the service has accepted, and who owns them.

`UnlistedCredentials` combines the other modules. Limits are decided elsewhere.
"""

from wharf.limits.credentials.unlisted import RequestCredential, UnlistedCredentials

__all__ = ["RequestCredential", "UnlistedCredentials"]
