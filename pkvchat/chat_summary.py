"""What the model is asked when it is to sum up a conversation that has filled its context."""

from __future__ import annotations

from collections.abc import Iterable

from .messages import ChatMessage

_INSTRUCTION = (
    "Sum up the conversation below, so that it can go on from your summary alone. Keep facts, "
    "names, numbers, decisions and what is still open. Answer with the summary only."
)
_OVERHEAD = 100  # tokens of the instruction and the chat template, about
_SHARE = 0.75  # of the room that is left, since tokens are only estimated


class Summary:
    """A conversation that is read in parts: the summary of one opens the request for the next.

    max_tokens: that each part's summary may have.
    """

    def __init__(
        self, conversation: Iterable[ChatMessage], context: int, chars_per_token: float
    ) -> None:
        self.max_tokens = max(context // 8, 16)
        room = max(context - 2 * self.max_tokens - _OVERHEAD, context // 8)
        self._parts = parts(conversation, max(int(_SHARE * room * chars_per_token), 1))
        self._so_far = ""

    def request(self) -> ChatMessage:
        """For the summary of the next part and all before it."""
        before = f"The conversation before, summed up:\n\n{self._so_far}\n\n" * bool(self._so_far)
        return ChatMessage("user", f"{_INSTRUCTION}\n\n{before}{self._parts[0]}")

    def advance(self, text: str) -> bool:
        """Take the summary that was asked for; True where another part is to be read."""
        self._so_far = text
        del self._parts[0]
        return bool(self._parts)


def parts(conversation: Iterable[ChatMessage], chars: int) -> list[str]:
    """The conversation as text, cut into parts of at most ``chars`` characters, between messages
    where that is possible. The system prompt stays the chat's own."""
    found = [""]
    for message in conversation:
        if message.role == "system":
            continue
        text = f"{message.role.capitalize()}: {message.content.strip()}\n\n"
        if found[-1] and len(found[-1]) + len(text) > chars:
            found.append("")
        while len(found[-1]) + len(text) > chars:
            room = chars - len(found[-1])
            found[-1] += text[:room]
            text = text[room:]
            found.append("")
        found[-1] += text
    return [part for part in found if part.strip()]
