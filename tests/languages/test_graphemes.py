"""Characters as users see them."""

import pytest

from wharf.languages.graphemes import count_graphemes, split_graphemes


@pytest.mark.parametrize(
    ("text", "clusters"),
    [
        ("", []),
        ("ab", ["a", "b"]),
        ("a\r\nb", ["a", "\r\n", "b"]),
        ("e\u0301x", ["e\u0301", "x"]),
        ("\U0001f468\u200d\U0001f469\u200d\U0001f467!", ["\U0001f468\u200d\U0001f469\u200d\U0001f467", "!"]),
        ("\U0001f1e9\U0001f1ea\U0001f1eb\U0001f1f7", ["\U0001f1e9\U0001f1ea", "\U0001f1eb\U0001f1f7"]),
        ("\U0001f44d\U0001f3fd", ["\U0001f44d\U0001f3fd"]),
    ],
)
def test_a_text_is_split_into_grapheme_clusters(text: str, clusters: list[str]) -> None:
    assert (clusters, len(clusters)) == (split_graphemes(text), count_graphemes(text))
