"""Settings: the file's values, and the one line for each thing that can be wrong with it."""

from __future__ import annotations

import multiprocessing
import os
import re
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pkvchat.errors import ChatError, UsageError
from pkvchat.options import EngineOptions
from pkvchat.sampling import SamplingParams
from pkvchat.settings import RULES, Settings, load_settings, save_settings

WHOLE_FILE = """
model = "some-model"
device = "cpu"
dtype = "bf16"
context = 4096
kv_memory = "1.5G"
page_size = 32
policy = "forced-sdpa"
threads = 1
system_prompt = "Be brief."
theme = "nord"
mouse = false
panel = false

[sampling]
temperature = 0
top_k = 20
top_p = 0.9
min_p = 0.1
repeat_penalty = 1.1
repeat_last_n = -1
seed = 7
max_tokens = 100

[keys]
new_chat = "ctrl+n"
"""


def write(tmp_path, text):
    path = tmp_path / "config.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_no_file_means_the_defaults(tmp_path):
    assert load_settings(tmp_path / "config.toml") == Settings()


def test_every_value_arrives(tmp_path):
    assert load_settings(write(tmp_path, WHOLE_FILE)) == Settings(
        engine=EngineOptions(
            model="some-model",
            device="cpu",
            dtype="bf16",
            context=4096,
            page_size=32,
            kv_memory=3 << 29,
            policy="forced-sdpa",
            threads=1,
        ),
        sampling=SamplingParams(0.0, 20, 0.9, 0.1, 1.1, -1, 7, 100),
        system_prompt="Be brief.",
        theme="nord",
        mouse=False,
        panel=False,
        keys={"new_chat": "ctrl+n"},
    )


def test_flags_beat_the_file(tmp_path):
    settings = load_settings(write(tmp_path, WHOLE_FILE)).with_values(
        {"temperature": 0.5, "model": "other", "system_prompt": "", "unrelated": object()}
    )
    assert settings.sampling.temperature == 0.5
    assert settings.sampling.top_k == 20
    assert settings.engine.model == "other"
    assert settings.engine.page_size == 32
    assert settings.system_prompt == ""


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("modle = 'x'", "unknown key modle; the file may have "),
        ("temperature = 1", "unknown key temperature"),
        ("[sampling]\ntemp = 1", "unknown key sampling.temp; [sampling] may have max_tokens,"),
        ("[sampling]\nmodel = 'x'", "unknown key sampling.model"),
        ("context = 'big'", "context = 'big' must be a whole number of at least 0"),
        ("context = 1.5", "context = 1.5 must be a whole number"),
        ("context = true", "context = True must be a whole number"),
        ("model = 5", "model = 5 must be a model's name or path"),
        ("model = ''", "model = '' must be a model's name or path"),
        ("policy = 'fastest'", "policy = 'fastest' must be one of adaptive, forced-flashinfer,"),
        ("page_size = 17", "page_size = 17 must be one of 16, 32, 64"),
        ("dtype = 'f64'", "dtype = 'f64' must be one of auto, f32, f16, bf16"),
        ("device = 'tpu'", "device = 'tpu' must be auto, cpu, cuda or cuda:N"),
        ("kv_memory = 'lots'", "kv_memory = 'lots' must be a number of bytes, or a size"),
        ("kv_memory = 0", "kv_memory = 0 must be"),
        ("kv_memory = '0.5'", "kv_memory = '0.5' must be"),
        ("[sampling]\ntemperature = -1", "sampling.temperature = -1 must be a number of at least"),
        ("[sampling]\ntemperature = nan", "sampling.temperature = nan must be"),
        ("[sampling]\ntop_p = 1.5", "sampling.top_p = 1.5 must be a number from 0 to 1"),
        ("[sampling]\nrepeat_penalty = 0", "sampling.repeat_penalty = 0 must be a number above 0"),
        ("sampling = 1", "sampling = 1 must be a table, written as [sampling]"),
        ("mouse = 'off'", "mouse = 'off' must be true or false"),
        ("[keys]\nnew_chat = 5", "keys.new_chat = 5 must be a key"),
        ("model = ", "is not valid TOML"),
        ("context = " + "9" * 5000, "is not valid TOML"),
        ("model = " + "[" * 100_000, "is not valid TOML"),
    ],
)
def test_a_wrong_file_is_told_in_one_line(tmp_path, text, said):
    path = write(tmp_path, text)
    with pytest.raises(UsageError, match=re.escape(said)) as caught:
        load_settings(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_utf8(tmp_path):
    path = tmp_path / "config.toml"
    path.write_bytes(b"theme = 'caf\xe9'")
    with pytest.raises(UsageError, match="byte 12 is not UTF-8"):
        load_settings(path)


CHANGES = st.dictionaries(
    st.sampled_from(["theme", "system_prompt", "mouse", "model", "temperature", "top_k", "seed"]),
    st.integers(0, 9),
)


def changed(name, number):
    """A valid value for the setting ``name``, or None."""
    if number == 9:
        return None
    return {
        "mouse": number % 2 == 0,
        "temperature": number / 2,
        "top_k": number,
        "seed": number,
    }.get(name, f'a "quoted"\n[text] {number} é')


@given(st.sampled_from(["", "[keys]\nquit = 'f12'\n", WHOLE_FILE]), st.lists(CHANGES, max_size=4))
def test_what_is_saved_is_loaded_and_the_rest_stays(tmp_path_factory, before, runs):
    path = write(tmp_path_factory.mktemp("settings"), f"# mine\n{before}# end\n")
    wanted = load_settings(path)
    for changes in runs:
        values = {name: changed(name, number) for name, number in changes.items()}
        save_settings(values, path)
        defaults = {**vars(EngineOptions()), **vars(SamplingParams()), **vars(Settings())}
        wanted = wanted.with_values(
            {n: defaults[n] if value is None else value for n, value in values.items()}
        )
        assert load_settings(path) == wanted
    lines = path.read_text().splitlines()
    assert lines[0] == "# mine"
    assert "# end" in lines


def test_settings_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ChatError, match="cannot write the settings file"):
        save_settings({"theme": "light"}, tmp_path / "file" / "config.toml")
    path = write(tmp_path, "theme = ")
    with pytest.raises(ChatError, match="is not valid TOML"):
        save_settings({"theme": "light"}, path)
    assert path.read_text() == "theme = "


