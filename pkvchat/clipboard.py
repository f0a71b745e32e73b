"""The desktop's clipboard, by whichever of its programs is there."""

from __future__ import annotations

import os
import shutil
import subprocess

_TIMEOUT_S = 5
# The variable that says whether such a desktop runs ("": no need), the command, its encoding.
_PROGRAMS = (
    ("WAYLAND_DISPLAY", ("wl-copy",), "utf-8"),
    ("DISPLAY", ("xclip", "-selection", "clipboard"), "utf-8"),
    ("DISPLAY", ("xsel", "--clipboard", "--input"), "utf-8"),
    ("", ("pbcopy",), "utf-8"),
    ("", ("clip.exe",), "utf-16-le"),
)
NAMES = ", ".join(command[0] for _, command, _ in _PROGRAMS)


def copy(text: str) -> bool:
    """Put ``text`` on the clipboard; False where no program could. May take seconds."""
    for variable, command, encoding in _PROGRAMS:
        if (variable and not os.environ.get(variable)) or not shutil.which(command[0]):
            continue
        try:
            subprocess.run(
                command,
                input=text.encode(encoding, "replace"),
                stdout=subprocess.DEVNULL,  # some stay behind to serve the text, and keep it open
                stderr=subprocess.DEVNULL,
                timeout=_TIMEOUT_S,
                check=True,
            )
        except (OSError, subprocess.SubprocessError):
            continue
        return True
    return False
