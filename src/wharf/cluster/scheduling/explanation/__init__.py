"""Explanations: why a group finds no node, and the smallest change that would help. Computed on request."""
