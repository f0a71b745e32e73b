"""What Textual's command palette searches: our commands, and saved chats."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, cast

from textual.command import DiscoveryHit, Hit, Hits, Provider
from textual.content import Content

from pkvchat.store import Found

if TYPE_CHECKING:
    from .app import ChatApp


class CommandProvider(Provider):
    """Commands that need no argument, by what they do."""

    async def discover(self) -> Hits:
        for line, run in self._commands():
            yield DiscoveryHit(Content(line), run, line)

    async def search(self, query: str) -> Hits:
        matcher = self.matcher(query)
        for line, run in self._commands():
            if (score := matcher.match(line)) > 0:
                yield Hit(score, matcher.highlight(line), run, line)

    def _commands(self) -> list[tuple[str, Callable[[], None]]]:
        app = _app(self)
        return [
            (f"{what}  {keys}".rstrip(), partial(app.command, name))
            for name, what, keys, slash in app.keymap.rows()
            if name != "palette" and (keys or slash)
        ]


class ChatProvider(Provider):
    """Saved chats, by title and by any word said in them."""

    async def discover(self) -> Hits:
        for found in await self._find(""):
            yield DiscoveryHit(Content(_line(found)), self._open(found), found.id)

    async def search(self, query: str) -> Hits:
        for rank, found in enumerate(await self._find(query)):
            yield Hit(1 / (rank + 1), Content(_line(found)), self._open(found), found.id)

    async def _find(self, words: str) -> list[Found]:
        return await _app(self).saver.find(words)

    def _open(self, found: Found) -> Callable[[], None]:
        return partial(_app(self).open_saved, found.id)


def _line(found: Found) -> str:
    return f"{'open' if found.is_open else '':<4}  {found.line}"


def _app(provider: Provider) -> ChatApp:
    return cast("ChatApp", provider.app)
