"""A conversation cut into parts that fit, and a chat that reads on from their summary."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pkvchat.chat_summary import Summary, parts
from pkvchat.chats import Chat
from pkvchat.messages import ChatMessage, Delta, Failed, Finished, Ready, Started
from pkvchat.open_chat import OpenChat, Phase
from pkvchat.sampling import SamplingParams

READY = Ready("some-model", "cpu", "f32", 400, 99, 16, "adaptive", {})
ROLES = ("user", "assistant")
TEXT = st.text("ab c", min_size=1, max_size=80).filter(str.strip)


def talk(turns: int, chars: int = 10) -> Chat:
    chat = Chat(system="Be brief.")
    for number in range(turns):
        chat.add("user", f"question {number} ".ljust(chars, "?"))
        chat.add("assistant", f"answer {number} ".ljust(chars, "!")).version.reason = "stop"
    return chat


def say(chat: OpenChat, text: str, reason: str = "stop") -> None:
    """One answer of the engine's, from its start to its end."""
    chat_id = chat.chat.id
    for event in (
        Started(chat_id, 50, 0),
        Delta(chat_id, text, 4),
        Finished(chat_id, reason, 50, 4, 0.1, 9.0),
    ):
        chat.apply(event)


def asked(chat: OpenChat) -> str:
    (message,) = chat.submission(SamplingParams(), READY).messages
    return message.content


@given(st.lists(TEXT, min_size=1, max_size=8), st.integers(1, 120))
def test_parts_hold_all_text_in_order_and_none_is_too_long(texts: list[str], chars: int) -> None:
    conversation = [ChatMessage(ROLES[i % 2], text) for i, text in enumerate(texts)]
    cut = parts([ChatMessage("system", "not this"), *conversation], chars)
    assert max(map(len, cut)) <= chars
    whole = "".join(f"{m.role.capitalize()}: {m.content.strip()}\n\n" for m in conversation)
    assert "".join("".join(cut).split()) == "".join(whole.split())


def test_a_context_that_holds_next_to_nothing_still_has_parts() -> None:
    summary = Summary(talk(2).conversation(), 8, 1.0)
    while summary.advance("they talked"):
        pass


def test_messages_stay_whole_where_they_can() -> None:
    conversation = talk(4, 40).conversation()
    cut = parts(conversation, 120)
    assert len(cut) == 4
    assert all(part.startswith("User: question") for part in cut)


def test_a_chat_that_fits_is_summed_up_at_once_and_read_on_from() -> None:
    chat = OpenChat(talk(3))
    assert chat.summarise()
    request = asked(chat)
    assert "User: question 2" in request
    assert chat.submission(SamplingParams(), READY).params.max_tokens == 50
    say(chat, "They talked.")
    assert not chat.busy
    assert not chat.ask_next()
    assert [m.content for m in chat.chat.conversation()] == [
        "Be brief.",
        "Sum up our conversation so far.",
        "They talked.",
    ]
    assert chat.ask("and now?")
    sent = chat.submission(SamplingParams(), READY)
    assert [m.content for m in sent.messages][2:] == ["They talked.", "and now?"]
    assert [m.role for m in sent.messages] == ["system", "user", "assistant", "user"]


def test_a_long_chat_is_summed_up_in_parts() -> None:
    chat = OpenChat(talk(12, 100))
    chat.summarise()
    requests = [asked(chat)]
    for number in range(20):
        say(chat, f"summary {number}")
        if not chat.ask_next():
            break
        requests.append(asked(chat))
    assert len(requests) > 2
    assert all(f"answer {n} " in "".join(requests) for n in range(12))
    assert all(f"summary {n}" in request for n, request in enumerate(requests[1:]))
    assert chat.chat.messages[-1].text == f"summary {len(requests) - 1}"
    assert len(chat.chat.messages[-1].versions) == 1


def test_a_summary_that_is_stopped_or_fails_leaves_the_chat_read_as_it_was() -> None:
    for end in ("cancelled", "failed", "died"):
        chat = OpenChat(talk(12, 100))
        before = chat.chat.conversation()
        chat.summarise()
        asked(chat)
        say(chat, "half")
        assert chat.ask_next()
        asked(chat)
        if end == "failed":
            chat.apply(Failed(chat.chat.id, "out of pages"))
        else:
            chat.apply(Started(chat.chat.id, 50, 0))
            chat.apply(Delta(chat.chat.id, "a third of", 2))
        if end == "cancelled":
            chat.apply(Finished(chat.chat.id, "cancelled", 50, 2, 0.1, 9.0))
        elif end == "died":
            chat.interrupted("died")
        assert not chat.busy
        assert not chat.ask_next()
        assert chat.chat.conversation() == before


def test_a_summary_can_be_written_again() -> None:
    chat = OpenChat(talk(3))
    chat.summarise()
    asked(chat)
    say(chat, "first")
    assert chat.regenerate()
    assert "question 2" in asked(chat)
    say(chat, "second")
    assert [v.text for v in chat.chat.messages[-1].versions] == ["first", "second"]
    assert chat.chat.conversation()[-1].content == "second"


def test_there_must_be_something_to_sum_up() -> None:
    assert not OpenChat(Chat(system="Be brief.")).summarise()
    busy = OpenChat(talk(1))
    busy.ask("more")
    assert busy.phase is Phase.WAITING
    assert not busy.summarise()


def test_a_request_fits_the_context_as_long_as_tokens_are_as_estimated() -> None:
    for context in (128, 400, 8192):
        summary = Summary(talk(200, 300).conversation(), context, 4.0)
        while True:
            tokens = len(summary.request().content) / 4.0 + 30  # of the template
            assert tokens + summary.max_tokens <= context
            if not summary.advance("x" * 4 * summary.max_tokens):
                break
