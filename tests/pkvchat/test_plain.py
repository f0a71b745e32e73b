"""The chat without a terminal, on the default model, by subprocess. Each start costs seconds."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pkvchat.store import ChatStore

RAINBOW = "Name three colours of the rainbow."
EXPECTED = json.loads((Path(__file__).parent / "greedy.json").read_text())[RAINBOW]
EXACT = ("--temp", 0, "--dtype", "f32")  # other types may break near ties the other way
STEP_KEYS = (
    "step, strategy, reason, batch, seq_lens, num_splits, predicted_us, step_ms, tokens_per_s, "
    "pages_used, pages_total, pages_shared, idle_ms"
)


@pytest.fixture
def start(cli_env):
    """start(*args) begins the program with pipes to all three streams."""
    begun = []

    def start(*args):
        process = subprocess.Popen(
            [sys.executable, "-m", "pkvchat", *args],
            env=cli_env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            # A suite that a shell runs in the background ignores Ctrl+C, and so would the program.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
        begun.append(process)
        return process

    yield start
    for process in begun:
        process.kill()
        process.communicate()


def test_one_answer(run_cli, tmp_path):
    steps = tmp_path / "steps.jsonl"
    former = '{"step": 1, "strategy": "of a former run"}\n'
    steps.write_text(former)
    assert run_cli("-m", tmp_path / "none", "-p", "hi", "--steps", steps).returncode == 1
    assert steps.read_text() == former  # nothing ran that could take its place
    done = run_cli("-p", RAINBOW, "-n", 16, *EXACT, "--steps", steps)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("\n")
    assert EXPECTED.startswith(done.stdout[:-1])
    records = [json.loads(line) for line in steps.read_text().splitlines()]
    assert len(records) == 15  # prefill gives the first token
    assert {", ".join(record) for record in records} == {STEP_KEYS}
    assert [record["step"] for record in records] == list(range(1, 16))
    assert {record["batch"] for record in records} == {1}


def test_a_file_and_a_forced_strategy_give_the_same_answer(run_cli, tmp_path):
    (tmp_path / "prompt.txt").write_text(RAINBOW)
    args = ("-f", tmp_path / "prompt.txt", "-n", 8, *EXACT, "--policy", "forced-workqueue")
    done = run_cli(*args)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout) > 20
    assert EXPECTED.startswith(done.stdout[:-1])


def test_a_prompt_from_standard_input(run_cli):
    done = run_cli("-f", "-", "-n", 8, *EXACT, stdin=RAINBOW.encode())
    assert done.returncode == 0, done.stderr
    assert EXPECTED.startswith(done.stdout[:-1])
    assert len(done.stdout) > 20


def test_lines_are_turns_of_one_conversation(run_cli, cli_env, tmp_path):
    """Only the model's text comes out, whatever is wrong with a line or the cache folder."""
    (tmp_path / "not-a-folder").write_text("")
    cli_env["XDG_CACHE_HOME"] = str(tmp_path / "not-a-folder")
    steps = tmp_path / "steps.jsonl"
    lines = RAINBOW.encode() + b"\r\n\n  \ncaf\xe9?\n" + b"long " * 9000 + b"\nAnd?"
    done = run_cli("-n", 8, "--temp", 0, "--steps", steps, stdin=lines)
    answers = done.stdout.splitlines()
    assert len(answers) == 3, done.stdout
    assert answers[0].startswith("The rainbow is a beautiful")
    assert "note: line 4 is not UTF-8 (byte 0xe9 at 3)" in done.stderr
    assert "too many for a context of 8192" in done.stderr
    assert done.returncode == 1  # one line could not be answered
    longest = [max(json.loads(line)["seq_lens"]) for line in steps.read_text().splitlines()]
    assert longest == sorted(longest), "each turn goes on from the one before"


def test_lines_that_begin_with_a_slash_are_commands(run_cli, tmp_path):
    (tmp_path / "colours.txt").write_text("of the rainbow")
    lines = [
        "/set temp 0",
        "/set parameter num_predict 6",
        RAINBOW,
        "/continue",
        "/regen",
        "/theme dark",
        "/policy forced-sdpa",
        "/policy forced-nothing",
        "/show template",
        "/stats",
        f"/export {tmp_path}/chat.json",
        "/fork",
        "/save",
        "/model nowhere.gguf",
        f"/read {tmp_path}/colours.txt",
        "//Name three colours.",
        f"/export {tmp_path}/fork.json",
        "/bye",
        "never asked",
    ]
    done = run_cli("--dtype", "f32", stdin="\n".join(lines).encode())
    assert done.returncode == 1, "three lines could not be carried out"
    first, rest, again, more = done.stdout.splitlines()
    assert EXPECTED.startswith(first + rest)
    assert first == again
    for said in (
        "There is no /theme; /help lists what there is; the app has more. Begin with // to send",
        "this is now 'fork: Name three colours of the rainbow.'",
        "policy forced-sdpa",
        "unknown policy 'forced-nothing'",
        "<|im_start|>",
        "decode steps: ",
        "no such file: nowhere.gguf",
        "characters go before your next line",
    ):
        assert said in done.stderr
    versions = json.loads((tmp_path / "chat.json").read_text())["messages"][1]["versions"]
    assert [version["text"] for version in versions] == [first + rest, again]
    assert versions[0]["new_tokens"] == 12
    assert "SmolLM2" in versions[0]["model"]
    prompt = json.loads((tmp_path / "fork.json").read_text())["messages"][2]
    assert "of the rainbow\n```\n\n/Name three colours." in prompt["content"]
    store = ChatStore(tmp_path / "data" / "pkvchat" / "chats.db")
    assert len(store.find("rainbow")) == 2, "the chat that was forked, and the fork"
    assert more


