"""What is said against the rules of a policy.

    InvalidRules   the document is no policy: it cannot be read, or it grants what does not exist

The writer mends it: `text` says what, where, and what would be right.
"""


class InvalidRules(Exception):
    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text
