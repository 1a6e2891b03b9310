"""Parses templates: quoted strings, heredocs, and the strings of JSON documents."""

import re
from typing import Any, Final

from wharf.languages.hcl.loops import Loop, TemplateFor, TemplateIf, TemplateNode, TemplateParts
from wharf.languages.hcl.nodes import LiteralNode, SyntaxNode
from wharf.languages.hcl.reader import (
    ANY_MODE,
    NAME,
    NAME_PATTERN,
    FinalError,
    OpenEndedError,
    ParseError,
    SourceReader,
)
from wharf.languages.hcl.references import ReferenceNode
from wharf.languages.hcl.values import normalize_text

STEPS_PER_NODE: Final = 2
"""The steps of the evaluation of one operand, operator or part of a template."""
_BLANKS: Final = " \t\r\n"
# A run of signs before a brace is an interpolation, a directive or an escape; any other run is text.
_QUOTED_TEXT: Final = re.compile(r'(?>[^"\\$%\r\n]++|\$++(?!\{)|%++(?!\{))++')
_HEREDOC_TEXT: Final = re.compile(r"(?>[^$%\n]++|\$++(?!\{)|%++(?!\{))*+\n?+")
_RAW_TEXT: Final = re.compile(r"(?>[^$%]++|\$++(?!\{)|%++(?!\{))++")
_MARKER: Final = re.compile(r"(\$++|%++)\{")
_ESCAPE: Final = re.compile(r'\\(?:([nrt"\\])|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8}))')
_LETTER_ESCAPES: Final = {"n": "\n", "r": "\r", "t": "\t", '"': '"', "\\": "\\"}
HEREDOC_START: Final = re.compile(rf"<<(-?+)({NAME_PATTERN})\r?\n")
_HEREDOC_LINE: Final = re.compile(rf"[ \t]*+(?:({NAME_PATTERN})[ \t]*+)?+(?=\r?(?:\n|\Z))")
_HEREDOC_STRIP: Final = re.compile(r"[ \t]*+(\r?\n)?+")
_LEADING_BLANKS: Final = re.compile(r"[ \t]*+")
MAX_INTERPOLATION_CHARS: Final = 200
"""An error this near to the start of an interpolation is probably shell text."""
_SHELL_FIX: Final = "for shell text, write $${ instead of ${"
_DIRECTIVE_FIX: Final = "for a plain %{, write %%{"
_DIRECTIVES: Final = "if, else, endif, for or endfor"


class _HeredocText:
    """A piece of literal text of a heredoc: at most one line."""

    __slots__ = ("is_line_start", "text")

    def __init__(self, text: str, *, is_line_start: bool) -> None:
        self.text = text
        self.is_line_start = is_line_start


class _OpenDirective:
    """A directive whose end is still to come, or the template itself (`word` is empty)."""

    __slots__ = ("condition", "else_parts", "end", "loop", "names", "parts", "start", "word")

    def __init__(self, word: str, start: int, end: int) -> None:
        self.word = word
        self.start = start
        self.end = end
        self.parts: list[object] = []
        self.else_parts: list[object] | None = None
        self.condition: SyntaxNode | None = None
        self.loop: Loop | None = None
        self.names: tuple[str, ...] = ()

    @property
    def target(self) -> list[object]:
        """The list to which the next part belongs."""
        return self.parts if self.else_parts is None else self.else_parts

    def describe(self) -> str:
        return f"%{{ {self.word} }}"


