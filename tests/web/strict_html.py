"""Checks the HTML of a page more strictly than browsers do: what they repair silently is a mistake here."""

import re
from html.parser import HTMLParser
from itertools import pairwise

VOID_ELEMENTS = frozenset(("meta", "link", "input", "br", "img", "hr", "wbr"))
CONTROLS = frozenset(("input", "select", "textarea", "button", "meter", "progress"))
SVG_ELEMENTS = frozenset(("svg", "path", "rect", "text"))
SERVICE_LINK = re.compile(r"http://[0-9a-zA-Z.:\[\]-]+/")
"""The address of an instance of a service: the only links that leave the pages."""
GLOBAL_ATTRIBUTES = re.compile(r"id|class|title|lang|role|tabindex|hidden|(?:aria|data)-[a-z-]+")
ATTRIBUTES = {
    "a": "href rel download", "meta": "name content charset", "link": "rel href type", "script": "src defer",
    "img": "src alt width height", "form": "method action", "label": "for", "time": "datetime", "ol": "reversed",
    "th": "scope colspan", "td": "colspan", "details": "open", "option": "value selected",
    "input": "type name value placeholder required checked autocomplete autocapitalize spellcheck autofocus list min max step size maxlength",
    "textarea": "name rows spellcheck autocomplete autocapitalize placeholder required maxlength", "select": "name",
    "button": "type name value formaction autofocus", "meter": "min max low high optimum value", "progress": "max value",
    "svg": "viewBox width height", "path": "d", "rect": "width height x y", "text": "x y text-anchor",
}  # fmt: skip
PARENTS = {
    "li": ("ul", "ol"), "dt": ("dl",), "dd": ("dl",), "tr": ("thead", "tbody"), "thead": ("table",), "tbody": ("table",),
    "caption": ("table",), "th": ("tr",), "td": ("tr",), "option": ("select", "datalist"), "summary": ("details",),
    "figcaption": ("figure",),
}  # fmt: skip
CHILDREN = {
    "ul": ("li",), "ol": ("li",), "dl": ("dt", "dd"), "table": ("caption", "thead", "tbody"), "thead": ("tr",),
    "tbody": ("tr",), "tr": ("th", "td"), "select": ("option",), "datalist": ("option",),
}  # fmt: skip
PHRASES = frozenset((
    "a", "abbr", "br", "button", "code", "datalist", "em", "i", "img", "input", "kbd", "label", "meter", "option", "progress", "select",
    "small", "span", "strong", "svg", "path", "rect", "text", "time", "textarea",
))  # fmt: skip
"""Elements that may be inside of a paragraph, a heading or a link. Browsers end a paragraph before any other."""
ONLY_PHRASES = frozenset((
    "p", "h1", "h2", "h3", "h4", "a", "button", "label", "span", "code", "strong", "pre", "caption", "summary", "figcaption", "dt",
    "time", "em",
))  # fmt: skip
NEVER_NESTED = frozenset(("a", "button", "form", "label"))


