"""Commands on what a person has set."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pkvchat.clean import typed
from pkvchat.commands.command import Command
from pkvchat.commands.engine import policies
from pkvchat.errors import ChatError
from pkvchat.messages import SetPolicy
from pkvchat.sampling import SAMPLING_NAMES
from pkvchat.settings import save_settings

from .palette import THEME_NAMES
from .settings_screen import SettingsScreen
from .view_commands import set_mouse, theme, theme_names

if TYPE_CHECKING:
    from .app import ChatApp


def settings(app: ChatApp, _: str) -> None:
    choices = {"theme": theme_names(), "policy": policies(app.host)}
    if app.session.state.policy not in choices["policy"]:
        choices["policy"].append(app.session.state.policy)
    screen = SettingsScreen(_in_force(app), choices)
    app.push_screen(screen, lambda changes: _change(app, changes or {}))


def _in_force(app: ChatApp) -> dict[str, Any]:
    names = {name: short for short, name in THEME_NAMES.items()}
    return {
        **{name: getattr(app.session.params, name) for name in SAMPLING_NAMES},
        "system_prompt": typed(app.settings.system_prompt),
        "theme": names.get(app.theme, app.theme),
        "policy": app.session.state.policy,
        "mouse": app.mouse,
        "panel": app.panel_wanted,
    }


def _change(app: ChatApp, changes: dict[str, Any]) -> None:
    """Into the file and, also where that can't be written, into force."""
    if not changes:
        return
    try:
        path = save_settings(changes)
    except ChatError as error:
        app.notify(str(error), severity="error", markup=False, timeout=10)
    else:
        app.notify(f"saved in {path}", markup=False)
    app.settings = app.settings.with_values(changes)
    sampling = {name: value for name, value in changes.items() if name in SAMPLING_NAMES}
    app.session.params = replace(app.session.params, **sampling)
    if "theme" in changes:
        theme(app, changes["theme"])
    if "policy" in changes:
        app.session.client.send(SetPolicy(changes["policy"]))
    if "mouse" in changes:
        set_mouse(app, changes["mouse"])
    if "panel" in changes:
        app.panel_wanted = changes["panel"]
        app.lay_out()


COMMANDS: tuple[Command[ChatApp], ...] = (
    Command("settings", "see and change the settings", settings, "alt+s", "settings"),
)
