"""Chats to and from files: Markdown and JSON out; our JSON and common message lists in."""

from __future__ import annotations

import json
from pathlib import Path

from .chats import OWN_LINES, SENT_ROLES, Chat, Message, Version, given_title, title_of
from .clean import one_line
from .errors import ChatError
from .regular_file import check_regular

_FORMAT = "pkvchat-chat-1"
_OWN_ROLES = (*OWN_LINES, "cut", "summary")


def export_chat(chat: Chat, path: Path) -> None:
    """Write ``chat`` as Markdown (.md) or JSON (.json, read back by ``import_chat``).

    Raises ChatError for another ending, a file that exists, or one that can't be written.
    """
    if path.suffix not in (".md", ".json"):
        raise ChatError(f"cannot export to {path}: the name must end in .md or .json")
    text = _markdown(chat) if path.suffix == ".md" else _json(chat)
    try:
        with path.open("x", encoding="utf-8", errors="replace") as file:
            try:
                file.write(text)
                file.flush()
            except OSError:
                path.unlink()
                raise
    except FileExistsError:
        raise ChatError(f"{path} exists; choose another name") from None
    except OSError as error:
        raise ChatError(f"cannot write {path}: {error.strerror}") from error


def _markdown(chat: Chat) -> str:
    parts = [f"# {chat.name}\n"]
    if chat.system:
        parts.append(f"**System**\n\n{chat.system}\n")
    names = {"user": "You", "assistant": "Assistant", "summary": "Summary of what is above"}
    for message in chat.messages:
        if name := names.get(message.role):
            by = f" ({one_line(message.version.model)})" if message.version.model else ""
            parts.append(f"**{name}**{by}\n\n{message.text}\n")
    return "\n".join(parts)


def _json(chat: Chat) -> str:
    messages = [
        {
            "role": message.role,
            "content": message.text,
            "chosen": message.chosen,
            "versions": [vars(version) for version in message.versions],
        }
        for message in chat.messages
    ]
    data = {"format": _FORMAT, "title": chat.title, "system": chat.system, "messages": messages}
    return json.dumps(data, indent=1, ensure_ascii=False)


def import_chat(path: Path) -> Chat:
    """A new chat from a JSON file: ours, ``{"messages": [{"role", "content"}]}`` as OpenAI's
    API takes it, or the bare list of messages.

    Raises ChatError where the file is none of these.
    """
    try:
        check_regular(path)
        data = json.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise ChatError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise ChatError(f"{path} is not JSON: {error}") from error
    fields = data if isinstance(data, dict) else {"messages": data}
    entries = fields.get("messages")
    if not isinstance(entries, list):
        raise ChatError(f"{path} holds no list of messages")
    chat = Chat(title=given_title(_text(fields.get("title"))), system=_text(fields.get("system")))
    for number, entry in enumerate(entries):
        message = _message(entry, ours=fields.get("format") == _FORMAT)
        if message is None:
            raise ChatError(
                f"{path}: message {number} is not an object with a role "
                f"({', '.join(SENT_ROLES)}) and content"
            )
        if message.role == "system" and not chat.messages and not chat.system:
            chat.system = message.text
        else:
            chat.messages.append(message)
    first = next((m.text for m in chat.messages if m.role == "user"), "")
    chat.title = chat.title or title_of(first)
    return chat


def _message(entry: object, *, ours: bool) -> Message | None:
    if not isinstance(entry, dict):
        return None
    role, content = entry.get("role"), _content(entry.get("content"))
    if not isinstance(role, str) or content is None:
        return None
    if role not in (SENT_ROLES + _OWN_ROLES if ours else SENT_ROLES):
        return None
    versions = [Version(content, "stop" if role == "assistant" else "")]
    if ours:
        versions = _versions(entry.get("versions")) or versions
    chosen = entry.get("chosen", 0) if ours else 0
    valid = isinstance(chosen, int) and 0 <= chosen < len(versions)
    return Message(role, versions, chosen if valid else 0)


def _content(content: object) -> str | None:
    """Text, or the text of OpenAI-style content parts."""
    if isinstance(content, list):
        texts = [part.get("text") for part in content if isinstance(part, dict)]
        return _text("\n".join(text for text in texts if isinstance(text, str)))
    return _text(content) if isinstance(content, str) else None


def _versions(entries: object) -> list[Version]:
    if not isinstance(entries, list):
        return []
    return [
        Version(
            _text(entry.get("text")), _text(entry.get("reason")), model=_text(entry.get("model"))
        )
        for entry in entries
        if isinstance(entry, dict)
    ]


def _text(value: object) -> str:
    """Without halves of surrogate pairs: JSON can write them, but no tokenizer reads them."""
    return value.encode("utf-8", "replace").decode("utf-8") if isinstance(value, str) else ""
