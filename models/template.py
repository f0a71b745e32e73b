"""Chat templates: a model's own Jinja, rendered in a sandbox, to token ids."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment

from .tokenizer import MARK, Tokenizer

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
PLAIN = (
    "{{ bos_token }}{% for message in messages %}{{ message.role | capitalize }}:"
    " {{ message.content }}\n\n{% endfor %}{% if add_generation_prompt %}Assistant:{% endif %}"
)


def _raise(message: str) -> None:
    raise jinja2.TemplateError(message)


def _environment() -> ImmutableSandboxedEnvironment:
    """As transformers sets templates up, so that they render the same."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.globals["raise_exception"] = _raise
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return environment


class ChatTemplate:
    """fallback_note: "" or why the model's own template is not in use."""

    def __init__(self, source: str | None, tokenizer: Tokenizer, bos: str, eos: str) -> None:
        self.fallback_note = ""
        self._tokens = {"bos_token": bos, "eos_token": eos}
        self._plain = CHATML if "<|im_start|>" in tokenizer.specials else PLAIN
        self._environment = _environment()
        if source is None:
            self.fallback_note = "the model has no chat template; a plain one is used"
        self._template = self._environment.from_string(source or self._plain)
        look_alikes = sorted(tokenizer.specials, key=len, reverse=True)
        self._specials = re.compile("|".join(map(re.escape, look_alikes)) or r"(?!)")

    def render(self, messages: Sequence[Mapping[str, str]], add_generation_prompt: bool) -> str:
        """The text whose special tokens are the template's own; contents' look-alikes are marked."""
        safe = [{k: self._hide_specials(v) for k, v in message.items()} for message in messages]
        variables: dict[str, Any] = {
            "messages": safe,
            "add_generation_prompt": add_generation_prompt,
            **self._tokens,
        }
        return self._template.render(variables)

    def encode(
        self,
        messages: Sequence[Mapping[str, str]],
        tokenizer: Tokenizer,
        *,
        add_generation_prompt: bool = True,
    ) -> list[int]:
        """messages: "role" and "content" each. Special tokens come from the template alone."""
        return tokenizer.encode(self.render(messages, add_generation_prompt), specials=True)

    def _hide_specials(self, content: str) -> str:
        content = content.replace(MARK, "\ufffd")
        return self._specials.sub(lambda found: found[0][0] + MARK + found[0][1:], content)
