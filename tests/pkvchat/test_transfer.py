"""Chats to and from files."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from pkvchat.chats import Chat, Version
from pkvchat.errors import ChatError
from pkvchat.transfer import export_chat, import_chat


def a_chat() -> Chat:
    chat = Chat(system="Be brief.")
    chat.add("user", "why [is] it blue? 🌈")
    answer = chat.add("assistant", "scattering")
    answer.versions.append(Version("Rayleigh", "stop", model="SmolLM2"))
    answer.chosen = 1
    chat.add("note", "the engine died")
    return chat


def test_json_goes_out_and_comes_back(tmp_path: Path) -> None:
    chat = a_chat()
    export_chat(chat, tmp_path / "chat.json")
    back = import_chat(tmp_path / "chat.json")
    assert (back.title, back.system) == (chat.title, chat.system)
    assert [(m.role, m.text, m.version.model, len(m.versions)) for m in back.messages] == [
        (m.role, m.text, m.version.model, len(m.versions)) for m in chat.messages
    ]


def test_markdown_holds_what_was_said(tmp_path: Path) -> None:
    export_chat(a_chat(), tmp_path / "chat.md")
    text = (tmp_path / "chat.md").read_text(encoding="utf-8")
    assert "**You**\n\nwhy [is] it blue? 🌈" in text
    assert "**Assistant** (SmolLM2)\n\nRayleigh" in text
    assert "died" not in text


def test_a_models_name_cannot_act_on_a_terminal(tmp_path: Path) -> None:
    chat = a_chat()
    chat.messages[1].version.model = "Smol\x1b[31m\nLM"
    export_chat(chat, tmp_path / "chat.json")
    export_chat(import_chat(tmp_path / "chat.json"), tmp_path / "chat.md")
    assert "**Assistant** (Smol␛[31m LM)" in (tmp_path / "chat.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["chat.md", "chat.json"])
def test_a_full_disk_leaves_no_file_behind(
    tmp_path: Path, full_disk: Callable[[], AbstractContextManager[None]], name: str
) -> None:
    with full_disk(), pytest.raises(ChatError, match=f"cannot write .*{name}: File too large"):
        export_chat(a_chat(), tmp_path / name)
    assert list(tmp_path.iterdir()) == []


MESSAGES = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "hi"},
    {"role": "assistant", "content": "hello"},
]


@pytest.mark.parametrize(
    "data",
    [
        MESSAGES,
        {"model": "x", "messages": MESSAGES},
        {"messages": [MESSAGES[0], {"role": "user", "content": [{"type": "text", "text": "hi"}]}]},
    ],
)
def test_common_message_lists_are_taken(tmp_path: Path, data: object) -> None:
    path = tmp_path / "in.json"
    path.write_text(json.dumps(data), encoding="utf-8")
    chat = import_chat(path)
    assert chat.system == "Be brief."
    assert chat.messages[0].text == "hi"
    assert chat.title == "hi"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[1]",
        '{"messages": 3}',
        '[{"role": "robot", "content": "x"}]',
        '[{"role": "user"}]',
        '"text"',
        "[" * 100_000,
        "null",
        '{"format": "pkvchat-chat-1", "messages": [{"role": "note"}]}',
    ],
)
def test_anything_else_is_refused_in_one_line(tmp_path: Path, text: str) -> None:
    path = tmp_path / "in.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ChatError) as error:
        import_chat(path)
    assert "\n" not in str(error.value)


def test_halves_of_surrogate_pairs_are_replaced(tmp_path: Path) -> None:
    path = tmp_path / "in.json"
    path.write_text(r'[{"role": "user", "content": "a\udcffb \ud83d\ude00"}]', encoding="utf-8")
    assert import_chat(path).messages[0].text == "a?b 😀"


def test_a_byte_order_mark_is_no_part_of_the_text(tmp_path: Path) -> None:
    path = tmp_path / "in.json"
    path.write_text(json.dumps(MESSAGES), encoding="utf-8-sig")
    assert import_chat(path).system == "Be brief."


def test_a_device_is_not_read() -> None:
    with pytest.raises(ChatError, match="it is no file"):
        import_chat(Path("/dev/zero"))


def test_an_export_never_overwrites(tmp_path: Path) -> None:
    path = tmp_path / "chat.md"
    path.write_text("mine")
    with pytest.raises(ChatError, match="exists"):
        export_chat(a_chat(), path)
    assert path.read_text() == "mine"
    with pytest.raises(ChatError, match=r"\.md or \.json"):
        export_chat(a_chat(), tmp_path / "chat.pdf")
    with pytest.raises(ChatError, match="cannot write"):
        export_chat(a_chat(), tmp_path / "no" / "chat.md")