class TemplateParser(SourceReader):
    """Parses templates. A subclass parses the expressions inside."""

    def parse_expression(self, mode: int) -> SyntaxNode:
        """Parse an expression. The mode says what line ends mean."""
        raise NotImplementedError

    def parse_loop_head(self) -> tuple[Loop, tuple[str, ...]]:
        """Parse the names and the collection of a `for`, and bind the names. Its cost is the nodes before its body."""
        raise NotImplementedError

    def unbind_names(self, names: tuple[str, ...]) -> None:
        """End the part of the text in which the names of a `for` are known."""
        raise NotImplementedError

    def set_cost(self, loop: Loop) -> None:
        """Set the steps of one iteration by the nodes that were parsed since the head of the loop."""
        loop.cost = 2 + STEPS_PER_NODE * (self.node_count - loop.cost)

    # -- quoted strings

    def parse_quoted(self, *, template_fix: str | None = None) -> SyntaxNode:
        """Parse a string in quotes that starts at the position.

        In a label, templates are refused: `template_fix` says what to write instead.
        """
        start = self.pos
        self.pos += 1
        text = self.text
        stack = [_OpenDirective("", start, start + 1)]
        strips_next = False
        while True:
            plain = _QUOTED_TEXT.match(text, self.pos)
            if plain is not None:
                strips_next = self._add_text(stack[-1].target, plain[0], strips_next=strips_next)
                self.pos = plain.end()
            character = text[self.pos : self.pos + 1]
            if character == '"':
                self.pos += 1
                break
            if character in ("", "\n", "\r"):
                raise OpenEndedError(
                    "this string has no closing quote on its line", start, self.pos,
                    'write " at its end; a text of several lines is between <<EOF and EOF, or has \\n for a line break',
                )  # fmt: skip
            if character == "\\":
                strips_next = self._add_text(stack[-1].target, self._parse_escape(), strips_next=strips_next)
                continue
            strips_next = self._parse_marker(stack, strips_next=strips_next, template_fix=template_fix)
        self._require_closed(stack)
        if template_fix is not None:  # Labels are not normalized.
            label = "".join([str(part) for part in _join_texts(stack[0].parts)])
            return LiteralNode(label, start, self.pos)
        return self._build_template(stack[0].parts, start)

    def _parse_escape(self) -> str:
        """Parse an escape that starts with a backslash. Return its text."""
        match = _ESCAPE.match(self.text, self.pos)
        if match is None:
            escape = self.text[self.pos : self.pos + 2].rstrip("\r\n")
            raise ParseError(
                f'no escape "{escape}" exists', self.pos, self.pos + len(escape),
                'write \\\\ for a backslash; the escapes are \\n \\r \\t \\" \\\\ \\uNNNN \\UNNNNNNNN',
            )  # fmt: skip
        start = self.pos
        self.pos = match.end()
        if match[1]:
            return _LETTER_ESCAPES[match[1]]
        code = int(match[2] or match[3], 16)
        if code > 0x10FFFF or 0xD800 <= code <= 0xDFFF:
            raise ParseError(f'"{match[0]}" is no character', start, self.pos, "write \\UNNNNNNNN for a large code")
        return chr(code)

    def _add_text(self, parts: list[object], text: str, *, strips_next: bool) -> bool:
        """Append literal text of a quoted or raw string. Return whether the next text is still to be stripped."""
        if strips_next:
            text = text.lstrip(_BLANKS)
            if not text:
                return True
        if parts and isinstance(parts[-1], list):
            parts[-1].append(text)
        else:
            parts.append([text])  # A list of pieces: joining them once takes linear time.
        return False

    def _build_template(self, parts: list[object], start: int) -> SyntaxNode:
        """Return the node of a quoted or raw string: a literal, the only expression, or a template."""
        joined = _join_texts(parts)
        if not joined:
            return LiteralNode("", start, self.pos)
        if len(joined) == 1:
            only = joined[0]
            if isinstance(only, str):
                return LiteralNode(normalize_text(only), start, self.pos)
            if isinstance(only, SyntaxNode):
                return only
        return TemplateNode(joined, start, self.pos)

    # -- raw templates

    def parse_raw(self, ranges: list[tuple[int, int]] | None = None) -> SyntaxNode:
        """Parse the whole source as a template without escapes: the text of a JSON string.

        The offsets of its interpolations, directives and escapes such as `$${` are added to `ranges`.
        """
        stack = [_OpenDirective("", 0, 0)]
        strips_next = False
        while self.pos < len(self.text):
            plain = _RAW_TEXT.match(self.text, self.pos)
            if plain is not None:
                strips_next = self._add_text(stack[-1].target, plain[0], strips_next=strips_next)
                self.pos = plain.end()
                continue
            start = self.pos
            strips_next = self._parse_marker(stack, strips_next=strips_next)
            if ranges is not None:
                ranges.append((start, self.pos))
        self._require_closed(stack)
        return self._build_template(stack[0].parts, 0)

    # -- markers

    def _parse_marker(
        self,
        stack: list[_OpenDirective],
        *,
        strips_next: bool,
        template_fix: str | None = None,
        is_heredoc: bool = False,
    ) -> bool:
        """Parse an interpolation, a directive or an escape such as `$${`. Return whether to strip the text after it."""
        start = self.pos
        self.node_count += 1
        self.count_node(start)
        marker = _MARKER.match(self.text, start)
        assert marker is not None, "text stops only before a marker"
        signs = marker[1]
        self.pos = marker.end()
        if len(signs) > 1:
            escaped = f"{signs[2:]}{signs[0]}{{"
            if is_heredoc:
                stack[-1].target.append(_HeredocText(escaped, is_line_start=False))
                return False
            return self._add_text(stack[-1].target, escaped, strips_next=strips_next)
        if template_fix is not None:
            closing = self.text.find("}", self.pos, start + MAX_INTERPOLATION_CHARS)
            quote = self.text.find('"', self.pos, start + MAX_INTERPOLATION_CHARS)
            end = closing + 1 if 0 <= closing < quote else self.pos
            raise ParseError(
                f"a label is a plain text: it is not computed, so it has no {signs}{{", start, end, template_fix
            )
        strips_before = self.starts_with("~")
        if strips_before:
            self.pos += 1
            _strip_end(stack[-1].target, is_heredoc=is_heredoc)
        if signs == "%":
            self._parse_directive(stack, start)
            return self.text[self.pos - 2] == "~"
        inner_start = self.pos
        self.enter(start)
        if self.starts_with("#"):
            raise ParseError("${# is no interpolation", start, self.pos + 1, _SHELL_FIX)
        try:
            node = self.parse_expression(ANY_MODE)
            strips_after = self._parse_interpolation_end(start)
        except ParseError as error:
            if not error.fix and error.start < start + MAX_INTERPOLATION_CHARS:
                error.fix = _SHELL_FIX
            raise
        self.depth -= 1
        if isinstance(node, ReferenceNode) and not strips_before and not strips_after:
            # Blanks around a reference for the node stay.
            raw = self.text[inner_start : self.pos - 1]
            if raw.strip(_BLANKS) == node.text:
                node.text = raw
        stack[-1].target.append(node)
        return strips_after

    def _parse_interpolation_end(self, start: int) -> bool:
        """Skip the closing brace of an interpolation. Return whether to strip the text after it."""
        self.skip_any_blank()
        strips_after = self.starts_with("~}")
        if not strips_after and not self.starts_with("}"):
            fix = "write } at its end" if self.starts_with('"') else _SHELL_FIX
            raise self.make_unexpected_error(
                'an operator or "}" of the interpolation', fix, (start, start + 2, "opened at")
            )
        self.pos += 2 if strips_after else 1
        return strips_after

    def _parse_directive(self, stack: list[_OpenDirective], start: int) -> None:
        """Parse a directive after its `%{`, and open or close its part of the template."""
        self.skip_any_blank()
        word = NAME.match(self.text, self.pos)
        name = word[0] if word is not None else ""
        if word is not None:
            self.pos = word.end()
        innermost = stack[-1]
        match name:
            case "if":
                self.enter(start)
                opened = _OpenDirective("if", start, start)
                opened.condition = self.parse_expression(ANY_MODE)
                stack.append(opened)
            case "for":
                self.enter(start)
                opened = _OpenDirective("for", start, start)
                opened.loop, opened.names = self.parse_loop_head()
                stack.append(opened)
            case "else" if innermost.word == "if" and innermost.else_parts is None:
                innermost.else_parts = []
            case "endif" if innermost.word == "if" and innermost.condition is not None:
                self._close_directive(
                    stack,
                    TemplateIf(
                        innermost.condition, _join_texts(innermost.parts), _join_texts(innermost.else_parts or [])
                    ),
                )
            case "endfor" if innermost.word == "for" and innermost.loop is not None:
                self.unbind_names(innermost.names)
                self.set_cost(innermost.loop)
                self._close_directive(stack, TemplateFor(innermost.loop, _join_texts(innermost.parts)))
            case "else" | "endif" | "endfor":
                raise self._make_unbalanced_error(name, stack, start)
            case _:
                raise ParseError(
                    f'expected a directive ({_DIRECTIVES}), found "{name[:80]}"' if name else
                    f"expected a directive ({_DIRECTIVES})",
                    start, self.pos, _DIRECTIVE_FIX,
                )  # fmt: skip
        self.skip_any_blank()
        if self.starts_with("~"):
            self.pos += 1
        if not self.starts_with("}"):
            raise self.make_unexpected_error(
                f'"}}" of the directive {name}', _DIRECTIVE_FIX, (start, start + 2, "opened at")
            )
        self.pos += 1
        if name in ("if", "for"):
            stack[-1].end = self.pos

    def _close_directive(self, stack: list[_OpenDirective], part: TemplateIf | TemplateFor) -> None:
        stack.pop()
        self.depth -= 1
        stack[-1].target.append(part)

    def _make_unbalanced_error(self, name: str, stack: list[_OpenDirective], start: int) -> ParseError:
        innermost = stack[-1]
        if not innermost.word:
            opener = "for" if name == "endfor" else "if"
            return ParseError(f"{name} without a directive %{{ {opener} }} before it", start, self.pos, _DIRECTIVE_FIX)
        related = (innermost.start, innermost.end, f"{innermost.describe()} begins at")
        if name == "else" and innermost.word == "if":
            return ParseError("a second else", start, self.pos, "delete one", related)
        return ParseError(
            f"expected end{innermost.word}, found {name}",
            start,
            self.pos,
            f"write %{{ end{innermost.word} }} first",
            related,
        )

    def _require_closed(self, stack: list[_OpenDirective]) -> None:
        """Raise `ParseError` if a directive has no end."""
        innermost = stack[-1]
        if innermost.word:
            raise ParseError(
                f"the directive {innermost.describe()} has no end",
                innermost.start,
                innermost.end,
                f"write %{{ end{innermost.word} }} after its text",
            )

    # -- heredocs

    def parse_heredoc(self) -> SyntaxNode:
        """Parse a heredoc that starts at the position. Afterwards, the position is the end of its closing line."""
        start = self.pos
        opening = HEREDOC_START.match(self.text, start)
        if opening is None:
            end = self.text.find("\n", start)
            raise ParseError(
                "a heredoc starts with <<NAME and the end of the line", start, end if end >= 0 else len(self.text),
                "write <<EOF or <<-EOF, without quotes, blanks or a comment after it",
            )  # fmt: skip
        is_indented, name = opening[1] == "-", opening[2]
        body_start = opening.end()
        body_end, closing_end = self._find_heredoc_end(body_start, name, start)
        body = self.text[body_start:body_end]
        if "${" not in body and "%{" not in body:
            self.pos = closing_end
            text = _remove_indentation_of_lines(body) if is_indented else body
            return LiteralNode(normalize_text(text), start, closing_end)
        return self._parse_heredoc_template(start, name, body_start, is_indented=is_indented)

    def _find_heredoc_end(self, pos: int, name: str, start: int) -> tuple[int, int]:
        """Return the start of the line that closes a heredoc, and the end of the name and the blanks on it."""
        text = self.text
        match_line = _HEREDOC_LINE.match
        while True:
            line = match_line(text, pos)
            if line is not None and line[1] == name:
                return pos, line.end()
            newline = text.find("\n", pos)
            if newline < 0:
                raise FinalError(
                    f"this heredoc has no end: no line holds only {name[:80]}", len(text), len(text),
                    f"write {name[:80]} on a line of its own", (start, start + 2 + len(name), "the heredoc begins at"),
                )  # fmt: skip
            pos = newline + 1

    def _parse_heredoc_template(self, start: int, name: str, body_start: int, *, is_indented: bool) -> SyntaxNode:
        """Parse a heredoc with interpolations or directives."""
        text = self.text
        self.pos = body_start
        body_end, closing_end = self._find_heredoc_end(body_start, name, start)
        stack = [_OpenDirective("", start, start)]
        strips_next = False
        is_line_start = True
        all_texts: list[_HeredocText] = []
        while self.pos != body_end:
            plain = _HEREDOC_TEXT.match(text, self.pos)
            piece = plain[0] if plain is not None else ""
            self.pos += len(piece)
            if piece or is_line_start:
                is_next_line_start = piece.endswith("\n")
                if strips_next:
                    stripped = _HEREDOC_STRIP.match(piece)
                    assert stripped is not None, "the pattern matches every text"
                    is_next_line_start = is_next_line_start and not stripped[1]
                    piece = piece[stripped.end() :]
                part = _HeredocText(piece, is_line_start=is_line_start)
                stack[-1].target.append(part)
                all_texts.append(part)
                strips_next = False
                is_line_start = is_next_line_start
                if self.pos == body_end:
                    break
                if text[self.pos - 1] == "\n" and len(plain[0] if plain else "") > 0:
                    continue
            strips_next = self._parse_marker(stack, strips_next=strips_next, is_heredoc=True)
            is_line_start = False
            if self.pos > body_end:  # The expression spans the line that looked like the end.
                newline = text.find("\n", self.pos)
                body_end, closing_end = self._find_heredoc_end(newline + 1 if newline >= 0 else len(text), name, start)
        self._require_closed(stack)
        self.pos = closing_end
        if is_indented:
            _remove_indentation(all_texts)
        parts = _join_texts(stack[0].parts)
        _finish_texts(parts)
        return TemplateNode(parts, start, closing_end)


