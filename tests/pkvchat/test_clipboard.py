"""The desktop's clipboard: programs stand in for those of a desktop that isn't here."""

from __future__ import annotations

from pathlib import Path

import pytest

from pkvchat import clipboard


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that alone is searched for programs, on a desktop of X and Wayland."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("DISPLAY", ":0")
    monkeypatch.setenv("WAYLAND_DISPLAY", "wayland-0")
    return tmp_path


def install(folder: Path, name: str, script: str) -> None:
    program = folder / name
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o700)


@pytest.mark.usefixtures("programs")
def test_nothing_is_copied_where_no_program_is() -> None:
    assert not clipboard.copy("text")


def test_the_first_that_works_takes_the_exact_text(programs: Path) -> None:
    install(programs, "wl-copy", "exit 1")
    install(programs, "xclip", f'echo "$@" > {programs}/arguments; /bin/cat > {programs}/copied')
    text = "[red]é🌈\n\x00 no line end"
    assert clipboard.copy(text)
    assert (programs / "copied").read_text(encoding="utf-8") == text
    assert (programs / "arguments").read_text() == "-selection clipboard\n"


def test_without_a_desktop_its_programs_are_not_asked(
    programs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DISPLAY")
    install(programs, "xclip", "exit 0")
    assert not clipboard.copy("text")
    install(programs, "clip.exe", f"/bin/cat > {programs}/copied")
    assert clipboard.copy("é")
    assert (programs / "copied").read_bytes() == "é".encode("utf-16-le")


def test_one_that_never_ends_is_given_up(programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clipboard, "_TIMEOUT_S", 0.1)
    install(programs, "wl-copy", "exec /bin/sleep 60")
    assert not clipboard.copy("text")
