"""Calls to the leader's brain: methods, dispatcher, client, transports and handlers."""
