"""A chat with something of everything in it, and where it is saved."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from pkvchat.chats import Chat, Version


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Of a file that isn't there yet, in a folder that isn't either."""
    return tmp_path / "data" / "chats.db"


@pytest.fixture(scope="session")
def a_chat() -> Callable[[], Chat]:
    """a_chat(): a new one each time."""

    def make() -> Chat:
        chat = Chat(system="Be brief.", draft="half typ")
        chat.add("user", "why [is] it \x00 blue? 🌈")
        answer = chat.add("assistant", "scattering")
        answer.version.reason = "stop"
        answer.versions.append(Version("Rayleigh", "length", 12, 0.5, 90.0))
        answer.chosen = 1
        chat.add("note", "the engine died")
        chat.add("user", "later").queued = True
        return chat

    return make


@pytest.fixture(scope="session")
def content() -> Callable[[Chat], object]:
    """content(chat): everything of it, for comparing."""

    def of(chat: Chat) -> object:
        messages = [vars(m) | {"versions": [vars(v) for v in m.versions]} for m in chat.messages]
        return vars(chat) | {"messages": messages, "saved": None}

    return of
