"""One message of a chat as terminal lines: who speaks, the text, how it went."""

from __future__ import annotations

import textwrap

from rich.segment import Segment
from rich.style import Style
from textual.strip import Strip

from pkvchat.chats import Message, Version
from pkvchat.clean import one_line, visible

from .markdown import INDENT, MarkdownRenderer
from .streamed_markdown import StreamedMarkdown

_FOLD_CHARS = 6000  # of a prompt; the rest of a huge paste is there, but not drawn
_REASONS = {
    "length": "token limit reached",
    "context": "context full",
    "cancelled": "stopped",
    "error": "failed",
    "died": "engine died",
    "quit": "left unfinished",
}


class Turn:
    """The lines of one message at one width and palette, kept until the message changes."""

    def __init__(
        self,
        message: Message,
        speaker: str,
        width: int,
        renderer: MarkdownRenderer,
        *,
        raw: bool,
        thoughts: bool,
        thoughts_key: str,
    ) -> None:
        self.message = message
        self.lines: list[Strip] = []
        self._speaker = speaker
        self.width = width
        self._palette = renderer.palette
        self._raw = raw
        self._thoughts = thoughts
        self._thoughts_key = thoughts_key
        self._renderer = renderer
        self._seen: tuple[object, ...] = ()
        self._version: Version | None = None
        self._markdown = StreamedMarkdown(self._renderer, width - INDENT)

    def refresh(self) -> bool:
        """Bring the lines up to date; True if they changed."""
        message, version = self.message, self.message.version
        seen = (
            len(version.text),
            version.reason,
            version.model,
            len(message.versions),
            message.queued,
        )
        if version is self._version and seen == self._seen:
            return False
        if version is not self._version:
            self._version = version
            self._markdown = StreamedMarkdown(self._renderer, self.width - INDENT)
        self._seen = seen
        self.lines = {
            "user": self._user,
            "note": lambda: self._own("! ", self._palette.warning),
            "said": lambda: self._own("· ", self._palette.muted),
            "cut": lambda: self._cut(self.message.text),
            "summary": self._summary,
        }.get(message.role, self._assistant)()
        return True

    def _user(self) -> list[Strip]:
        palette = self._palette
        name = "You (queued)" if self.message.queued else "You"
        text = self.message.text
        lines = self._plain(text[:_FOLD_CHARS])
        if len(text) > _FOLD_CHARS:
            lines.append(_line(f"  … {len(text) - _FOLD_CHARS:,} more characters", palette.muted))
        bar = Segment("▌ ", palette.user)
        return [
            Strip([bar, Segment(name, palette.user)]),
            *(_behind(bar, strip) for strip in lines),
            _BLANK,
        ]

    def _assistant(self) -> list[Strip]:
        palette, message = self._palette, self.message
        speaker = one_line(message.version.model) or self._speaker
        head = [Segment("● ", palette.assistant), Segment(speaker, palette.assistant)]
        if len(message.versions) > 1:
            which = f"  ‹ {message.chosen + 1}/{len(message.versions)} ›"
            head.append(Segment(which, palette.muted))
        body = self._plain(message.text) if self._raw else self._drawn(message.text)
        footer = textwrap.wrap(_footer(message.version), self.width - INDENT)
        foot = [_line(" " * INDENT + line, palette.faint) for line in footer]
        return [Strip(head), *body, *foot, _BLANK]

    def _drawn(self, text: str) -> list[Strip]:
        """Markdown, with reasoning folded to one line unless it is asked for."""
        thought, answer = _split_thought(text)
        if thought is None:
            return self._markdown.lines(text)
        muted = self._palette.muted
        words = len(thought.split())
        line = f"▸ thought, {words:,} words ({self._thoughts_key} shows them)"
        lines = [_line(" " * INDENT + line, muted)]
        if self._thoughts:
            lines = [strip.apply_style(muted) for strip in self._plain(thought.strip())]
        return [*lines, _BLANK, *self._markdown.lines(answer)] if answer else lines

    def _summary(self) -> list[Strip]:
        if self.message.sums_up:
            line = "the model reads on from this summary of what is above"
        elif self.message.version.reason:
            line = "no whole summary was written, so the model reads what is above"
        else:
            line = "the model sums up what is above"
        return [*self._cut(line), *self._assistant()]

    def _cut(self, what: str) -> list[Strip]:
        text = f"── {one_line(what)} "
        return [_line(text.ljust(self.width, "─")[: self.width], self._palette.warning), _BLANK]

    def _own(self, mark: str, style: Style) -> list[Strip]:
        """What the app says itself."""
        lines = [strip.apply_style(style) for strip in self._plain(self.message.text)]
        return [_behind(Segment(mark, style), lines[0]), *lines[1:], _BLANK]

    def _plain(self, text: str) -> list[Strip]:
        return self._renderer.text(visible(text), self.width - INDENT)


_BLANK = Strip([])


def _split_thought(text: str) -> tuple[str | None, str]:
    """The reasoning an answer opens with, if it does, and the answer proper."""
    if not text.lstrip().startswith("<think>"):
        return None, text
    thought, _, answer = text.lstrip().removeprefix("<think>").partition("</think>")
    return thought, answer.lstrip()


def _line(text: str, style: Style) -> Strip:
    return Strip([Segment(text, style)])


def _behind(bar: Segment, strip: Strip) -> Strip:
    """``strip`` with ``bar`` in place of its indent."""
    return Strip([bar, *list(strip)[1:]])


def _footer(version: Version) -> str:
    """How an answer went, once it ended."""
    if not version.reason:
        return ""
    parts = []
    if version.new_tokens:
        parts.append("1 token" if version.new_tokens == 1 else f"{version.new_tokens:,} tokens")
    if version.tokens_per_s:
        parts.append(f"{version.tokens_per_s:.1f} tokens/s")
    if version.ttft_s and version.new_tokens:
        parts.append(f"first after {version.ttft_s:.2f} s")
    if version.reason in _REASONS:
        parts.append(_REASONS[version.reason])
    return " · ".join(parts)
