"""Handlers of endpoints about agents: status, members, metrics, monitoring and documents."""
