"""Ranking: scores feasible nodes for one group and chooses the best node for each allocation."""
