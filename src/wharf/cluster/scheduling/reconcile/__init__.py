"""What should differ between what a job wants and what is there: stops, placements, changes, and when to look again.

It knows nodes only as gone, down, out of contact or fine, and asks one question about room: whether an allocation can be
updated where it is. It chooses no node.
"""
