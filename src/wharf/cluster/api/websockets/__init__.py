"""Websocket connections to callers."""
