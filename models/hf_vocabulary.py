"""The tokenizer and chat template beside a safetensors checkpoint."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .backend_tokenizer import read_tokenizer_json
from .errors import ModelError
from .spm_tokenizer import SpmTokenizer
from .tokenizer import Tokenizer
from .vocabulary import Vocabulary


def read_json(path: Path, *, needed: bool = False) -> dict[str, Any]:
    """The object in ``path``; {} for an absent file unless ``needed``. Raises ModelError."""
    if not needed and not path.exists():
        return {}
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ModelError(
            f"{path}: cannot be read: {error.strerror}; fetch the model again"
        ) from error
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{path}: not JSON ({error}); fetch it again") from error
    if not isinstance(data, dict):
        raise ModelError(f"{path}: holds no JSON object; fetch it again")
    return data


def read_vocabulary(folder: Path, config: Mapping[str, Any], rows: int) -> Vocabulary:
    """config: of the model; its eos_token_id counts with generation_config.json's.

    rows: of the embedding.
    """
    settings = read_json(folder / "tokenizer_config.json")
    generation = read_json(folder / "generation_config.json")
    template = _template(folder, settings)
    tokenizer = _tokenizer(folder, rows, template)
    eos = _token_text(settings.get("eos_token"))
    stops = {tokenizer.specials[eos]} if eos in tokenizer.specials else set()
    for entry in (generation.get("eos_token_id"), config.get("eos_token_id")):
        listed = entry if isinstance(entry, list) else [entry]
        stops.update(token for token in listed if type(token) is int)
    return Vocabulary(
        tokenizer=tokenizer,
        template=template,
        bos=_token_text(settings.get("bos_token")),
        eos=eos,
        stop_ids=frozenset(stops),
    )


def _tokenizer(folder: Path, rows: int, template: str) -> Tokenizer:
    if (path := folder / "tokenizer.json").exists():
        return read_tokenizer_json(path, rows, template)
    if (path := folder / "tokenizer.model").exists():
        try:
            return SpmTokenizer(path.read_bytes(), prefix=True)
        except RuntimeError as error:
            raise ModelError(f"{path}: not a SentencePiece model: fetch it again") from error
    raise ModelError(f"{folder}: has neither tokenizer.json nor tokenizer.model: fetch one of them")


def _token_text(entry: Any) -> str:
    """A token is given as its text, or as an object that holds it."""
    return str(entry.get("content", "")) if isinstance(entry, dict) else str(entry or "")


def _template(folder: Path, settings: dict[str, Any]) -> str:
    if (path := folder / "chat_template.jinja").exists():
        try:
            return path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ModelError(f"{path}: cannot be read: {error}; fetch it again") from error
    entry = settings.get("chat_template") or ""
    named = entry if isinstance(entry, list) else []  # several, each with a name
    for item in named:
        if isinstance(item, dict) and item.get("name") == "default":
            entry = item.get("template")
    return entry if isinstance(entry, str) else ""
