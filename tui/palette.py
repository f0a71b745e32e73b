"""The colours and styles of one theme, as Rich styles for what we draw line by line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rich.color import Color as RichColor
from rich.style import Style
from rich.theme import Theme as RichTheme
from textual.color import Color, ColorParseError
from textual.theme import Theme

CALM_DARK = Theme(
    name="pkvchat-dark",
    primary="#7aa2f7",
    secondary="#9d7cd8",
    accent="#e0af68",
    foreground="#d5d9e6",
    background="#14161d",
    surface="#1a1d26",
    panel="#20242f",
    success="#8ec07c",
    warning="#e0af68",
    error="#f7768e",
    dark=True,
)
CALM_LIGHT = Theme(
    name="pkvchat-light",
    primary="#2f5fc4",
    secondary="#7847bd",
    accent="#96610a",
    foreground="#23262f",
    background="#fbfaf7",
    surface="#f2f0ea",
    panel="#e8e5dc",
    success="#3f7a35",
    warning="#96610a",
    error="#b3263e",
    dark=False,
)
# The names a settings file may use for `theme`, beside any of Textual's own.
THEME_NAMES = {"dark": "pkvchat-dark", "light": "pkvchat-light", "terminal": "ansi-dark"}

# Strategies are told apart by letter first, colour second.
STRATEGY_LETTERS = {"flashinfer": "F", "split": "S", "workqueue": "W", "sdpa": "D"}
_STRATEGY_COLOURS = {
    "flashinfer": "success",
    "split": "primary",
    "workqueue": "accent",
    "sdpa": "secondary",
}


def strategy_letter(name: str) -> str:
    return STRATEGY_LETTERS.get(name, name[:1].upper() or "?")


@dataclass(frozen=True)
class Palette:
    """Styles for transcript, strips and panel; ``rich_theme`` for Markdown; ``code_theme`` for
    Pygments."""

    base: Style
    muted: Style
    faint: Style
    user: Style
    assistant: Style
    warning: Style
    error: Style
    good: Style
    code: Style
    selected: Style
    strategies: Mapping[str, Style]
    code_theme: str
    rich_theme: RichTheme

    @classmethod
    def of(cls, theme: Theme) -> Palette:
        variables = theme.to_color_system().generate()

        def colour(name: str) -> RichColor:
            try:
                return Color.parse(variables[name]).rich_color
            except (KeyError, ColorParseError):
                return RichColor.default()

        def mixed(share: float) -> Style:
            if theme.ansi:
                return Style(dim=True)
            back, front = (Color.parse(variables[n]) for n in ("background", "foreground"))
            return Style(color=back.blend(front, share).rich_color)

        muted, faint = mixed(0.62), mixed(0.4)
        primary, accent = (Style(color=colour(name)) for name in ("primary", "accent"))
        code = Style() if theme.ansi else Style(bgcolor=colour("surface"))
        bold = Style(bold=True)
        return cls(
            base=Style(color=colour("foreground")),
            muted=muted,
            faint=faint,
            user=accent + bold,
            assistant=primary + bold,
            warning=Style(color=colour("warning")),
            error=Style(color=colour("error")),
            good=Style(color=colour("success")),
            code=code,
            selected=Style(reverse=True) if theme.ansi else Style(bgcolor=colour("panel")),
            strategies={n: Style(color=colour(c)) for n, c in _STRATEGY_COLOURS.items()},
            code_theme="ansi_dark" if theme.ansi else "nord" if theme.dark else "friendly",
            rich_theme=_markdown_theme(primary, accent + code, muted, faint),
        )


def _markdown_theme(primary: Style, code: Style, muted: Style, faint: Style) -> RichTheme:
    bold, underline = Style(bold=True), Style(underline=True)
    return RichTheme(
        {
            "markdown.h1": primary + bold + underline,
            "markdown.h2": primary + bold,
            "markdown.h3": bold,
            "markdown.h4": bold + Style(italic=True),
            "markdown.code": code,
            "markdown.block_quote": muted,
            "markdown.item.bullet": primary,
            "markdown.item.number": primary,
            "markdown.hr": faint,
            "markdown.link": primary,
            "markdown.link_url": muted + underline,
            "markdown.table.border": faint,
            "markdown.table.header": bold,
        }
    )
