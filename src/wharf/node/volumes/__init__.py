"""Volumes of this host that jobs may ask for: those of its configuration, and those that servers have it make.

Responsible for making, remembering and taking away folders, by plugins; never for who may use one, which servers decide.
"""
