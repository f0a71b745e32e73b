"""Settings: the file's values, and the one line for each thing that can be wrong with it."""

from __future__ import annotations

import re
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pkvchat.errors import ChatError, UsageError
from pkvchat.options import EngineOptions
from pkvchat.sampling import SamplingParams
from pkvchat.settings import RULES, Settings, load_settings

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
        ("modle = 'x'", "unknown key modle; the file may have context, device,"),
        ("temperature = 1", "unknown key temperature"),
        ("[sampling]\ntemp = 1", "unknown key sampling.temp; [sampling] may have max_tokens,"),
        ("[sampling]\nmodel = 'x'", "unknown key sampling.model"),
        ("context = 'big'", "context = 'big' must be a whole number of at least 0"),
        ("context = 1.5", "context = 1.5 must be a whole number"),
        ("context = true", "context = True must be a whole number"),
        ("model = 5", "model = 5 must be a model's name or path"),
        ("model = ''", "model = '' must be a model's name or path"),
        ("page_size = 17", "page_size = 17 must be 16, 32 or 64"),
        ("dtype = 'f64'", "dtype = 'f64' must be one of auto, f32, f16, bf16"),
        ("device = 'tpu'", "device = 'tpu' must be auto, cpu, cuda or cuda:N"),
        ("kv_memory = 'lots'", "kv_memory = 'lots' must be a number of bytes, or a size"),
        ("kv_memory = 0", "kv_memory = 0 must be"),
        ("[sampling]\ntemperature = -1", "sampling.temperature = -1 must be a number of at least"),
        ("[sampling]\ntemperature = nan", "sampling.temperature = nan must be"),
        ("[sampling]\ntop_p = 1.5", "sampling.top_p = 1.5 must be a number from 0 to 1"),
        ("[sampling]\nrepeat_penalty = 0", "sampling.repeat_penalty = 0 must be a number above 0"),
        ("sampling = 1", "sampling = 1 must be a table, written as [sampling]"),
        ("[keys]\nnew_chat = 5", "keys.new_chat = 5 must be a key"),
        ("model = ", "is not valid TOML"),
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