def test_a_first_setting_makes_the_file_and_a_link_stays_one(tmp_path):
    path = tmp_path / "config" / "config.toml"
    assert save_settings({"top_k": 3}, path) == path
    (tmp_path / "link.toml").symlink_to(path)
    save_settings({"theme": "light"}, tmp_path / "link.toml")
    assert (tmp_path / "link.toml").is_symlink()
    assert load_settings(path) == Settings(sampling=SamplingParams(top_k=3), theme="light")


def test_a_full_disk_leaves_the_file_as_it_was_and_no_other(tmp_path, full_disk):
    path = write(tmp_path, WHOLE_FILE)
    with full_disk(), pytest.raises(ChatError, match=r"cannot write .*: File too large"):
        save_settings({"theme": "light"}, path)
    assert path.read_text() == WHOLE_FILE
    assert list(tmp_path.iterdir()) == [path]


def test_who_may_read_the_file_stays(tmp_path):
    path = write(tmp_path, WHOLE_FILE)
    path.chmod(0o600)
    save_settings({"theme": "light"}, path)
    assert path.stat().st_mode & 0o777 == 0o600


def save_often(path, start):
    start.wait()
    for number in range(50):
        save_settings({"theme": "x" * number}, path)


def test_programs_that_save_at_once_leave_a_whole_file(tmp_path):
    path = write(tmp_path, WHOLE_FILE)
    context = multiprocessing.get_context("fork")
    start = context.Barrier(4)
    processes = [context.Process(target=save_often, args=(path, start)) for _ in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * 4
    assert load_settings(path).theme == "x" * 49


def test_a_pipe_is_not_waited_for(tmp_path):
    path = tmp_path / "config.toml"
    os.mkfifo(path)
    with pytest.raises(ChatError, match=r"cannot read the settings file .*: it is no file"):
        load_settings(path)
    with pytest.raises(ChatError, match="it is no file"):
        save_settings({"theme": "light"}, path)


@pytest.mark.parametrize("below", ["", "config.toml"])
def test_a_path_that_cannot_be_read(tmp_path, below):
    """A folder in the file's place, and a file in the folder's."""
    place = tmp_path / "place"
    if below:
        place.write_text("")
    else:
        place.mkdir()
    with pytest.raises(ChatError, match="cannot read the settings file"):
        load_settings(place / below)


@pytest.mark.parametrize(
    ("text", "size"),
    [("1", 1), ("512M", 512 << 20), ("2G", 2 << 30), ("1.5 GiB", 3 << 29), ("4kb", 4096)],
)
def test_sizes(text, size):
    assert RULES["kv_memory"].parse(text) == size


@given(st.text())
def test_no_text_gets_past_a_rule_unchecked(text):
    """A flag's text gives a value that the file may hold too, or a ValueError."""
    for rule in RULES.values():
        with suppress(ValueError):
            value = rule.parse(text)
            assert rule.check(value) == value


def test_a_file_that_starts_with_a_byte_order_mark(tmp_path):
    path = write(tmp_path, "\ufeffpage_size = 32\n")
    assert load_settings(path).engine.page_size == 32
    save_settings({"theme": "light"}, path)
    assert load_settings(path).engine.page_size == 32


def test_a_wrong_sampling_is_left_as_it_is(tmp_path):
    path = write(tmp_path, "sampling = [1]")
    with pytest.raises(UsageError, match="must be a table"):
        save_settings({"top_k": 3}, path)
    assert path.read_text(encoding="utf-8") == "sampling = [1]"
