"""Highlighted code as terminal lines, straight from Pygments: long blocks must stay cheap."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

from pygments.lexer import Lexer
from pygments.lexers import get_lexer_by_name
from pygments.token import _TokenType
from pygments.util import ClassNotFound
from rich.segment import Segment
from rich.style import Style
from rich.syntax import Syntax
from textual.strip import Strip

_BAR = "│ "


class CodeRenderer:
    """Draws code behind a bar in one Rich or Pygments colour theme."""

    def __init__(self, theme: str, bar: Style) -> None:
        self._theme = Syntax.get_theme(theme)
        self._styles: dict[_TokenType, Style] = {}
        self._lexers: dict[str, Lexer | None] = {}
        self._bar = Segment(_BAR, bar)

    def lines(self, code: str, language: str, width: int, *, titled: bool) -> list[Strip]:
        """The lines of ``code``, cut at ``width`` cells; ``titled`` puts the language above."""
        bar = self._bar
        strips = []
        title = [[Segment(language, bar.style)]] if titled and language else []
        room = max(width - bar.cell_length, 1)
        segments = self._segments(code.rstrip("\n"), language)
        for line in chain(title, Segment.split_lines(segments)):
            length = Segment.get_line_length(line)
            if length <= room:
                strips.append(Strip([bar, *line]))
            else:
                cuts = range(room, length + room, room)
                strips += [Strip([bar, *piece]) for piece in Segment.divide(line, cuts)]
        return strips or [Strip([bar])]

    def _segments(self, code: str, language: str) -> Iterator[Segment]:
        lexer = self._lexer(language)
        if lexer is None:
            yield Segment(code)
            return
        for token_type, value in lexer.get_tokens(code):  # type: ignore[no-untyped-call]
            yield Segment(value, self._style(token_type))

    def _lexer(self, language: str) -> Lexer | None:
        if language not in self._lexers:
            try:
                lexer = get_lexer_by_name(language, stripnl=False, ensurenl=False)  # type: ignore[no-untyped-call]
            except ClassNotFound:
                lexer = None
            self._lexers[language] = lexer
        return self._lexers[language]

    def _style(self, token_type: _TokenType) -> Style:
        """The theme's style without its background, which is ours."""
        style = self._styles.get(token_type)
        if style is None:
            full = self._theme.get_style_for_token(token_type)
            style = Style(color=full.color, bold=full.bold, italic=full.italic)
            self._styles[token_type] = style
        return style
