"""Parsing of HTTP requests: parameters, values, bodies and the request object of handlers."""
