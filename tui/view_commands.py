"""Commands on the window."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from textual.command import CommandPalette
from textual.theme import BUILTIN_THEMES

from pkvchat.commands.command import Command, CommandError, one_of

from .driver import Utf8Driver
from .inspector import Inspector
from .palette import CALM_DARK, CALM_LIGHT, THEME_NAMES
from .providers import CommandProvider

if TYPE_CHECKING:
    from .app import ChatApp

_QUIT_S = 2.0  # two Ctrl+C within it quit


def theme_names() -> list[str]:
    return [*THEME_NAMES, CALM_DARK.name, CALM_LIGHT.name, *sorted(BUILTIN_THEMES)]


def sidebar(app: ChatApp, _: str) -> None:
    app.sidebar.toggle()
    app.lay_out()
    if not app.sidebar.display:
        app.composer.focus()


def theme(app: ChatApp, name: str) -> None:
    """Set the theme by name, or take the next of dark, light and the terminal's own."""
    own = list(THEME_NAMES.values())
    if not name:
        name = own[(own.index(app.theme) + 1) % len(own)] if app.theme in own else own[0]
    if name not in theme_names():
        raise CommandError(f"no theme {name!r}; one of {', '.join(theme_names())}")
    app.theme = THEME_NAMES.get(name, name)


def panel(app: ChatApp, _: str) -> None:
    app.panel_wanted = not app.panel_wanted
    app.lay_out()


def mouse(app: ChatApp, _: str) -> None:
    set_mouse(app, not app.mouse)
    now = "is the app's" if app.mouse else "is the terminal's: it selects and copies as elsewhere"
    app.notify(f"The mouse {now}.")


def set_mouse(app: ChatApp, on: bool) -> None:
    app.mouse = on
    if isinstance(app._driver, Utf8Driver):
        app._driver.set_mouse(on)


def show_palette(app: ChatApp, _: str) -> None:
    app.push_screen(CommandPalette([CommandProvider], placeholder="Search commands"))


def inspect(app: ChatApp, _: str) -> None:
    ready = app.session.state.ready
    app.push_screen(Inspector(app.session.meter, ready.page_size if ready else 16))


def interrupt(app: ChatApp, _: str) -> None:
    """Ctrl+C: copy what is selected, else stop the answer, else clear the composer (Ctrl+Z brings
    it back), else quit when pressed twice."""
    selected = app.screen.get_selected_text() or app.composer.selected_text
    if selected:
        app.host.copy(selected, "selection")
    elif app.tab.busy:
        app.command("stop")
    elif app.composer.text:
        app.composer.clear()
    elif time.monotonic() < app.quit_until:
        app.exit(0)
    else:
        app.quit_until = time.monotonic() + _QUIT_S
        app.notify("Press Ctrl+C again to quit.", timeout=_QUIT_S)


COMMANDS: tuple[Command[ChatApp], ...] = (
    Command("palette", "search commands", show_palette, "ctrl+p"),
    Command("toggle_panel", "show or hide the panel", panel, "f3", "panel"),
    Command("sidebar", "list and search all chats", sidebar, "f5", "sidebar"),
    Command("inspect", "look into the decode steps", inspect, "f4", "inspect"),
    Command("theme", "choose the theme", theme, "", "theme", "[NAME]", one_of(theme_names())),
    Command("mouse", "mouse for the app or the terminal", mouse, slash="mouse"),
    Command("interrupt", "copy, stop, clear; twice: quit", interrupt, "ctrl+c"),
)
