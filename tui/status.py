"""The line at the bottom: what goes on, and which keys matter now."""

from __future__ import annotations

from rich.cells import cell_len
from rich.segment import Segment
from rich.style import Style
from textual.strip import Strip

from pkvchat.clean import one_line
from pkvchat.messages import Ready
from pkvchat.open_chat import OpenChat, Phase

from .keymap import Keymap
from .line_widget import LineWidget
from .palette import Palette
from .session import EngineState, Session

_BAR_CELLS = 16


class StatusLine(LineWidget):
    """State at the left, keys at the right where there is room."""

    def __init__(self, palette: Palette) -> None:
        super().__init__(palette, id="status")
        self._state = ""
        self._style = Style()
        self._keys = ""

    def show(self, state: str, style: Style, keys: str) -> None:
        if (state, style, keys) != (self._state, self._style, self._keys):
            self._state, self._style, self._keys = state, style, keys
            self.refresh()

    def render_line(self, y: int) -> Strip:
        state, keys = f"  {self._state}", f"{self._keys}  "
        gap = self.size.width - cell_len(state) - cell_len(keys)
        segments = [Segment(state, self._style)]
        if gap >= 2:
            segments += [Segment(" " * gap), Segment(keys, self.palette.faint)]
        return self.fitted(Strip(segments))


def describe(tab: OpenChat, session: Session, typed: str, palette: Palette) -> tuple[str, Style]:
    """One line for the state of ``tab`` and the engine, with its style. typed: what there is to say
    of the text in the composer."""
    engine = session.state
    if engine.dead:
        return f"✗ {one_line(engine.dead)}", palette.error
    if engine.ready is None:
        waits = "; your prompt waits" if tab.phase is Phase.WAITING else ""
        return f"{_progress(engine)}{waits}", palette.muted
    if tab.phase is Phase.WAITING:
        return "waiting for the engine", palette.muted
    if tab.phase is Phase.PREFILL:
        return _prefill(tab), palette.muted
    if tab.phase is Phase.DECODE:
        return f"answering, {session.meter.now():.1f} tokens/s", palette.good
    return typed or _used(tab, engine.ready), palette.muted


def hints(tab: OpenChat, session: Session, keymap: Keymap, *, browsing: bool) -> str:
    """The keys that matter now. browsing: they go to the transcript."""
    if session.state.dead:
        names = {"retry": "restart", "quit": "quit"}
    elif browsing:
        return "c copy  b code  e edit  f fork  ←→ answers  Enter back"
    elif tab.edit_of:
        names = {"stop": "drops this edit", "help": "help"}
    elif tab.busy:
        names = {"stop": "stop", "help": "help"}
    else:
        names = {
            "help": "help",
            "palette": "commands",
            "new_chat": "new",
            "find_chat": "chats",
            "quit": "quit",
        }
    return "  ".join(f"{keymap.shown(name)} {what}" for name, what in names.items())


def _used(tab: OpenChat, ready: Ready) -> str:
    """How much of the context is used; the model in an empty chat."""
    if not tab.context_tokens:
        return one_line(ready.model)
    return f"{tab.context_tokens:,} of {ready.context:,} tokens"


def _progress(engine: EngineState) -> str:
    if not engine.total:
        return f"{one_line(engine.stage)} …"
    share = min(engine.done / engine.total, 1.0)
    full = round(share * _BAR_CELLS)
    bar = "━" * full + "╌" * (_BAR_CELLS - full)
    return f"{one_line(engine.stage)} {bar} {share:.0%}"


def _prefill(tab: OpenChat) -> str:
    """How far the prompt is read, how fast, and how long it takes yet."""
    text = f"reading the prompt, {tab.prefill_done:,} of {tab.prefill_total:,} tokens"
    rate, left = tab.prefill_pace()
    return f"{text}, {rate:,.0f} tokens/s, {left:.0f} s left" if rate else text
