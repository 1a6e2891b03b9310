"""Plans: the changes that one evaluation proposes, how they are checked, and how the evaluation ends."""
