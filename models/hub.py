"""Models on the Hugging Face hub: choosing files, downloading, the cache. All raise ModelError.

huggingface_hub does the work: its cache, resuming, HF_TOKEN, HF_ENDPOINT and HF_HUB_OFFLINE.
"""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pkvchat.kernels.progress import Progress

from .errors import GatedError, ModelError

QUANT_ORDER = ("Q4_K_M", "Q5_K_M", "Q6_K", "Q8_0", "Q4_K_S", "Q4_1", "Q4_0", "BF16", "F16")
PART = re.compile(r"-(\d{5})-of-(\d{5})\.gguf$")
BESIDE_WEIGHTS = ("config.json", "generation_config.json", "chat_template.jinja")
INDEX = "model.safetensors.index.json"
TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "tokenizer_config.json")


@dataclass(frozen=True)
class HubFile:
    """sha256: "" where the hub keeps none (small text files)."""

    name: str
    size: int
    sha256: str


def download(repo: str, quant: str, progress: Progress) -> Path:
    """Bring the model of ``repo`` into the hub's cache; what is there already isn't fetched again.

    quant: as in "Q4_K_M", or "" to take safetensors where there are any. Returns the .gguf file
    (the first part of a split one) or the folder of safetensors.
    """
    from huggingface_hub import constants

    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # no warnings across the screen
    if cached := in_cache(repo, quant):
        return cached
    if constants.HF_HUB_OFFLINE:
        raise ModelError(
            f"{repo}: not downloaded yet, and HF_HUB_OFFLINE is set: unset it, or name a local file"
        )
    with _explained(repo, begun=False):
        chosen = choose(_list(repo), repo, quant)
    with _explained(repo, begun=True):
        return _entry_point(_fetch(repo, chosen, progress))


def choose(files: Sequence[HubFile], repo: str, quant: str) -> list[HubFile]:
    """The files of ``repo`` to download."""
    weights = [f for f in files if f.name.endswith(".safetensors") and "/" not in f.name]
    ggufs = [f for f in files if f.name.endswith(".gguf") and "mmproj" not in f.name.lower()]
    if not quant and weights and any(file.name == "config.json" for file in files):
        beside = {*BESIDE_WEIGHTS, *TOKENIZER_FILES, INDEX}
        # Some repositories hold the same weights twice, once in their maker's own layout.
        own = [file for file in weights if not file.name.startswith("consolidated")]
        return [file for file in files if file.name in beside] + own
    if not ggufs:
        pickled = any(file.name.endswith((".bin", ".pth", ".pt")) for file in files)
        raise ModelError(
            f"{repo}: only has pickled weights, which can run any code when loaded and are refused:"
            " look for a repository with safetensors or GGUF"
            if pickled and not weights
            else f"{repo}: has no {'GGUF files' if quant else 'safetensors or GGUF files'}:"
            " name another repository"
        )
    return _of_quant(ggufs, repo, quant)


def _of_quant(ggufs: Sequence[HubFile], repo: str, quant: str) -> list[HubFile]:
    """One GGUF file, or all parts of a split one."""
    for wanted in [quant] if quant else QUANT_ORDER:
        pattern = re.compile(rf"(^|[-._/]){re.escape(wanted)}(?=[-./]|$)", re.IGNORECASE)
        found = sorted((f for f in ggufs if pattern.search(f.name)), key=lambda file: file.name)
        if found:
            split = PART.search(found[0].name)
            return found[: int(split[2])] if split else found[:1]
    if not quant and len(ggufs) == 1:
        return list(ggufs)
    have = sorted({m[1].upper() for f in ggufs if (m := _QUANT_IN_NAME.search(f.name))})
    raise ModelError(
        f"{repo}: has no {quant or 'known'} quantisation; name one of {', '.join(have) or 'none'}"
        f" as {repo}:QUANT"
    )


_QUANT_IN_NAME = re.compile(r"[-._/]((?:I?Q\d\w*)|BF16|F16|F32)(?=[-./])", re.IGNORECASE)


def _list(repo: str) -> list[HubFile]:
    from huggingface_hub import HfApi

    return [
        HubFile(file.rfilename, file.size or 0, file.lfs.sha256 if file.lfs else "")
        for file in HfApi().model_info(repo, files_metadata=True).siblings or ()
    ]


def _fetch(repo: str, files: Sequence[HubFile], progress: Progress) -> list[Path]:
    from huggingface_hub import hf_hub_download, try_to_load_from_cache

    total = sum(file.size for file in files)
    paths, done = [], 0
    for file in files:
        cached = try_to_load_from_cache(repo, file.name)
        bar = _bar(f"downloading {repo}", done, total, progress)
        path = Path(hf_hub_download(repo, file.name, tqdm_class=bar))
        if not isinstance(cached, str) or Path(cached) != path:
            _check(path, file)
        done += file.size
        progress(f"downloading {repo}", done, total)
        paths.append(path)
    return paths


