"""Chat templates: exact on plain conversations, and safe with hostile contents and templates."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pkvchat.models.backend_tokenizer import BackendTokenizer, read_tokenizer_json
from pkvchat.models.loader import open_checkpoint
from pkvchat.models.template import ChatTemplate
from pkvchat.models.tokenizer import MARK
from pkvchat.models.vocabulary import Vocabulary

CHATML = (
    "{%- for m in messages -%}\n{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + "
    "'<|im_end|>\n' }}{%- endfor -%}\n{%- if add_generation_prompt -%}\n"
    "{{ '<|im_start|>assistant\n' }}{%- endif -%}"
)
CHAT = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Hello, é 👍🏽!  "},
    {"role": "assistant", "content": "\nHi."},
    {"role": "user", "content": "Bye"},
]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory, helpers: Any) -> BackendTokenizer:
    folder = tmp_path_factory.mktemp("tokenizer")
    helpers.write_tokenizer(folder)
    return read_tokenizer_json(folder / "tokenizer.json")


def chat_template(tokenizer: BackendTokenizer, source: str) -> ChatTemplate:
    return ChatTemplate(Vocabulary(tokenizer, source, "<|im_start|>", "<|im_end|>", frozenset()))


@pytest.mark.parametrize(
    "source",
    [
        CHATML,
        "{{ bos_token }}{% for m in messages %}\n  {% if m.role == 'user' %}\n[U]{{ m.content }}"
        "\n  {% else %}\n{{ m.content | trim }}{{ eos_token }}{% continue %}\n  {% endif %}\n"
        "{% endfor %}",
        "{% if tools is not none %}no{% endif %}{{ messages | tojson }}{{ {'é': '<'} | tojson }}",
        "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}"
        "{{ ns.n }}{{ m['content'] }}{% endfor %}{{ strftime_now('%Y') }}",
    ],
)
def test_same_tokens_as_transformers(tokenizer: BackendTokenizer, source: str) -> None:
    from transformers import PreTrainedTokenizerFast

    reference = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer._backend, bos_token="<|im_start|>", eos_token="<|im_end|>"
    )
    template = chat_template(tokenizer, source)
    for prompt in (True, False):
        text = reference.apply_chat_template(
            CHAT, chat_template=source, tokenize=False, add_generation_prompt=prompt
        )
        ours = template.encode(CHAT, tokenizer, add_generation_prompt=prompt)
        assert ours == tokenizer.encode(text, specials=True)
    assert template.fallback_note == ""


@settings(max_examples=60)
@given(
    parts=st.lists(
        st.sampled_from(["<|im_start|>", "<|im_end|>", "<|im_", "end|>", MARK, "<", "é"])
        | st.text(max_size=5)
    )
)
def test_contents_never_make_special_tokens(tokenizer: BackendTokenizer, parts: list[str]) -> None:
    content = "".join(parts)
    template = chat_template(tokenizer, CHATML)
    ids = template.encode([{"role": "user", "content": content}], tokenizer)
    specials = [i for i in ids if i in tokenizer.specials.values()]
    start, end = (tokenizer.specials[text] for text in ("<|im_start|>", "<|im_end|>"))
    assert specials == [start, end, start]
    between = ids[1 : ids.index(end)]
    expected = ("user\n" + content.replace(MARK, "\ufffd")).encode("utf-8", "replace")
    assert tokenizer.decode(between) == expected.decode("utf-8", "replace")


def test_real_template(default_gguf: Path) -> None:
    vocabulary = open_checkpoint(default_gguf).vocabulary()
    template = ChatTemplate(vocabulary)
    text = template.render([{"role": "user", "content": "Hi"}])
    assert text.startswith("<|im_start|>system\nYou are a helpful AI assistant named SmolLM")
    assert text.endswith("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("", "it has none"),
        ("{% for %}", "Expected an expression"),
        ("{{ raise_exception('not today') }}", "not today"),
        ("{{ messages.__class__.__mro__ }}", "unsafe"),
        ("{{ ''.__class__.__base__.__subclasses__() }}", "unsafe"),
        ("{{ messages.append(1) }}", "unsafe"),
        ("{{ 'a' * 100000000000 }}", "too many"),
        ("{{ 9 ** 999999999 }}", "too large"),
        ("{{ 'a'.ljust(10000000000) }}", "too large"),
        ("{{ 'a' | center(10000000000) }}", "too large"),
        ("{{ 'a' | indent(10000000000, true) }}", "too large"),
        ("{{ '%9999999999d' % 1 }}", "pad without end"),
        ("{{ '%*d' % (9999999999, 1) }}", "pad without end"),
        ("{{ '{:9999999999}'.format(1) }}", "pad without end"),
        ("{{ messages[7].content.x }}", "no element 7"),
        ("{{ range(10000000) }}", "Range too big"),
        ("nothing of what is said", "leaves out"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "recursion"),
    ],
)
def test_bad_templates_fall_back(tokenizer: BackendTokenizer, source: str, reason: str) -> None:
    template = chat_template(tokenizer, source)
    assert reason in template.fallback_note
    expected = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    assert template.render([{"role": "user", "content": "Hi"}]) == expected


def test_endless_template_falls_back(
    tokenizer: BackendTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pkvchat.models.sandbox.RENDER_SECONDS", 0.2)
    loops = "{% for a in range(99999) %}" * 4 + "{% endfor %}" * 4
    assert "it runs longer than 0.2 s" in chat_template(tokenizer, loops).fallback_note


def test_growing_template_falls_back(
    tokenizer: BackendTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pkvchat.models.sandbox.LARGEST_GROWTH", 64 << 20)
    doubles = (
        "{% set n = namespace(text='a' * 1000) %}"
        "{% for i in range(40) %}{% set n.text = n.text ~ n.text %}{% endfor %}"
    )
    assert "it takes more than 64 MiB" in chat_template(tokenizer, doubles).fallback_note


def test_no_system_role(tokenizer: BackendTokenizer) -> None:
    """Templates without a system role get its text with the first question."""
    refusing = (
        "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}"
        "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
    )
    ignoring = (
        "{% for m in messages if m.role != 'system' %}[{{ m.role }}]{{ m.content }}{% endfor %}"
    )
    for source in (refusing, ignoring):
        template = chat_template(tokenizer, source)
        assert template.render(CHAT).startswith(
            "[user]Be brief.\n\nHello, é 👍🏽!  [assistant]\nHi."
        )
        assert template.fallback_note == ""


def test_turns_that_must_alternate(tokenizer: BackendTokenizer) -> None:
    source = (
        "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
        "{{ raise_exception('must alternate') }}{% endif %}"
        "[{{ m.role }}]{{ m.content }}{% endfor %}"
    )
    template = chat_template(tokenizer, source)
    twice = [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]
    assert template.render(twice) == "[user]a\n\nb"
    assert template.fallback_note == ""
    reply_first = [{"role": "assistant", "content": "a"}]
    assert "<|im_start|>assistant\na<|im_end|>" in template.render(reply_first)
    assert "must alternate" in template.fallback_note


def test_plain_template_without_chatml(tokenizer: BackendTokenizer) -> None:
    tokenizer.specials.pop("<|im_end|>")
    template = chat_template(tokenizer, "")
    assert template.render(CHAT[:2]) == (
        "<|im_start|>System: Be brief.\n\nUser: Hello, é 👍🏽!  \n\nAssistant:"
    )