def _join_texts(parts: list[object]) -> TemplateParts:
    """Return the parts with the pieces of texts joined and empty texts left out."""
    joined: TemplateParts = []
    for part in parts:
        if isinstance(part, list):
            text = "".join(part)
            if text:
                joined.append(text)
        else:
            joined.append(part)  # type: ignore[arg-type]  # texts of a heredoc stay until `_finish_texts`
    return joined


def _finish_texts(parts: list[Any]) -> None:
    """Replace the texts of a heredoc, whose indentation was removed, by strings. Nesting is limited by the parser."""
    finished: list[Any] = []
    for part in parts:
        if isinstance(part, _HeredocText):
            if part.text:
                finished.append(part.text)
            continue
        if isinstance(part, TemplateIf):
            _finish_texts(part.parts)
            _finish_texts(part.else_parts)
        elif isinstance(part, TemplateFor):
            _finish_texts(part.parts)
        finished.append(part)
    parts[:] = finished


def _strip_end(parts: list[object], *, is_heredoc: bool) -> None:
    """Strip the literal text before a marker that starts with `~`."""
    if not parts:
        return
    last = parts[-1]
    if isinstance(last, _HeredocText):
        last.text = last.text.rstrip(" \t")
    elif isinstance(last, list) and not is_heredoc:
        while last:
            last[-1] = last[-1].rstrip(_BLANKS)
            if last[-1]:
                return
            last.pop()
        parts.pop()


def _remove_indentation(texts: list[_HeredocText]) -> None:
    """Remove the smallest indentation of all lines from each line. Lines of blanks stay and do not count."""
    starts = [t for t in texts if t.is_line_start and not (t.text.endswith("\n") and not t.text.strip(_BLANKS))]
    depth = min((_LEADING_BLANKS.match(t.text).end() for t in starts), default=0)  # type: ignore[union-attr]
    for text in starts:
        text.text = text.text[depth:]


def _remove_indentation_of_lines(body: str) -> str:
    lines = [_HeredocText(f"{line}\n", is_line_start=True) for line in body.split("\n")[:-1]]
    _remove_indentation(lines)
    return "".join(line.text for line in lines)
