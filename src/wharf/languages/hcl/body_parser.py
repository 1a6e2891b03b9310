"""Parses bodies: arguments and blocks. After an error, it continues with the next item to find further errors."""

import re
from typing import Final, NoReturn

from wharf.languages.hcl.amounts import CORE_SHARE_FIX, UNIT_NAMES, find_duration, find_sized_number, is_core_share
from wharf.languages.hcl.bodies import BlockLabel, SyntaxArgument, SyntaxBlock, SyntaxBody
from wharf.languages.hcl.diagnostics import MAX_DIAGNOSTICS, DiagnosticList, SourceFile, SourceRange
from wharf.languages.hcl.expression_parser import ExpressionParser
from wharf.languages.hcl.nodes import LiteralNode, SyntaxNode
from wharf.languages.hcl.reader import (
    ANY_BLANK_PATTERN,
    LINE_BLANK,
    LINE_END,
    LINE_MODE,
    NAME,
    NAME_PATTERN,
    FinalError,
    MalformedNumberError,
    OpenEndedError,
    ParseError,
    make_bare_text_error,
)
from wharf.languages.hcl.template_parser import HEREDOC_START
from wharf.languages.hcl.values import Value, normalize_text

# Most lines of a document are of this form. One match for the whole line is several times faster than its parts.
_SIMPLE_ARGUMENT: Final = re.compile(
    rf"{ANY_BLANK_PATTERN}({NAME_PATTERN})[ \t]*+=[ \t]*+"
    r'(?:("[^"\\$%\r\n]*+")|([0-9]{1,17}+)(?![\w.])|(true|false|null)(?![\w\-]))'
    r"[ \t]*+(?:(?:#|//)[^\n]*+)?+\r?\n"
)
_LITERALS: Final = {"true": True, "false": False, "null": None}
_PLAIN_LABEL: Final = re.compile(r'"([^"\\$%\r\n]*+)"')
_ITEM_START: Final = re.compile(rf'[ \t]*+{NAME_PATTERN}[ \t]*+(?:=(?!=)|\{{|")')
_ITEM_LINE: Final = re.compile(
    rf'[ \t]*+(?:\}}|#|/[/*]|\r?$|{NAME_PATTERN}[ \t]*+(?:[=:{{]|"[^"\n]*+"[ \t]*+[{{"]))', re.MULTILINE
)
_BRACE_BELOW: Final = re.compile(r"(?:(?:#|//)[^\n]*+)?+\r?\n[ \t\r\n]*+\{")
_BLOCK_HEADER: Final = re.compile(rf'({NAME_PATTERN})[ \t]*+["{{]')
_HEADER_START: Final = re.compile(rf'{NAME_PATTERN}[ \t]*+(?:=(?!=)|\{{|"|{NAME_PATTERN}[ \t]*+[{{"])')
# What may span lines or hold brackets, for the search for the end of an item after an error.
_SKIPPED: Final = re.compile(
    r'(?>[^"#/<\[\](){}\n]++)|"(?:[^"\\\n]|\\.)*+"|(?:#|//)[^\n]*+|/\*(?>[^*]++|\*(?!/))*+\*/|[\s\S]'
)
_SEPARATOR: Final = re.compile(r"[,;][ \t]*+")
# A heredoc whose first line has quotes, blanks or a comment.
_WRONG_HEREDOC: Final = re.compile(rf"<<(-?+)[ \t]*+[\"']?+({NAME_PATTERN})[^\n]*+\n")
_INDENTATION: Final = re.compile(r"[ \t]*+")
# `[[ .name ]]` and `[[ var "x" . ]]`, but not a list of lists such as `[[1], [2]]`.
_FOREIGN_MARK: Final = re.compile(r"\[\[-? *+(?:[.$]|[A-Za-z_]++ )[^\[\]]*+\]\]|\{\{")
MAX_SEARCHED_CHARS: Final = 10_000
"""The part of a line in which the marks of another template language are searched."""
_OPENINGS: Final = {"]": "[", ")": "(", "}": "{"}
MAX_SKIPPED_PIECES: Final = 200_000
"""The pieces of text that all searches for the end of an item with an error may read together."""
_FREE_FORM_BLOCKS: Final = ("config", "policy")
_TEXT_MAPS: Final = ("meta", "env")
# A value without quotes up to the end of its line, such as `/bin/true`, `redis:7` and `50%`.
_BARE_VALUE: Final = re.compile(r"([\w./~][\w./~:@%+*-]*+)[ \t]*+(?=(?:#|//)[^\n]*+|\r?\n|\Z)")
_NO_BARE_TEXT: Final = re.compile(
    r"\A(?:[0-9]++(?:\.[0-9]*+)?+(?![%:])\W*+|\.[0-9]*+|[\w-]*+)\Z|\A(?:var|local)\.|\*|\+"
)
_EXPECTED_ITEM: Final = "an argument or a block"


