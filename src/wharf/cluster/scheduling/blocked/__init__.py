"""Blocked evaluations: the order of retries, and reservations for evaluations that have waited too long."""
