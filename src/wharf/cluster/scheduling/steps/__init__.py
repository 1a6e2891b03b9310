"""Decides when the steps of a run begin, and which never do. Pure: it takes facts about the steps and returns their new states."""
