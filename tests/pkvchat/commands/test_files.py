"""Names of files, as people type them and as nobody would."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pkvchat.chats import Chat
from pkvchat.commands import chat, files
from pkvchat.commands.command import CommandError, paths
from pkvchat.open_chat import OpenChat


class Prompt:
    """As much of a Host as these commands need."""

    def __init__(self) -> None:
        self.text = ""
        self.current = OpenChat(Chat())

    def put_in_prompt(self, text: str) -> None:
        self.text += text

    def say(self, text: str) -> None: ...
    def open(self, chat: Chat) -> None: ...


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_files_are_quoted_by_name(here: Path) -> None:
    (here / "b.txt").write_text("bee\x1b[2J", encoding="utf-8")
    (here / "a.txt").write_bytes(b"caf\xe9")
    prompt: Any = Prompt()
    files.glob(prompt, "*.txt")
    assert (
        prompt.text
        == "a.txt:\n```\ncaf\N{REPLACEMENT CHARACTER}\n```\n\nb.txt:\n```\nbee[2J\n```\n"
    )


@pytest.mark.parametrize(
    "pattern", ["**/*.py", "a/**/*", "*/x.py", "a/*/../*/x.py", "../*/a/x.py", "**/**/x.py", "a"]
)
def test_patterns_mean_what_they_do_elsewhere(here: Path, pattern: str) -> None:
    for name in ("x.py", "a/x.py", "a/b/x.py", "a/b/c/.x.py", "d/x.md"):
        (here / name).parent.mkdir(parents=True, exist_ok=True)
        (here / name).write_text(name)
    (here / "a" / "loop").symlink_to(here)
    prompt: Any = Prompt()
    found = sorted({path.name for path in Path().glob(pattern) if path.is_file()})
    with suppress(CommandError):
        files.glob(prompt, pattern)
    assert sorted(set(prompt.text.replace(":", "").split()) & {"x.py", ".x.py", "x.md"}) == found


@pytest.mark.usefixtures("here")
def test_a_large_tree_is_not_searched_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_FOLDERS", 10)
    for number in range(11):
        Path(f"d{number}").mkdir()
    with pytest.raises(CommandError, match=r"/glob \*\*/x looks into more than 10 folders"):
        files.glob(Prompt(), "**/x")  # type: ignore[arg-type]


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    ("command", "said"),
    [(files.read, "the name of a file"), (files.glob, "a pattern"), (chat.load, "the name")],
)
def test_no_name_is_asked_for(command: Any, said: str) -> None:
    with pytest.raises(CommandError, match=f"needs {said}"):
        command(Prompt(), "")


def test_too_much_is_not_read(here: Path) -> None:
    for name in "ab":
        (here / name).write_bytes(b"x" * 2_500_000)
    prompt: Any = Prompt()
    with pytest.raises(CommandError, match="up to b that is more than 4,000,000 bytes"):
        files.glob(prompt, "?")
    assert prompt.text == ""


def test_a_link_that_cannot_be_followed_is_told(here: Path) -> None:
    """As one into a folder that others may not look into, which root always may."""
    (here / "link").symlink_to("x" * 300)
    (here / "link.json").symlink_to("x" * 300)
    prompt: Any = Prompt()
    assert paths(prompt, "li") == ["link", "link.json"]
    for command, name in ((files.read, "link"), (chat.load, "link.json")):
        with pytest.raises(CommandError, match="File name too long"):
            command(prompt, name)


NAMES = st.one_of(
    st.text(max_size=30),
    st.sampled_from(
        ["~nobody-of-that-name/x", "x" * 5000, "a\0b", "**x", ".", "..", "/", "/dev/zero", "~", "["]
    ),
)


@given(NAMES)
def test_a_name_that_is_none_is_refused(name: str) -> None:
    prompt: Any = Prompt()
    paths(prompt, name)
    for command in (files.read, files.glob, chat.load):
        with suppress(CommandError):
            command(prompt, name)
    if "." not in name:  # no ending, so nothing is written
        with pytest.raises(CommandError):
            chat.export(prompt, name)