@pytest.fixture
def terminal(cli_env):
    """The program with a terminal, whose ``until(text)`` reads what it shows up to ``text``."""
    terminal = Terminal(cli_env)
    yield terminal
    terminal.close()


class Terminal:
    def __init__(self, env):
        self.keys, other = pty.openpty()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "pkvchat", "--no-tui", "-n", "1", "-t", "1"],
            env=env | {"TERM": "dumb"},
            stdin=other,
            stdout=other,
            stderr=other,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
        os.close(other)
        self._screen = b""

    def type(self, keys):
        os.write(self.keys, keys)

    def interrupt(self):
        """Python's readline misses a signal between its prompt and its wait for keys until another
        comes."""
        time.sleep(0.3)
        self.process.send_signal(signal.SIGINT)
        if not select.select([self.keys], [], [], 10)[0]:
            self.process.send_signal(signal.SIGINT)

    def until(self, text):
        while text not in self._screen:
            assert select.select([self.keys], [], [], 60)[0], self._screen
            self._screen += os.read(self.keys, 4096)
        self._screen = self._screen[self._screen.index(text) + len(text) :]

    def close(self):
        self.process.kill()
        self.process.wait()
        os.close(self.keys)


def test_a_terminal_completes_and_recalls(terminal):
    """A line typed with Tab, one recalled with Up; then a key that is not UTF-8."""
    terminal.until(b"> ")
    terminal.type(b"/sho\tsys\t\n")
    terminal.until(b"no system prompt")
    terminal.type(b"\x10\n")
    terminal.until(b"no system prompt")
    for answer, said in ((b"\n", b"'New chat' stays"), (b"y\n", b"deleted 'New chat'")):
        terminal.type(b"/delete\n")
        terminal.until(b"Delete 'New chat' for good? [y/N] ")
        terminal.type(answer)
        terminal.until(said)
    terminal.type(b"/rename\n")
    terminal.until(b"Title: ")
    terminal.type(b"rivers\n")
    terminal.until(b"this is now 'rivers'")
    terminal.type(b"/nop\xff\n")
    terminal.until(b"line 6 is not UTF-8")
    terminal.type(b"/bye\n")
    assert terminal.process.wait(timeout=60) == 1


AGAIN = b"\r\npress Ctrl+C again to quit (or Ctrl+D)\r\n> "


def test_ctrl_c_at_the_prompt_quits_when_pressed_twice(terminal):
    """It clears what was typed, and whatever is said between two of them makes them two firsts."""
    terminal.until(b"> ")
    terminal.interrupt()
    terminal.until(AGAIN)
    terminal.type(b"/show sys")
    terminal.until(b"/show sys")
    terminal.interrupt()
    terminal.until(b"\r\n> ")
    terminal.type(b"/rename rivers\n")
    terminal.until(b"this is now 'rivers'\r\n> ")
    terminal.interrupt()
    terminal.until(AGAIN)
    terminal.type(b"/delete\n")
    terminal.until(b"[y/N] ")
    terminal.interrupt()
    terminal.until(b"'rivers' stays")
    terminal.until(b"> ")
    terminal.interrupt()
    terminal.until(AGAIN)
    terminal.type(b"/show system\n")
    terminal.until(b"no system prompt")
    terminal.until(b"> ")
    terminal.interrupt()
    terminal.until(AGAIN)
    terminal.interrupt()
    assert terminal.process.wait(timeout=60) == 130


def test_ctrl_c_keeps_the_partial_answer(start):
    process = start("-p", "Tell me a very long story about a dragon.", "--temp", "0", "-n", "2000")
    first = process.stdout.read(10)
    process.send_signal(signal.SIGINT)
    rest, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert len(first) == 10
    assert rest.endswith(b"\n")
    assert b"Traceback" not in errors


def until_quiet(process, seconds=5.0):
    """What the program writes until it has nothing more to say."""
    text = b""
    while select.select([process.stdout], [], [], seconds)[0]:
        chunk = process.stdout.read1()
        if not chunk:
            break
        text += chunk
    return text


def test_ctrl_c_between_lines(start):
    """The first ends the answer under way, one at the prompt ends the program."""
    process = start("--temp", "0", "-n", "2000")
    process.stdin.write(b"Tell me a very long story about a dragon.\n")
    process.stdin.flush()
    process.stdout.read(10)
    process.send_signal(signal.SIGINT)
    assert until_quiet(process).endswith(b"\n")
    process.stdin.write(b"Say hello.\n")
    process.stdin.flush()
    assert until_quiet(process).endswith(b"\n")
    process.send_signal(signal.SIGINT)
    process.wait(timeout=60)
    assert process.returncode == 130
    assert b"Traceback" not in process.stderr.read()


def test_a_reader_that_goes_away(start):
    process = start("-p", "Tell me a very long story.", "--temp", "0", "-n", "500")
    process.stdout.read(1)
    process.stdout.close()
    assert process.wait(timeout=60) == 141
    assert b"Traceback" not in process.stderr.read()


def test_a_model_that_is_not_there(run_cli, tmp_path):
    done = run_cli("-m", tmp_path / "none.gguf", "-p", "hi")
    assert (done.returncode, done.stdout) == (1, "")
    assert str(tmp_path / "none.gguf") in done.stderr.splitlines()[-1]
    assert done.stderr.splitlines()[-1].startswith("pkvchat: ")


def test_a_log_that_cannot_be_written_is_told_before_anything_is_loaded(run_cli, tmp_path):
    done = run_cli("-p", "hi", "--steps", tmp_path / "none" / "steps.jsonl")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        f"pkvchat: --steps: cannot write {tmp_path}/none/steps.jsonl: No such file or directory; "
        "name a file that can be written\n"
    )
