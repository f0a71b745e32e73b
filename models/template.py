"""Chat templates: a conversation to token ids, by the model's own Jinja."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from .sandbox import Sandbox, render
from .tokenizer import MARK, Tokenizer
from .vocabulary import Vocabulary

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
PLAIN = (
    "{{ bos_token }}{% for message in messages %}{{ message.role | capitalize }}:"
    " {{ message.content }}\n\n{% endfor %}{% if add_generation_prompt %}Assistant:{% endif %}"
)
Message = Mapping[str, str]


class ChatTemplate:
    """fallback_note: "" while the model's own template is in use, else why a plain one is.

    source: the Jinja of the one in use.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        specials = vocabulary.tokenizer.specials
        self.fallback_note = self.source = ""
        self._tokens = {"bos_token": vocabulary.bos, "eos_token": vocabulary.eos}
        self._sandbox = Sandbox()
        self._plain = CHATML if {"<|im_start|>", "<|im_end|>"} <= specials.keys() else PLAIN
        longest_first = sorted((text for text in specials if text), key=len, reverse=True)
        self._look_alike = re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")
        self._merge_system = False
        self._use(vocabulary.template)

    def encode(
        self,
        messages: Sequence[Message],
        tokenizer: Tokenizer,
        *,
        add_generation_prompt: bool = True,
    ) -> list[int]:
        """messages: "role" and "content" each. Special tokens come from the template alone.

        A template that fails on these messages is replaced by a plain one, for good.
        """
        text = self.render(messages, add_generation_prompt=add_generation_prompt)
        return tokenizer.encode(text, specials=True)

    def encode_open(self, messages: Sequence[Message], tokenizer: Tokenizer) -> list[int]:
        """As ``encode``, with the last message, an answer that was cut short, left open: what the
        model says next carries it on."""
        text = self.render(messages[:-1]) + self._hide(messages[-1]["content"])
        return tokenizer.encode(text, specials=True)

    def render(self, messages: Sequence[Message], *, add_generation_prompt: bool = True) -> str:
        """As ``encode``, before tokenising; look-alikes of special tokens carry a MARK."""
        given = [dict(message, content=self._hide(message["content"])) for message in messages]
        if self._merge_system:
            given = _without_system(given)
        try:
            return self._render(given, add_generation_prompt)
        except Exception:  # templates are programs: any exception can come out
            pass
        try:  # many templates insist on turns that alternate
            return self._render(_merge_neighbours(given), add_generation_prompt)
        except Exception as error:
            self._fall_back(str(error))
            return self._render(given, add_generation_prompt)

    def turn_end(self) -> str:
        """The special token that follows an answer, "" if none: files do not always declare it."""
        given = [{"role": "user", "content": "a question"}, {"role": "assistant", "content": "Yes"}]
        try:
            text = self._render(given, False)
        except Exception:  # see render
            return ""
        found = self._look_alike.match(text.rpartition("Yes")[2].lstrip())
        return found[0] if found else ""

    def _render(self, messages: Sequence[Message], add_generation_prompt: bool) -> str:
        variables = {
            "messages": messages,
            "add_generation_prompt": add_generation_prompt,
            "tools": None,
            "documents": None,
        }
        return render(self._template, variables | self._tokens)

    def _use(self, source: str) -> None:
        """Compile and try the model's template; see whether it takes a system message."""
        if not source:
            return self._fall_back("it has none")
        user = {"role": "user", "content": "a question"}
        try:
            self.source = source
            self._template = self._sandbox.from_string(source)
            if user["content"] not in self._render([user], True):
                return self._fall_back("it leaves out what the user says")
        except Exception as error:  # see render
            return self._fall_back(str(error))
        system = {"role": "system", "content": "an instruction"}
        try:
            self._merge_system = system["content"] not in self._render([system, user], True)
        except Exception:
            self._merge_system = True
        return None

    def _fall_back(self, reason: str) -> None:
        self.fallback_note = (
            f"the model's chat template is not usable ({reason.strip() or 'no reason given'}):"
            " a plain one is used"
        )
        self.source = self._plain
        self._template = self._sandbox.from_string(self._plain)
        self._merge_system = False

    def _hide(self, content: str) -> str:
        """Break look-alikes of special tokens; see MARK."""
        content = content.replace(MARK, "\ufffd")
        return self._look_alike.sub(lambda found: found[0][0] + MARK + found[0][1:], content)


def _without_system(messages: list[dict[str, str]]) -> list[dict[str, str]]:
    """Put a leading system message into the first user message."""
    if len(messages) < 2 or messages[0]["role"] != "system":
        return messages
    return _merge_neighbours([dict(messages[0], role="user"), *messages[1:]])


def _merge_neighbours(messages: list[dict[str, str]]) -> list[dict[str, str]]:
    """Join messages of one role that follow each other."""
    merged: list[dict[str, str]] = []
    for message in messages:
        if merged and merged[-1]["role"] == message["role"]:
            content = f"{merged[-1]['content']}\n\n{message['content']}"
            merged[-1] = dict(merged[-1], content=content)
        else:
            merged.append(dict(message))
    return merged