class StrictHtml(HTMLParser):
    """Collects the problems of one page."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.problems: list[str] = []
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.headings: list[int] = []
        self._open: list[str] = []
        self._labelled: set[str] = set()
        self._unnamed: list[tuple[str, str]] = []
        self._named_texts: list[list[str]] = []  # The element and the text of each button, link and label.
        self._references: set[str] = set()
        self._tables: list[bool] = []
        self.feed(text)
        self.close()
        self._finish()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = dict(attrs)
        if len(attributes) != len(attrs):
            self.problems.append(f"<{tag}> has an attribute twice")
        self._check_place(tag)
        if tag not in VOID_ELEMENTS:
            self._open.append(tag)
        for name, value in attributes.items():
            self._check_attribute(tag, name, value or "")
        if tag == "label" and "for" in attributes:
            self._labelled.add(attributes["for"] or "")
        if tag in CONTROLS and attributes.get("type") != "hidden":
            self._check_control(tag, attributes)
        if tag in ("a", "button", "label"):
            self._named_texts.append([tag, attributes.get("aria-label") or ""])
        if re.fullmatch("h[1-6]", tag):
            self.headings.append(int(tag[1]))
        if tag == "table":
            self._tables.append(False)
        if tag == "caption" and self._tables:
            self._tables[-1] = True
        if tag == "img":
            self._check_image(attributes)
        if tag == "script" and "src" not in attributes:
            self.problems.append("a script is inside of the page")
        if tag == "form" and attributes.get("method", "get") not in ("get", "post", "dialog"):
            self.problems.append("a form has another method")

    def _check_place(self, tag: str) -> None:
        """Check that the element may be inside of those that are open."""
        parent = self._open[-1] if self._open else ""
        if tag in PARENTS and parent not in PARENTS[tag]:
            self.problems.append(f"<{tag}> is inside of <{parent}>")
        if parent in CHILDREN and tag not in CHILDREN[parent]:
            self.problems.append(f"<{parent}> contains <{tag}>")
        if tag not in PHRASES and (outer := next((each for each in self._open if each in ONLY_PHRASES), None)):
            self.problems.append(f"<{outer}> contains <{tag}>")
        if tag in NEVER_NESTED and tag in self._open:
            self.problems.append(f"<{tag}> is inside of <{tag}>")

    def _check_attribute(self, tag: str, name: str, value: str) -> None:
        known = ATTRIBUTES.get(tag, "").lower().split()  # The parser returns names in lower case, also those of SVG.
        if name == "style" or name.startswith("on"):
            self.problems.append(f"<{tag}> has an inline {name}")
        elif not GLOBAL_ATTRIBUTES.fullmatch(name) and name not in known:
            self.problems.append(f"<{tag}> has the attribute {name}")
        if name in ("href", "src", "action", "formaction"):
            self.links.append(value)
            if not re.match(r"/|#", value) and not (tag == "a" and SERVICE_LINK.fullmatch(value)):
                self.problems.append(f"<{tag}> leads to {value!r}")
        if name == "id":
            if value in self.ids or not value or re.search(r"\s", value):
                self.problems.append(f"the id {value!r} is not unique or not valid")
            self.ids.add(value)
        if name in ("aria-labelledby", "aria-describedby", "for", "list"):
            self._references.update(value.split())

    def _check_control(self, tag: str, attributes: dict[str, str | None]) -> None:
        if tag != "button" and not attributes.get("aria-label") and "label" not in self._open:
            self._unnamed.append((tag, attributes.get("id") or ""))

    def _check_image(self, attributes: dict[str, str | None]) -> None:
        if "alt" not in attributes:
            self.problems.append("an image has no alternative text")

    def handle_data(self, data: str) -> None:
        for named in reversed(self._named_texts):
            if named[0] in self._open:
                named[1] += data
                break
        if self._open and self._open[-1] in CHILDREN and data.strip():
            self.problems.append(f"<{self._open[-1]}> contains the text {data.strip()[:40]!r}")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in SVG_ELEMENTS:
            self.problems.append(f"<{tag}/> is not HTML")
        self.handle_starttag(tag, attrs)
        self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        if not self._open or self._open[-1] != tag:
            self.problems.append(f"</{tag}> ends nothing, or {self._open[-1:]} is still open")
            return
        self._open.pop()
        if tag == "table" and not self._tables.pop():
            self.problems.append("a table has no caption")

    def _finish(self) -> None:
        if self._open:
            self.problems.append(f"never ended: {self._open}")
        self.problems += [
            f"<{tag}> has no name" for tag, identifier in self._unnamed if identifier not in self._labelled
        ]
        self.problems += [f"a <{tag}> has no text" for tag, text in self._named_texts if not text.strip()]
        self.problems += [f"nothing has the id {name!r}" for name in sorted(self._references - self.ids)]
        if self.headings.count(1) != 1:
            self.problems.append("the page needs exactly one h1")
        if any(later > earlier + 1 for earlier, later in pairwise(self.headings)):
            self.problems.append(f"a level of headings is left out: {self.headings}")


def find_problems(text: str) -> list[str]:
    """Return what is wrong with a page."""
    return StrictHtml(text).problems
