"""Certificates and TLS contexts of the agent."""
