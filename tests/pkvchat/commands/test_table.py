"""Commands found by what was typed, and completed."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pkvchat.commands import COMMANDS
from pkvchat.commands.answers import code_blocks
from pkvchat.commands.command import Command, CommandError, one_of, paths
from pkvchat.commands.table import CommandTable


def nothing(host: None, argument: str) -> None: ...


TABLE: CommandTable[None] = CommandTable(
    [
        Command("read", "", nothing, slash="read", argument="FILE", complete=paths),
        Command("regen", "", nothing, slash="regen"),
        Command("show", "", nothing, slash="show", complete=one_of(("info", "system"))),
        Command("no_slash", "", nothing, "f1"),
    ],
    "elsewhere are more",
)


def test_a_line_is_a_command_and_its_argument() -> None:
    command, argument = TABLE.find("/read  a file ")
    assert (command.name, argument) == ("read", "a file")


@pytest.mark.parametrize("line", ["/delete other chat", "/bye bye", "/duplicate 2"])
def test_an_argument_that_means_nothing_is_refused(line: str) -> None:
    with pytest.raises(CommandError, match=f"^{line.split()[0]} takes nothing after its name"):
        CommandTable(COMMANDS).find(line)


@pytest.mark.parametrize("line", ["/quit", "/exit", "/bye"])
def test_quitting_goes_by_the_names_that_others_give_it(line: str) -> None:
    command, argument = CommandTable(COMMANDS).find(line)
    assert (command.name, argument) == ("quit", "")


@given(st.text(max_size=60))
def test_anything_else_is_refused_in_one_line(line: str) -> None:
    with pytest.raises(CommandError, match="There is no /") as error:
        TABLE.find("/no" + line)
    assert "\n" not in str(error.value)
    assert "; elsewhere are more. Begin with //" in str(error.value)


def test_the_start_of_a_name_is_answered_with_those_that_begin_so() -> None:
    with pytest.raises(CommandError, match=r"^There is no /re; there is /read, /regen; elsewhere"):
        TABLE.find("/re x")
    for line in ("/", "/zoom"):
        with pytest.raises(CommandError, match="/help lists what there is; elsewhere"):
            TABLE.find(line)


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("/re", ["/read", "/regen"]),
        ("/show i", ["/show info"]),
        ("/show ", ["/show info", "/show system"]),
        ("/regen x", []),
        ("/nothing ", []),
        ("read", []),
        ("/re\n", []),
    ],
)
def test_names_and_arguments_complete(line: str, found: list[str]) -> None:
    assert TABLE.completions(None, line) == found


def test_paths_complete(tmp_path: Path) -> None:
    for name in ("notes.txt", "new file", ".hidden"):
        (tmp_path / name).write_text("")
    (tmp_path / "folder").mkdir()
    assert paths(None, f"{tmp_path}/n") == [f"{tmp_path}/new file", f"{tmp_path}/notes.txt"]
    assert paths(None, f"{tmp_path}/.") == [f"{tmp_path}/.hidden"]
    assert paths(None, f"{tmp_path}/f") == [f"{tmp_path}/folder/"]
    assert paths(None, f"{tmp_path}/nowhere/x") == []
    assert "/tmp/" in paths(None, "/t")


def test_shared_commands_have_names_of_their_own() -> None:
    table = CommandTable(COMMANDS)
    assert len(table.by_name) == len(COMMANDS)
    assert len(table.by_slash) == len([c for c in COMMANDS if c.slash])


@pytest.mark.parametrize(
    ("text", "blocks"),
    [
        ("no block", []),
        ("```py\nx = 1\n```\nand\n~~~\n```\n~~~\n", ["x = 1\n", "```\n"]),
        ("````\n```\ninner\n```\n````", ["```\ninner\n```\n"]),
        ("```\nstill open", ["still open"]),
        ("a `` ` ``` b", []),
    ],
)
def test_code_blocks(text: str, blocks: list[str]) -> None:
    assert code_blocks(text) == blocks
