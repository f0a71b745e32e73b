"""Markdown as it streams: what can no longer change is rendered once."""

from __future__ import annotations

import re

from markdown_it.token import Token
from textual.strip import Strip

from pkvchat.clean import visible

from .markdown import MarkdownRenderer, parse

# An open code block is highlighted in pieces of this many lines, so that a new line's cost does
# not grow with the block.
_CODE_PIECE = 32
_BLANK = Strip([])
_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})([^\n]*)\n")


class StreamedMarkdown:
    """The lines of a growing text at one width.

    A top-level block is final once a whole line of another follows it; only the text after the
    last final block is parsed again when more arrives. A code block is not parsed at all until
    its end.
    """

    def __init__(self, renderer: MarkdownRenderer, width: int) -> None:
        self._renderer = renderer
        self._width = width
        self._final: list[Strip] = []
        self._chars = 0  # of the text that is final
        self._fence: _Fence | None = None

    def lines(self, text: str) -> list[Strip]:
        """All lines of ``text``, which begins with what the last call's text held."""
        while fence := self._fence or self._open_fence(text):
            self._fence = fence
            if not fence.read(text):
                return self._with(fence.lines(text))
            self._final = self._with(fence.lines(text))
            self._chars, self._fence = fence.end, None

        rest = visible(text[self._chars :])
        blocks = _top_level(parse(rest))
        source = rest.splitlines(keepends=True)
        open_from = _first_open(blocks, complete_lines=rest.count("\n"))
        for index, block in enumerate(blocks[: open_from + 1]):
            if index == open_from or block[0].type == "fence":
                self._chars = _line_start(text, self._chars, _first_line(block))
                if self._open_fence(text):
                    return self.lines(text)  # the loop above takes it from here
                blocks = blocks[index:]
                break
            self._final = self._with(self._block(block, source))
        lines = self._final
        for block in blocks:
            drawn = self._block(block, source)
            lines = [*lines, _BLANK, *drawn] if lines and drawn else lines + drawn
        return lines

    def _open_fence(self, text: str) -> _Fence | None:
        match = _FENCE.match(text, self._chars)
        if match is None or (match[1][0] == "`" and "`" in match[2]):
            return None
        return _Fence(match, self._renderer, self._width)

    def _with(self, block: list[Strip]) -> list[Strip]:
        return [*self._final, _BLANK, *block] if self._final and block else self._final + block

    def _block(self, block: list[Token], source: list[str]) -> list[Strip]:
        first, last = block[0].map or (0, len(source))
        return self._renderer.block(block, "".join(source[first:last]), self._width)


class _Fence:
    """A fenced code block that grows. ``end``: where the text after it starts, once closed."""

    def __init__(self, opening: re.Match[str], renderer: MarkdownRenderer, width: int) -> None:
        self.end = opening.end()
        self._closing = re.compile(rf" {{0,3}}{opening[1][0]}{{{len(opening[1])},}}[ \t]*\r?$")
        self._language = visible(opening[2]).strip().partition(" ")[0]
        self._renderer = renderer
        self._width = width
        self._pieces: list[Strip] = []
        self._piece_start = opening.end()
        self._piece_lines = 0
        self._code_end: int | None = None

    def read(self, text: str) -> bool:
        """Take in the lines that are complete; True once the closing line was among them."""
        while (line_end := text.find("\n", self.end)) >= 0:
            line_start, self.end = self.end, line_end + 1
            if self._closing.match(text[line_start:line_end]):
                self._code_end = line_start
                return True
            self._piece_lines += 1
            if self._piece_lines == _CODE_PIECE:
                self._pieces += self._code(text[self._piece_start : self.end])
                self._piece_start, self._piece_lines = self.end, 0
        return False

    def lines(self, text: str) -> list[Strip]:
        rest = text[self._piece_start : self._code_end]
        if self._code_end is None and self._closing.match(text[self.end :]):
            rest = text[self._piece_start : self.end]  # the closing line, not yet ended
        return self._pieces + self._code(rest) if rest or not self._pieces else self._pieces

    def _code(self, code: str) -> list[Strip]:
        titled = not self._pieces
        return self._renderer.code(visible(code), self._language, self._width, titled=titled)


def _top_level(tokens: list[Token]) -> list[list[Token]]:
    """Tokens grouped by top-level block."""
    blocks: list[list[Token]] = []
    for token in tokens:
        if token.level == 0 and token.nesting >= 0:
            blocks.append([])
        blocks[-1].append(token)
    return blocks


def _first_open(blocks: list[list[Token]], complete_lines: int) -> int:
    """The first block that may still change: the last, or the one before it while the last has
    but a part of a line, which may yet turn out to belong to that one."""
    last = len(blocks) - 1
    partial = last > 0 and _first_line(blocks[last]) >= complete_lines
    return last - 1 if partial else last


def _first_line(block: list[Token]) -> int:
    return block[0].map[0] if block[0].map else 0


def _line_start(text: str, position: int, lines: int) -> int:
    """Where the line ``lines`` after the one at ``position`` starts."""
    for _ in range(lines):
        position = text.find("\n", position) + 1
    return position
