"""How the engine's events change one chat."""

from __future__ import annotations

from pkvchat.chats import Chat
from pkvchat.messages import Delta, Failed, Finished, Prefilled, Ready, Started
from pkvchat.open_chat import OpenChat, Phase
from pkvchat.sampling import SamplingParams

READY = Ready("a model", "cpu", "f32", 256, 16, 16, "adaptive", {})


def asked(prompt: str = "hello") -> OpenChat:
    tab = OpenChat()
    assert tab.ask(prompt)
    return tab


def texts(tab: OpenChat) -> list[tuple[str, str]]:
    return [(message.role, message.text) for message in tab.chat.messages]


def test_an_answer_from_prompt_to_end() -> None:
    tab = asked()
    chat = tab.chat.id
    assert [m.content for m in tab.conversation()] == ["hello"]
    tab.apply(Started(chat, 100, 40))
    tab.apply(Prefilled(chat, 70, 100))
    assert (tab.phase, tab.prefill_done, tab.prefill_total) == (Phase.PREFILL, 70, 100)
    tab.apply(Delta(chat, "Hi ", 1))
    tab.apply(Delta(chat, "there", 2))
    assert tab.phase is Phase.DECODE
    tab.apply(Finished(chat, "stop", 100, 3, 0.2, 50.0))
    assert not tab.busy
    assert texts(tab) == [("user", "hello"), ("assistant", "Hi there")]
    assert tab.context_tokens == 103


def test_a_prompt_sent_while_an_answer_runs_waits() -> None:
    tab = asked("one")
    assert not tab.ask("two")
    assert not tab.ask("three")
    assert [m.content for m in tab.conversation()] == ["one"]
    tab.apply(Delta(tab.chat.id, "1", 1))
    tab.apply(Finished(tab.chat.id, "stop", 1, 1, 0.1, 1.0))
    assert tab.ask_next()
    assert [m.content for m in tab.conversation()] == ["one", "1", "two"]
    assert [m.text for m in tab.queued] == ["three"]
    assert tab.take_back_queue() == "three"
    assert texts(tab) == [("user", "one"), ("assistant", "1"), ("user", "two"), ("assistant", "")]


def test_prompts_are_answered_in_the_order_they_were_sent() -> None:
    """Also where one waits and nothing runs, as in a chat that was restored."""
    tab = asked("one")
    tab.ask("two")
    tab.apply(Delta(tab.chat.id, "1", 1))
    tab.interrupted("died")
    assert tab.ask("three")
    assert [m.content for m in tab.conversation()] == ["one", "1", "two"]
    assert [m.text for m in tab.queued] == ["three"]


def test_a_refused_prompt_comes_back() -> None:
    tab = asked("much too long")
    assert tab.apply(Failed(tab.chat.id, "9,000 tokens, 808 over the limit")) == "much too long"
    assert texts(tab) == [("note", "9,000 tokens, 808 over the limit")]
    assert not tab.busy


def test_an_answer_that_fails_half_way_keeps_its_text() -> None:
    tab = asked()
    tab.apply(Delta(tab.chat.id, "half", 1))
    tab.apply(Finished(tab.chat.id, "error", 5, 1, 0.1, 0.0))
    assert tab.apply(Failed(tab.chat.id, "out of pages")) == ""
    assert texts(tab) == [("user", "hello"), ("assistant", "half"), ("note", "out of pages")]


def test_regenerating_keeps_the_answers_before() -> None:
    tab = asked()
    tab.apply(Delta(tab.chat.id, "first", 1))
    tab.apply(Finished(tab.chat.id, "stop", 5, 1, 0.1, 0.0))
    assert tab.regenerate()
    assert [m.content for m in tab.conversation()] == ["hello"]
    tab.apply(Delta(tab.chat.id, "second", 1))
    tab.apply(Finished(tab.chat.id, "stop", 5, 1, 0.1, 0.0))
    message = tab.chat.messages[-1]
    assert [version.text for version in message.versions] == ["first", "second"]
    assert message.text == "second"


def test_a_refused_regeneration_leaves_the_answer_as_it_was() -> None:
    tab = asked()
    tab.apply(Delta(tab.chat.id, "first", 1))
    tab.apply(Finished(tab.chat.id, "stop", 5, 1, 0.1, 0.0))
    tab.regenerate()
    assert tab.apply(Failed(tab.chat.id, "no")) == ""
    assert texts(tab)[:2] == [("user", "hello"), ("assistant", "first")]


def test_late_events_after_the_end_change_nothing() -> None:
    tab = asked()
    tab.apply(Delta(tab.chat.id, "all", 1))
    tab.apply(Finished(tab.chat.id, "cancelled", 5, 1, 0.1, 0.0))
    tab.apply(Delta(tab.chat.id, " more", 1))
    tab.apply(Finished(tab.chat.id, "stop", 9, 9, 0.1, 0.0))
    assert texts(tab) == [("user", "hello"), ("assistant", "all")]
    assert tab.chat.messages[-1].version.reason == "cancelled"


def test_the_engine_dying_keeps_text_and_leaves_waiting_prompts_waiting() -> None:
    answering, waiting = asked(), asked()
    answering.apply(Delta(answering.chat.id, "half", 1))
    for tab in (answering, waiting):
        tab.interrupted("died")
    assert answering.chat.messages[-1].version.reason == "died"
    assert not answering.busy
    assert waiting.phase is Phase.WAITING


def test_a_prompt_no_engine_saw_can_be_withdrawn() -> None:
    tab = asked("wait")
    assert tab.withdraw() == "wait"
    assert texts(tab) == []


def test_a_prompt_that_is_refused_is_told_from_what_was_said_behind_it() -> None:
    tab = OpenChat()
    tab.chat.add("user", "hello")  # as a file of messages may end
    tab.say("no system prompt")
    assert tab.regenerate()
    assert tab.apply(Failed(tab.chat.id, "no")) == "hello"
    assert texts(tab) == [("said", "no system prompt"), ("note", "no")]


def test_a_title_that_a_person_gave_outlasts_a_refused_prompt() -> None:
    given, named = OpenChat(Chat("rivers")), OpenChat()
    for tab in (given, named):
        tab.ask("much too long")
        tab.apply(Failed(tab.chat.id, "no"))
    assert (given.chat.title, named.chat.title) == ("rivers", "")


def test_regenerating_leaves_a_prompt_that_waits_waiting() -> None:
    """As in a chat that was restored."""
    tab = asked("one")
    tab.ask("two")
    tab.apply(Delta(tab.chat.id, "1", 1))
    tab.interrupted("died")
    assert tab.regenerate()
    assert [m.content for m in tab.conversation()] == ["one"]
    assert [len(m.versions) for m in tab.chat.messages] == [1, 2, 1]
    assert [m.text for m in tab.queued] == ["two"]


def test_a_summary_that_is_withdrawn_leaves_the_answers_before_it() -> None:
    tab = asked("one")
    tab.apply(Delta(tab.chat.id, "1", 1))
    tab.apply(Finished(tab.chat.id, "stop", 5, 1, 0.1, 0.0))
    tab.summarise()
    tab.submission(SamplingParams(), READY)
    tab.interrupted("died")  # before it took the request
    assert tab.withdraw() == ""
    tab.ask("two")
    assert [m.content for m in tab.conversation()] == ["one", "1", "two"]
