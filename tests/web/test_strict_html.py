"""The strict reader of pages finds what browsers repair silently."""

import pytest

from tests.web.strict_html import find_problems

PAGE = "<h1>Jobs</h1>{}"


def test_a_correct_page_has_no_problem() -> None:
    assert find_problems(PAGE.format('<p><label for="a">A</label> <input id="a" name="a"></p>')) == []


@pytest.mark.parametrize(
    ("html", "problem"),
    [
        ("<p>a<div>b</div></p>", "<p> contains <div>"),
        ("<p>a", "never ended: ['p']"),
        ("<ul><p>a</p></ul>", "<ul> contains <p>"),
        ("<table><caption>c</caption>a</table>", "<table> contains the text 'a'"),
        ('<a href="/a">x<a href="/b">y</a></a>', "<a> is inside of <a>"),
        ('<a href="/a"></a>', "a <a> has no text"),
        ("<button> </button>", "a <button> has no text"),
        ('<input name="a">', "<input> has no name"),
        ('<p id="a">x</p><p id="a">y</p>', "the id 'a' is not unique or not valid"),
        ('<p aria-describedby="b">x</p>', "nothing has the id 'b'"),
        ('<p style="x">x</p>', "<p> has an inline style"),
        ('<p align="left">x</p>', "<p> has the attribute align"),
        ('<a href="javascript:x">x</a>', "<a> leads to 'javascript:x'"),
        ("<h3>a</h3>", "a level of headings is left out: [1, 3]"),
        ("<h1>a</h1>", "the page needs exactly one h1"),
        ("<script>x</script>", "a script is inside of the page"),
        ("<table><thead></thead></table>", "a table has no caption"),
    ],
)
def test_a_mistake_is_found(html: str, problem: str) -> None:
    assert problem in find_problems(PAGE.format(html))