def _bar(stage: str, before: int, total: int, progress: Progress) -> type:
    """A stand-in for tqdm that reports to ``progress``."""
    from huggingface_hub import utils

    base: Any = utils.tqdm  # type: ignore[attr-defined]

    class Bar(base):  # type: ignore[misc]
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            kwargs["disable"] = True  # draw nothing
            super().__init__(*args, **kwargs)
            self.seen = kwargs.get("initial") or 0

        def update(self, n: float | None = 1) -> None:
            self.seen += int(n or 0)
            progress(stage, before + self.seen, total)

    return Bar


def _check(path: Path, file: HubFile) -> None:
    """A file that came wrong is removed, so that a second try fetches it again."""
    size = path.stat().st_size
    digest = ""
    if size == file.size and file.sha256:
        with path.open("rb") as stream:
            digest = _sha256(stream)
    if size != file.size or digest != file.sha256:
        path.resolve().unlink()
        what = f"{size} bytes long, not {file.size}" if size != file.size else "of another SHA-256"
        raise ModelError(f"{file.name} came {what} and is removed: try again")


def _sha256(stream: Any) -> str:
    digest = hashlib.sha256()
    while chunk := stream.read(1 << 22):
        digest.update(chunk)
    return digest.hexdigest()


def _entry_point(paths: Sequence[Path]) -> Path:
    first = sorted(paths)[0]
    return first if first.suffix == ".gguf" else first.parent


def in_cache(repo: str, quant: str) -> Path | None:
    """The same choice among the files that are in the cache; None where some are missing."""
    from huggingface_hub import constants
    from huggingface_hub.file_download import repo_folder_name

    try:
        folder = Path(constants.HF_HUB_CACHE) / repo_folder_name(repo_id=repo, repo_type="model")
        snapshot = folder / "snapshots" / (folder / "refs" / "main").read_text().strip()
        names = [path for path in snapshot.rglob("*") if path.is_file()]
        files = [HubFile(path.relative_to(snapshot).as_posix(), 0, "") for path in names]
        chosen = [file.name for file in choose(files, repo, quant)]
        complete = _complete(snapshot, chosen)
    except (OSError, ModelError):
        return None
    except (ValueError, KeyError, TypeError, AttributeError):
        return None  # no name of a repository, or a damaged index: the hub has what is right
    return _entry_point([snapshot / name for name in chosen]) if complete else None


def _complete(snapshot: Path, names: Sequence[str]) -> bool:
    """Whether a download got to its end: all parts of split GGUF, all shards of safetensors."""
    if split := PART.search(names[0]):
        return len(names) == int(split[2])
    if names[0].endswith(".gguf"):
        return True
    needed = {"config.json"}
    if INDEX in names:
        needed |= set(json.loads((snapshot / INDEX).read_text())["weight_map"].values())
    return needed <= set(names) and any(name in names for name in TOKENIZER_FILES)


def _network_errors() -> tuple[type[Exception], ...]:
    """requests' errors are OSErrors; httpx, which newer huggingface_hubs use, has its own."""
    from huggingface_hub import errors

    return (OSError, getattr(errors, "HTTPError", OSError))


@contextmanager
def _explained(repo: str, *, begun: bool) -> Iterator[None]:
    """Turn what huggingface_hub raises into one line. begun: the hub said what there is to get."""
    from huggingface_hub import constants, errors

    host = constants.ENDPOINT
    try:
        yield
    except errors.GatedRepoError as error:
        raise GatedError(
            f"{repo} is gated: accept its licence at {host}/{repo}, then set HF_TOKEN to a token"
            " of your account"
        ) from error
    except errors.RepositoryNotFoundError as error:
        raise ModelError(
            f"{repo}: no such repository at {host}, or it is private: check the name, or set"
            " HF_TOKEN"
        ) from error
    except errors.HFValidationError as error:
        raise ModelError(f"'{repo}' is no name of a repository: write it as owner/name") from error
    except errors.HfHubHTTPError as error:
        status = error.response.status_code if error.response is not None else "no"
        raise ModelError(f"{repo}: {host} answered with {status}: try again later") from error
    except _network_errors() as error:
        if getattr(error, "errno", None) == errno.ENOSPC:
            raise ModelError(
                f"{repo}: the disk is full: free some space in {constants.HF_HUB_CACHE} and try"
                " again; what was downloaded is kept"
            ) from error
        why = str(error).splitlines()[0]
        if not begun:
            raise ModelError(
                f"{repo}: not downloaded yet, and {host} can't be reached ({why}): check the"
                " network, or name a local file"
            ) from error
        raise ModelError(
            f"{repo}: the download broke off ({why}): check the network and"
            " try again; what was downloaded is kept"
        ) from error
