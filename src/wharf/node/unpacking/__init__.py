"""Unpacks archives that are not trusted, within limits. It downloads nothing, and imports little, because each archive is unpacked in
a new process.
"""
