"""Chats: what the model reads, titles, forks."""

from __future__ import annotations

import pytest

from pkvchat.chats import Chat, Version, parted_title, title_of
from pkvchat.messages import ChatMessage


def test_the_model_reads_neither_notes_nor_queued_prompts_nor_empty_answers() -> None:
    chat = Chat(system="Be brief.")
    chat.add("user", "one")
    chat.add("note", "the engine died")
    chat.add("said", "exported to chat.md")
    chat.add("assistant", "1")
    chat.add("user", "two")
    chat.add("assistant", "")
    chat.add("user", "later").queued = True
    assert chat.conversation() == (
        ChatMessage("system", "Be brief."),
        ChatMessage("user", "one"),
        ChatMessage("assistant", "1"),
        ChatMessage("user", "two"),
    )
    assert chat.conversation(end=1)[-1] == ChatMessage("user", "one")


def test_the_first_prompt_names_a_chat_that_has_no_name() -> None:
    chat = Chat()
    assert chat.name == "New chat"
    chat.add("user", "\n\n  Why is\tthe sky blue?\nTell me.")
    chat.add("user", "and red?")
    assert chat.name == "Why is the sky blue?"


@pytest.mark.parametrize("prompt", ["", " \n ", "x" * 1000, "words " * 100])
def test_titles_are_short(prompt: str) -> None:
    assert len(title_of(prompt)) <= 40


def test_a_fork_shares_no_state() -> None:
    chat = Chat(title="sky", system="Be brief.")
    chat.add("user", "why")
    answer = chat.add("assistant", "because")
    answer.versions.append(Version("therefore"))
    answer.chosen = 1
    fork = chat.fork(2, "fork")
    fork.messages[1].version.text += "!"
    assert [m.text for m in chat.messages] == ["why", "therefore"]
    assert [m.text for m in fork.messages] == ["why", "therefore!"]
    assert fork.system == "Be brief."
    assert {m.id for m in fork.messages}.isdisjoint(m.id for m in chat.messages)


def test_a_fork_leaves_behind_what_the_app_said() -> None:
    chat = Chat()
    for role in ("user", "said", "assistant", "note", "cut"):
        chat.add(role, role)
    assert [m.role for m in chat.fork(5, "fork").messages] == ["user", "assistant", "cut"]


def test_the_title_of_a_fork_names_its_last_kind() -> None:
    fork = Chat(title="sky: why").fork(0, "fork")
    assert fork.name == "fork: sky: why"
    assert fork.fork(0, "edit").name == "edit: sky: why"
    assert Chat().fork(0, "copy").fork(0, "summary").name == "summary: New chat"


def test_the_model_reads_from_the_last_cut_on() -> None:
    chat = Chat(system="Be brief.")
    for role, text in [
        ("user", "old"),
        ("cut", "..."),
        ("user", "mid"),
        ("cut", "..."),
        ("user", "new"),
    ]:
        chat.add(role, text)
    assert [m.content for m in chat.conversation()] == ["Be brief.", "new"]


def test_a_copy_beside_its_original_is_numbered() -> None:
    titles = ("sky", "sky (2)", "sky (9)", "Apollo (11)", "")
    assert [parted_title(title) for title in titles] == [
        "sky (2)",
        "sky (3)",
        "sky (10)",
        "Apollo (11) (2)",
        "",
    ]