class _TooManyErrors(Exception):
    """The document has as many errors as are reported. Further ones are not searched."""


class BodyParser(ExpressionParser):
    """Parses a document. `diagnostics` collects the errors."""

    def __init__(self, source: SourceFile, diagnostics: DiagnosticList) -> None:
        super().__init__(source)
        self._diagnostics = diagnostics
        self._has_unclosed_block = False
        self._skippable_pieces = MAX_SKIPPED_PIECES
        self._free_form_depth = 0
        """How many free-form blocks, such as `config`, and blocks inside them are open."""

    def parse_document_body(self) -> SyntaxBody:
        """Parse the whole source. The errors are in the list of diagnostics."""
        body = SyntaxBody()
        try:
            while not self._parse_items(body, None):
                self._add_error(
                    ParseError(
                        'found "}", but no block is open', self.pos - 1, self.pos, "delete it, or the } before it"
                    )
                )
        except _TooManyErrors:
            pass
        if self._has_unclosed_block:
            self._report_unclosed(body)
        return body

    def _add_error(self, error: ParseError) -> None:
        """Collect an error. Raises `_TooManyErrors` after the last that is reported."""
        related = None
        if not error.fix and _FOREIGN_MARK.search(self.source.get_line_text(error.start)[:MAX_SEARCHED_CHARS]):
            error.fix = "the line has [[ or {{ of another template language: render the file first"
        if error.related is not None:
            start, end, description = error.related
            related = (SourceRange(self.source, start, end), description)
        self._diagnostics.add(self.source, error.start, error.end, error.message, error.fix, related=related)
        if len(self._diagnostics.diagnostics) >= MAX_DIAGNOSTICS:
            raise _TooManyErrors

    # -- items

    def _parse_items(self, body: SyntaxBody, block: SyntaxBlock | None, *, is_one_line: bool = False) -> bool:
        """Parse items up to the brace that closes the block. Return whether the end of the file was reached instead.

        In a block on one line, only one argument is allowed. After an error there, the rest of the block may have any form.
        """
        text = self.text
        is_lenient = False
        count = 0
        while True:
            if not is_one_line:
                simple = _SIMPLE_ARGUMENT.match(text, self.pos)
                if simple is not None:
                    self._add_simple_argument(body, simple)
                    continue
                self.skip_any_blank()
            else:
                self.skip_line_blank()
            start = self.pos
            character = text[start : start + 1]
            if character == "}":
                self.pos += 1
                return False
            if not character:
                self._has_unclosed_block = self._has_unclosed_block or block is not None
                return True
            if is_one_line and not is_lenient:
                problem = self._check_one_line(block, count)
                if problem is not None:
                    self._add_error(problem)
                    is_one_line, is_lenient = False, True
                    continue
            if is_lenient and character in ",;":
                self.pos += 1
                continue
            count += 1
            depth = self.depth
            try:
                self._parse_item(body, block)
                if not is_one_line and not is_lenient:
                    self._parse_line_end(is_in_block=block is not None)
            except ParseError as error:
                self.depth = depth
                self._bound_names.clear()
                self._add_error(error)
                if isinstance(error, FinalError):
                    raise _TooManyErrors from None
                self._skip_item(start, error)
                if isinstance(error, OpenEndedError):
                    self._skip_text_lines()
                if is_one_line:
                    is_one_line, is_lenient = False, True

    def _check_one_line(self, block: SyntaxBlock | None, count: int) -> ParseError | None:
        """Return the error of a block on one line that has more than one argument, or is not closed on its line."""
        start, end = self.pos, min(self.pos + 1, len(self.text))
        kind = block.type[:80] if block is not None else "block"
        if LINE_END.match(self.text, start) is not None:
            return ParseError(
                "a block that begins with an argument on its first line is closed on that line", start, end,
                f"start the line after {kind} ... {{ with the argument, and put }} on a line of its own",
            )  # fmt: skip
        if count:
            separator = _SEPARATOR.match(self.text, start)
            if separator is not None:
                if self.text.startswith("}", separator.end()) or separator.end() == len(self.text):
                    return self._make_separator_error()
                start, end = separator.end(), separator.end() + 1
            name = NAME.match(self.text, start)
            return ParseError(
                "a block on one line has only one argument", start, name.end() if name else end,
                "put each argument on a line of its own, and { and } at the ends of other lines",
            )  # fmt: skip
        header = _BLOCK_HEADER.match(self.text, start)
        if header is not None:
            return ParseError(
                "a block on one line has no other block inside", start, header.end(1),
                "start a new line after { and put } on a line of its own",
            )  # fmt: skip
        return None

    def _add_simple_argument(self, body: SyntaxBody, match: re.Match[str]) -> None:
        """Add the argument of a line with a name and a literal."""
        kind = match.lastindex
        assert kind is not None, "a group for the value always matches"
        start, end = match.span(kind)
        literal = match[kind]
        value: Value = normalize_text(literal[1:-1]) if kind == 2 else int(literal) if kind == 3 else _LITERALS[literal]
        self.pos = match.end()
        name = match[1]
        argument = SyntaxArgument(name, match.start(1), match.end(1), LiteralNode(value, start, end))
        if name in body.arguments:
            self._add_duplicate(body.arguments[name], argument)
        else:
            body.arguments[name] = argument

    def _parse_item(self, body: SyntaxBody, outer: SyntaxBlock | None) -> None:
        """Parse an argument or a block, inside the block `outer` or at the top level."""
        start = self.pos
        match = NAME.match(self.text, start)
        if match is None:
            raise self._make_item_error(outer)
        name = match[0]
        self.pos = name_end = match.end()
        self.skip_line_blank()
        character = self.text[self.pos : self.pos + 1]
        if character == "=" and not self.starts_with("=="):
            self.pos += 1
            references, calls = self.references, self.calls
            self.references, self.calls = [], []
            self.skip_line_blank()
            if LINE_END.match(self.text, self.pos) is not None:
                raise OpenEndedError(
                    f'"{name[:80]}" has no value on its line', start, self.pos, "write the value on the same line"
                )
            value = self._parse_value(name, outer)
            argument = SyntaxArgument(name, start, name_end, value, self.references, self.calls)
            self.references, self.calls = references, calls
            if name in body.arguments:
                self._add_duplicate(body.arguments[name], argument)
            else:
                body.arguments[name] = argument
            return
        if character in ('"', "{") or NAME.match(self.text, self.pos) is not None:
            self._parse_block(body, name, start, name_end)
            return
        fix = f"write {name[:80]} = ..."
        if character == "=":
            raise ParseError('expected "=", found "=="', self.pos, self.pos + 2, fix)
        if character == ".":
            fix = f'a name has no dots; for a key such as "{name[:80]}.x", {self._suggest_object(f"{name[:80]}.x", outer)}'
        if LINE_END.match(self.text, self.pos) is not None:
            fix = "the = and its value, or the { of a block, are on the same line as the name"
        raise self.make_unexpected_error(f'"=" or "{{" after {name[:80]}', fix)

    def _parse_value(self, name: str, outer: SyntaxBlock | None) -> SyntaxNode:
        """Parse the value of an argument. Raises `ParseError`, which says what to write instead of a value without quotes."""
        start = self.pos
        error: ParseError | None = None
        try:
            value = self.parse_expression(LINE_MODE)
        except ParseError as failure:
            error = failure
            if isinstance(error, FinalError):
                raise
        end = error.start if error is not None else self.pos
        is_unread = self.text[end : end + 1] in ":@/" and not self.text.startswith(("//", "/*"), end)
        bare = _BARE_VALUE.match(self.text, start) if error is not None or is_unread else None
        if isinstance(error, MalformedNumberError) and error.start == start:
            is_amount = LINE_END.match(self.text, LINE_BLANK.match(self.text, error.end).end())  # type: ignore[union-attr]
            fix = self._suggest_amount(name, self.text[start : error.end], outer) if is_amount else None
            if fix is not None:
                error.fix = fix
                raise error
        if bare is not None and end <= bare.end() and _NO_BARE_TEXT.search(bare[1]) is None:
            raise make_bare_text_error(bare[1], start, bare.end(1))
        if error is not None:
            raise error
        return value

    def _suggest_amount(self, name: str, text: str, outer: SyntaxBlock | None) -> str | None:
        """Return what to write instead of a number with a unit, such as `256MB`, or `None` if it is no such number."""
        kind = outer.type if outer is not None else ""
        size = find_sized_number(text)
        if size is not None and self._free_form_depth:
            return f'write {name[:80]} = "{text[:40]}", or the number without a unit if the option is a number'
        if size is not None and kind not in _TEXT_MAPS:
            return f"write {name[:80]} = {size[0]}, without a unit: the number is in {UNIT_NAMES[size[1]]}"
        if name == "cpu" and is_core_share(text):
            return CORE_SHARE_FIX
        duration = find_duration(text)
        return f'write {name[:80]} = "{duration[:40]}"' if duration is not None and kind not in _TEXT_MAPS else None

    def _make_item_error(self, outer: SyntaxBlock | None) -> ParseError:
        """Return the error for a text that starts no item."""
        if self.starts_with('"'):
            start = self.pos
            label = _PLAIN_LABEL.match(self.text, start)
            end = label.end() if label is not None else start + 1
            name = label[1] if label is not None else ""
            return ParseError(
                "the name of an argument has no quotes", start, end,
                f'for a name such as "{name[:80]}", {self._suggest_object(name[:80], outer)}',
            )  # fmt: skip
        if self.starts_with(","):
            return ParseError("an argument ends with its line", self.pos, self.pos + 1, "delete the comma")
        return self.make_unexpected_error(_EXPECTED_ITEM)

    def _suggest_object(self, key: str, outer: SyntaxBlock | None) -> str:
        """Return how to write a key that is no name: `meta` and `env` may be objects, and other blocks may contain one."""
        kind = outer.type[:80] if outer is not None else ""
        if kind in _FREE_FORM_BLOCKS:
            return f'write an object, such as labels = {{ "{key}" = ... }}'
        if not self._free_form_depth and kind not in _TEXT_MAPS:
            kind = _TEXT_MAPS[0]
        return f'write an object: {kind} = {{ "{key}" = ... }}'

    def _add_duplicate(self, first: SyntaxArgument, second: SyntaxArgument) -> None:
        self._add_error(
            ParseError(
                f'the argument "{second.name[:80]}" occurs twice',
                second.name_start,
                second.name_end,
                "delete one of them",
                (first.name_start, first.name_end, "the first is at"),
            )
        )

    def _parse_line_end(self, *, is_in_block: bool) -> None:
        """Skip the end of the line after an item. If something else follows, add an error and continue with it."""
        self.skip_line_blank()
        end = LINE_END.match(self.text, self.pos)
        if end is not None:
            self.pos = end.end()
            return
        start = self.pos
        character = self.text[start]
        if character in ",;":
            self._add_error(self._make_separator_error())
            self.pos += 1
            self.skip_line_blank()
        elif character == "}" and not is_in_block:
            return  # The caller reports the brace.
        elif character == "}":
            self._add_error(
                ParseError(
                    "the } that closes a block is on a line of its own", start, start + 1, "start a new line before it"
                )
            )
        elif _HEADER_START.match(self.text, start) is not None:
            name = NAME.match(self.text, start)
            self._add_error(
                ParseError(
                    "expected the end of the line, found another argument or block",
                    start,
                    name.end() if name is not None else start + 1,
                    "put each argument and each block on a line of its own",
                )
            )
        elif character == ":":
            raise ParseError('expected the end of the line, found ":"', start, start + 1, "= sets an argument")
        else:
            raise self.make_unexpected_error("an operator or the end of the line")

    def _make_separator_error(self) -> ParseError:
        """Return the error for a comma or semicolon after an argument."""
        sign = "comma" if self.starts_with(",") else "semicolon"
        end = LINE_BLANK.match(self.text, self.pos + 1).end()  # type: ignore[union-attr]  # it always matches
        fix = f"delete the {sign}"
        if LINE_END.match(self.text, end) is None and not self.text.startswith("}", end):
            fix += ", and put what follows on a line of its own"
        return ParseError("an argument ends with its line", self.pos, self.pos + 1, fix)

    # -- blocks

    def _parse_block(self, body: SyntaxBody, name: str, start: int, name_end: int) -> None:
        """Parse the labels and the body of a block."""
        labels: list[BlockLabel] = []
        header_end: int | None = None
        while not self.starts_with("{"):
            label_start = self.pos
            plain = _PLAIN_LABEL.match(self.text, label_start) or NAME.match(self.text, label_start)
            if plain is not None:
                self.pos = plain.end()
                labels.append(BlockLabel(plain[1] if plain.re is _PLAIN_LABEL else plain[0], label_start, self.pos))
            elif self.starts_with('"'):
                node = self.parse_quoted(template_fix=_suggest_computed_label(name))
                text = node.value if isinstance(node, LiteralNode) else ""
                labels.append(BlockLabel(str(text), label_start, self.pos))
            elif _BRACE_BELOW.match(self.text, self.pos) is not None:
                header_end = self.pos
                self._add_error(self.make_unexpected_error('"{"', f"write {{ on the line of {name[:80]}"))
                self.skip_any_blank()
            else:
                self._raise_header_error(name, bool(labels))
            self.skip_line_blank()
        header_end = header_end or self.pos
        while header_end > start and self.text[header_end - 1] in " \t":
            header_end -= 1
        self.enter(self.pos)
        self.count_node(start)
        self.pos += 1
        block = SyntaxBlock(name, labels, SyntaxBody(), start, name_end, header_end)
        body.blocks.append(block)
        self.skip_line_blank()
        line_end = LINE_END.match(self.text, self.pos)
        if line_end is not None:
            self.pos = line_end.end()
        is_free_form = bool(self._free_form_depth) or name in _FREE_FORM_BLOCKS
        self._free_form_depth += is_free_form
        is_end_of_file = self._parse_items(block.body, block, is_one_line=line_end is None)
        self._free_form_depth -= is_free_form
        block.end = -1 if is_end_of_file else self.pos
        self.depth -= 1

    def _raise_header_error(self, name: str, has_labels: bool) -> NoReturn:
        fix = ""
        if self.starts_with("="):
            fix = f"a block has no = after its labels: write {name[:80]} ... {{"
        elif LINE_END.match(self.text, self.pos) is not None:
            fix = f"for a block, write {{ on the line of {name[:80]}"
            if has_labels:
                fix += f"; for an argument, write {name[:80]} = ..."
        elif not has_labels:
            fix = f"= sets an argument: {name[:80]} = ..."
        raise self.make_unexpected_error('a label or "{"', fix)

    def _report_unclosed(self, body: SyntaxBody) -> None:
        """Report the block without an end, and the first line whose indentation disagrees with the braces."""
        unclosed: SyntaxBlock | None = None
        suspicious: tuple[SyntaxBlock, int] | None = None
        pending = [*body.blocks]
        while pending:
            block = pending.pop()
            pending += block.body.blocks
            if block.end < 0 and (unclosed is None or block.start > unclosed.start):
                unclosed = block
            indentation = self._measure_indentation(block.start)
            offsets = [argument.name_start for argument in block.body.arguments.values()]
            offsets += [inner.start for inner in block.body.blocks]
            limits = [offset for offset in offsets if self._measure_indentation(offset) <= indentation]
            if block.end > 0 and self._measure_indentation(block.end - 1) < indentation:
                limits.append(block.end - 1)
            # Items on the line of the header have its indentation.
            header_line = self.source.get_line_start(block.start)[0]
            limits = [offset for offset in limits if self.source.get_line_start(offset)[0] != header_line]
            if limits and (suspicious is None or min(limits) < suspicious[1]):
                suspicious = (block, min(limits))
        if suspicious is not None:
            block, offset = suspicious
            related = (SourceRange(self.source, offset, offset + 1), "the first line whose indentation disagrees is")
        elif unclosed is not None:
            block, related = unclosed, None
        else:
            return
        self._diagnostics.add(
            self.source,
            block.start,
            block.header_end,
            f"the block {block.type[:80]} has no closing brace",
            "write } on a line of its own after its last argument",
            related=related,
        )

    def _measure_indentation(self, offset: int) -> int:
        start = self.source.get_line_start(offset)[1]
        return _INDENTATION.match(self.text, start).end() - start  # type: ignore[union-attr]  # it always matches

    # -- recovery

    def _skip_item(self, start: int, error: ParseError) -> None:
        """Skip the rest of an item with an error, so that the next item is parsed as if the error was not there."""
        text = self.text
        error_line_start = text.rfind("\n", 0, error.start) + 1
        if error_line_start > start and _ITEM_START.match(text, error_line_start) is not None:
            # The error is where the next item begins: the item before it is not complete.
            self.pos = error_line_start
            return
        openings: list[str] = []
        pos = start
        while pos < len(text) and self._skippable_pieces > 0:
            self._skippable_pieces -= 1
            heredoc = HEREDOC_START.match(text, pos) if text.startswith("<<", pos) else None
            if pos == error.start:
                heredoc = _WRONG_HEREDOC.match(text, pos) if heredoc is None else None
            if heredoc is not None:
                pos = self._skip_heredoc(heredoc)
                continue
            match = _SKIPPED.match(text, pos)
            assert match is not None, "the pattern matches every character"
            character = match[0]
            if character in ("[", "(", "{"):
                openings.append(character)
            elif character in _OPENINGS:
                if openings and openings[-1] == _OPENINGS[character]:
                    openings.pop()
                elif character == "}" and pos >= error.start:
                    self.pos = pos  # This brace closes the block.
                    return
            elif character == "\n" and not openings and pos >= error.start:
                self.pos = pos + 1
                return
            pos = match.end()
        newline = text.find("\n", error.start)
        self.pos = newline + 1 if newline >= 0 and (openings or pos < len(text)) else len(text)

    def _skip_text_lines(self) -> None:
        """Skip the lines that look like the rest of a string, not like an item, a comment or a closing brace."""
        text = self.text
        while self.pos < len(text) and self._skippable_pieces > 0:
            self._skippable_pieces -= 1
            newline = text.find("\n", self.pos)
            if newline < 0 or _ITEM_LINE.match(text, self.pos) is not None:
                return
            self.pos = newline + 1

    def _skip_heredoc(self, heredoc: re.Match[str]) -> int:
        """Return the offset after a heredoc, or of the end of its first line if it has no end."""
        try:
            return self._find_heredoc_end(heredoc.end(), heredoc[2], heredoc.start())[1]
        except ParseError:
            if heredoc.re is HEREDOC_START:
                self._skippable_pieces = 0  # Searching again would read the whole rest again.
            return heredoc.end() - 1


def _suggest_computed_label(kind: str) -> str:
    """Return how a block of this type gets a computed name."""
    if kind == "job":
        return 'write a fixed label, and id = "..." and name = "..." in the job: these may be computed'
    return (
        f'for a computed label, write dynamic "{kind[:80]}" {{ with for_each, labels = ["..."] and content {{ ... }}; '
        "for a plain ${, write $${"
    )


def is_json(text: str) -> bool:
    """Return whether a document is in the JSON form: its first character that is no blank is a brace."""
    return text.lstrip(" \t\r\n").startswith("{")
