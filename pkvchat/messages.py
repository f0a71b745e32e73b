"""The typed messages between a user interface and the engine, both ways. All of them pickle.

Requests go to the engine, events come back. A chat is named by an id the interface picks; the
engine keeps that chat's KV pages until ``Close``, so that a next turn only prefills what is new.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from .sampling import SamplingParams
from .steps import StepRecord


@dataclass(frozen=True)
class ChatMessage:
    """role: "system", "user" or "assistant"."""

    role: str
    content: str


# --- requests ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Submit:
    """Answer ``messages`` (the whole conversation, ending with the user's) in chat ``chat_id``.

    Where they end with the assistant's, that answer is carried on.
    """

    chat_id: str
    messages: tuple[ChatMessage, ...]
    params: SamplingParams = field(default_factory=SamplingParams)


@dataclass(frozen=True)
class Stop:
    """End this chat's answer now; what was generated stays."""

    chat_id: str


@dataclass(frozen=True)
class Close:
    """Free everything the engine holds for this chat."""

    chat_id: str


@dataclass(frozen=True)
class Fork:
    """``target`` starts with ``source``'s KV pages: the full ones shared, the last one copied."""

    source: str
    target: str


@dataclass(frozen=True)
class CountTokens:
    """How long a prompt ``messages`` would make. number: the interface's own, given back."""

    chat_id: str
    number: int
    messages: tuple[ChatMessage, ...]


@dataclass(frozen=True)
class SetPolicy:
    """Change the policy from the next decode step on: "adaptive" or "forced-NAME"."""

    name: str


@dataclass(frozen=True)
class RunBench:
    """Measure the engine's speed between answers. Chats keep their KV."""


@dataclass(frozen=True)
class Shutdown:
    """End the engine."""


Request = Submit | Stop | Close | Fork | CountTokens | SetPolicy | RunBench | Shutdown


# --- events -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Loading:
    """What is being loaded, and how far, in the stage's own unit; total 0 is unknown."""

    stage: str
    done: int
    total: int


@dataclass(frozen=True)
class Ready:
    """The engine can answer. ``strategies`` maps each name to "" or why it cannot run here.

    template: the chat template in use, as Jinja. model_context, memory_context: tokens of the
    longest context that the model can take, and that there was memory for.
    """

    model: str
    device: str
    dtype: str
    context: int
    pages_total: int
    page_size: int
    policy: str
    strategies: dict[str, str]
    notes: tuple[str, ...] = ()
    template: str = ""
    model_context: int = 0
    memory_context: int = 0


@dataclass(frozen=True)
class Started:
    """Prefill of an answer begins: ``prompt_tokens`` in all, ``cached_tokens`` of them kept."""

    chat_id: str
    prompt_tokens: int
    cached_tokens: int


@dataclass(frozen=True)
class Prefilled:
    """How far the prompt is read."""

    chat_id: str
    done: int
    total: int


@dataclass(frozen=True)
class Delta:
    """New text of an answer: whole characters only, many tokens at once when they come fast."""

    chat_id: str
    text: str
    num_tokens: int


@dataclass(frozen=True)
class Finished:
    """reason: "stop" (the model ended it), "length", "context", "cancelled" or "error".

    ttft_s: seconds from Submit to the first token. tokens_per_s: of this answer's decode.
    """

    chat_id: str
    reason: str
    prompt_tokens: int
    new_tokens: int
    ttft_s: float
    tokens_per_s: float


@dataclass(frozen=True)
class Failed:
    """One line a person understands. chat_id None: the engine as a whole; ``fatal`` ends it.

    context_full: the conversation has outgrown the context.
    """

    chat_id: str | None
    message: str
    fatal: bool = False
    context_full: bool = False


@dataclass(frozen=True)
class Notice:
    """One line that a person should know, about a chat or (None) all; answers go on."""

    chat_id: str | None
    message: str


@dataclass(frozen=True)
class Counted:
    """The answer to CountTokens, unless a newer one overtook it."""

    chat_id: str
    number: int
    tokens: int


@dataclass(frozen=True)
class PolicyChanged:
    """The answer to SetPolicy."""

    name: str


@dataclass(frozen=True)
class Benched:
    """The answer to RunBench: a table, for a person."""

    table: str


@dataclass(frozen=True)
class Steps:
    """The decode steps since the last message."""

    records: tuple[StepRecord, ...]


@dataclass(frozen=True)
class Pages:
    """The KV cache's pages from now on; shared: of those used, what more than one chat reads."""

    used: int
    shared: int
    total: int


@dataclass(frozen=True)
class Died:
    """The engine process is gone; ``message`` says what is known. Made by the client."""

    message: str


Event = (
    Loading
    | Ready
    | Started
    | Prefilled
    | Delta
    | Finished
    | Failed
    | Notice
    | Counted
    | PolicyChanged
    | Benched
    | Steps
    | Pages
    | Died
)
