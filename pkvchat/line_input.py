"""Lines of standard input; on a terminal with a prompt, history and completion."""

from __future__ import annotations

import sys
from collections.abc import Callable

from .options import MAX_PROMPT

_PROMPT = "> "
_AGAIN = "press Ctrl+C again to quit (or Ctrl+D)\n"
Read = Callable[[], bytes]  # a line of at most MAX_PROMPT + 1 bytes, b"" at the end of input


def line_reader(complete: Callable[[str], list[str]]) -> Read:
    """complete: what a line that begins so may go on to be."""
    if not with_person():
        return _read
    if sys.stdout.isatty() and _set_up_readline(complete):
        import readline

        return _until_interrupted_twice(_read_edited, readline.get_line_buffer)
    return _until_interrupted_twice(_read_prompted, lambda: "")


def _until_interrupted_twice(read: Read, typed: Callable[[], str]) -> Read:
    """Ctrl+C clears the line, which ``typed`` gives; a second one, on an empty line right after the
    first, raises KeyboardInterrupt."""

    def read_on() -> bytes:
        again = False
        while True:
            try:
                return read()
            except KeyboardInterrupt:
                sys.stderr.write("\n")
                empty = not typed()
                if again and empty:
                    raise
                again = empty
                if empty:
                    sys.stderr.write(_AGAIN)

    return read_on


def confirmed(question: str) -> bool:
    """Whoever cannot be asked has said what is wanted."""
    answer = asked(f"{question} [y/N]")
    return answer is None or is_yes(answer)


def asked(question: str) -> str | None:
    """A person's answer, "" for Ctrl+C; None where there is no terminal."""
    if not with_person():
        return None
    sys.stderr.write(f"{question} ")
    sys.stderr.flush()
    try:
        return _read().decode("utf-8", "replace")
    except KeyboardInterrupt:
        sys.stderr.write("\n")
        return ""


def is_yes(answer: str) -> bool:
    return answer.strip().lower() in ("y", "yes")


def with_person() -> bool:
    """Somebody is at a terminal, and sees what is said there."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def _read() -> bytes:
    return sys.stdin.buffer.readline(MAX_PROMPT + 1)


def _read_prompted() -> bytes:
    sys.stderr.write(_PROMPT)
    sys.stderr.flush()
    return _read()


def _read_edited() -> bytes:
    try:
        return input(_PROMPT).encode("utf-8", "surrogateescape") + b"\n"
    except EOFError:
        return b""


def _set_up_readline(complete: Callable[[str], list[str]]) -> bool:
    """False where Python was built without it."""
    try:
        import readline
    except ImportError:
        return False

    def completer(text: str, state: int) -> str | None:
        found = complete(text)
        if len(found) == 1 and not found[0].endswith("/"):  # there is nothing else it may become
            found = [f"{found[0]} "]
        return found[state] if state < len(found) else None

    readline.set_completer(completer)
    readline.set_completer_delims("")
    libedit = "libedit" in (readline.__doc__ or "")
    readline.parse_and_bind("bind ^I rl_complete" if libedit else "tab: complete")
    sys.stdin.reconfigure(errors="surrogateescape")  # type: ignore[union-attr]
    return True
