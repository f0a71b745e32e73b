"""Rich's Markdown, as a chat wants it: every character kept, plain headings, framed code."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import ClassVar

from markdown_it import MarkdownIt
from markdown_it.token import Token
from rich import markdown as rich_markdown
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.markdown import MarkdownElement
from rich.rule import Rule
from rich.segment import Segment
from rich.text import Text
from textual.strip import Strip

from .code import CodeRenderer
from .palette import Palette

# Nothing a model writes may vanish or hide: HTML, images and link definitions stay text, and a
# link's address stands beside its words.
_PARSER = (
    MarkdownIt("commonmark", {"html": False})
    .enable(["strikethrough", "table"])
    .disable(["html_block", "html_inline", "image", "reference"])
)
_MIN_WIDTH = 8
INDENT = 2
_INDENT = Segment(" " * INDENT)


def parse(text: str) -> list[Token]:
    """The tokens of ``text``; top-level blocks carry their line range in ``map``."""
    return _PARSER.parse(text)


class _Heading(rich_markdown.Heading):
    LEVEL_ALIGN: ClassVar = {}


class _CodeBlock(rich_markdown.CodeBlock):
    def __init__(self, language: str, renderer: CodeRenderer) -> None:
        super().__init__(language, "")
        self._renderer = renderer

    @classmethod
    def create(cls, markdown: rich_markdown.Markdown, token: Token) -> _CodeBlock:
        assert isinstance(markdown, _Blocks)
        return cls(token.info.strip().partition(" ")[0], markdown.code)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        code, width = str(self.text), options.max_width
        for strip in self._renderer.lines(code, self.lexer_name, width, titled=True):
            yield from strip
            yield Segment.line()


class _Rule(rich_markdown.HorizontalRule):
    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Rule(style=console.get_style("markdown.hr"))


class _Blocks(rich_markdown.Markdown):
    """A renderable of tokens that are already parsed; ``code`` draws its code blocks."""

    elements: ClassVar[dict[str, type[MarkdownElement]]] = {
        **rich_markdown.Markdown.elements,
        "heading_open": _Heading,
        "fence": _CodeBlock,
        "code_block": _CodeBlock,
        "hr": _Rule,
    }

    def __init__(self, tokens: Sequence[Token], code: CodeRenderer) -> None:
        super().__init__("", hyperlinks=False)
        self.parsed = list(tokens)
        self.code = code

    def _flatten_tokens(self, tokens: Iterable[Token]) -> Iterable[Token]:
        for token in super()._flatten_tokens(tokens):
            if token.type == "softbreak":  # a line a model ended is a line
                token.type = "hardbreak"
            yield token


_CONTAINERS = ("list_item_open", "blockquote_open")
_COLUMN_CELLS = 5  # that a table's column needs to say anything


def _room_taken(tokens: Sequence[Token]) -> int:
    """Cells that nesting and table columns take from a block's text, about."""
    depth = max((token.level + 2 for token in tokens if token.type in _CONTAINERS), default=0)
    columns = sum(token.type == "th_open" for token in tokens)
    return 3 * depth // 2 + _COLUMN_CELLS * columns


class MarkdownRenderer:
    """Draws Markdown blocks, code and plain text in one palette, ``INDENT`` cells from the left.

    Widths are those of the text without the indent.
    """

    def __init__(self, palette: Palette) -> None:
        self.palette = palette
        self._code = CodeRenderer(palette.code_theme, palette.faint)
        self._console = Console(
            width=80, color_system="truecolor", force_terminal=True, theme=palette.rich_theme
        )

    def block(self, tokens: Sequence[Token], source: str, width: int) -> list[Strip]:
        """The lines of one top-level block; ``source`` is shown as it is where its lists, quotes
        or columns leave no room for their text."""
        if _room_taken(tokens) > width // 2:
            return self.text(source.rstrip("\n"), width)
        strips = self._render(_Blocks(tokens, self._code), width)
        inked = [index for index, strip in enumerate(strips) if strip.text.strip()]
        return strips[inked[0] : inked[-1] + 1] if inked else strips[:1]

    def code(self, code: str, language: str, width: int, *, titled: bool) -> list[Strip]:
        """The lines of a code block or a piece of one; ``titled`` puts its language above it."""
        return _indented(self._code.lines(code, language, max(width, _MIN_WIDTH), titled=titled))

    def text(self, text: str, width: int) -> list[Strip]:
        """The lines of plain text, wrapped at words, nothing interpreted."""
        return self._render(Text(text), width)

    def _render(self, renderable: RenderableType, width: int) -> list[Strip]:
        options = self._console.options.update(width=max(width, _MIN_WIDTH), height=None)
        return _indented(Segment.split_lines(self._console.render(renderable, options)))


def _indented(lines: Iterable[Iterable[Segment]]) -> list[Strip]:
    return [Strip([_INDENT, *line]) for line in lines]
