"""How fast a sharded bf16 checkpoint loads, beside a plain sequential read of the same files.

    python benchmarks/load.py FOLDER [--device cuda] [--layers 32]

Writes random weights of Llama-3-8B's shape to FOLDER if it has no config.json (16 GB). Each read
is timed with the files' pages dropped from the page cache ("cold", where the system obeys
posix_fadvise) and again with them in it ("warm"). Host memory: the peak over the load of RssAnon +
RssShmem in /proc/self/status, which leaves out mapped files but counts pinned buffers, less what
it was before. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import tokenizers
import torch

from pkvchat.models.config import ModelConfig
from pkvchat.models.loader import load_model
from pkvchat.models.pieces import byte_level_alphabet
from pkvchat.models.random_weights import SHAPES, RandomCheckpoint

SHARDS = 4
READ_BYTES = 16 << 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--layers", type=int, default=32, help="of 32, for a quick try")
    args = parser.parse_args()
    device = torch.device(args.device)
    if not (args.folder / "config.json").exists():
        write_checkpoint(args.folder, replace(SHAPES["llama-3-8b"], num_layers=args.layers))
    files = sorted(args.folder.glob("*.safetensors"))
    total = sum(file.stat().st_size for file in files)
    torch.zeros(1, device=device)  # the device's context is no part of loading
    row: dict[str, object] = {"device": device_name(device), "torch": torch.__version__}
    row |= {"bytes": total, "file system": file_system(args.folder)}
    print(f"{total / 1e9:.2f} GB in {len(files)} files on {row['file system']}, to {row['device']}")
    for temperature in ("cold", "warm"):
        read = timed(lambda: read_all(files), files, temperature)
        with peak_memory() as extra:
            load = timed(lambda: load_model(str(args.folder), device=device), files, temperature)
        found = {
            "read GB/s": total / read / 1e9,
            "load GB/s": total / load / 1e9,
            "share": read / load,
            "extra memory GiB": extra[0] / 2**30,
        }
        row |= {f"{temperature} {name}": round(value, 3) for name, value in found.items()}
        print(f"{temperature}: " + ", ".join(f"{name} {v:.2f}" for name, v in found.items()))
    print(json.dumps(row))


def timed(work: Callable[[], object], files: list[Path], temperature: str) -> float:
    """Seconds. The result is dropped only after the clock has stopped."""
    for file in files if temperature == "cold" else []:
        with file.open("rb") as opened:
            os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    start = time.perf_counter()
    result = work()
    seconds = time.perf_counter() - start
    del result
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    return seconds


def read_all(files: list[Path]) -> None:
    """As dd does: one file after the other into one buffer."""
    buffer = bytearray(READ_BYTES)
    for file in files:
        with file.open("rb", buffering=0) as opened:
            while opened.readinto(buffer):
                pass


@contextmanager
def peak_memory() -> Iterator[list[int]]:
    """Gives a list whose one item becomes the bytes by which this process grew at most."""
    before, found, done = resident(), [0], threading.Event()

    def watch() -> None:
        while not done.wait(0.005):
            found[0] = max(found[0], resident() - before)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield found
    finally:
        done.set()
        watcher.join()


def resident() -> int:
    status = Path("/proc/self/status").read_text().splitlines()
    kib = [line.split()[1] for line in status if line.startswith(("RssAnon:", "RssShmem:"))]
    return sum(map(int, kib)) * 1024


def write_checkpoint(folder: Path, config: ModelConfig) -> None:
    """Sharded in the order of its layers; each tensor a slice of one random block.

    Tensors have GGUF's names, which any format may use.
    """
    folder.mkdir(parents=True, exist_ok=True)
    block = memoryview((torch.randn(32 << 20) * 0.02).bfloat16().view(torch.uint8).numpy())
    shapes = RandomCheckpoint(config, "bf16", torch.device("cpu")).shapes
    listed = list(shapes)
    for shard in range(SHARDS):
        part = listed[len(listed) * shard // SHARDS : len(listed) * (shard + 1) // SHARDS]
        header, at = {}, 0
        for name in part:
            end = at + 2 * torch.Size(shapes[name]).numel()
            offsets = [at, end]
            header[name] = {"dtype": "BF16", "shape": shapes[name], "data_offsets": offsets}
            at = end
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        with (folder / f"model-{shard + 1:05}-of-{SHARDS:05}.safetensors").open("wb") as file:
            file.write(struct.pack("<Q", len(text)) + text)
            for start in range(0, at, len(block)):
                file.write(block[: at - start])
            file.flush()
            os.fsync(file.fileno())
    vocabulary = {token: i for i, token in enumerate(byte_level_alphabet())}
    tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, [])).save(str(folder / "tokenizer.json"))
    (folder / "config.json").write_text(json.dumps(hf_config(config)))


def hf_config(config: ModelConfig) -> dict[str, object]:
    return {
        "model_type": "llama",
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_qo_heads,
        "num_key_value_heads": config.num_kv_heads,
        "max_position_embeddings": config.context_length,
        "rms_norm_eps": config.rms_norm_eps,
        "rope_theta": config.ropes[0].theta,
    }


def device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"


def file_system(folder: Path) -> str:
    """Of the mount that holds ``folder``, as the kernel names it."""
    mounts = [line.split()[1:3] for line in Path("/proc/mounts").read_text().splitlines()]
    around = [mount for mount in mounts if folder.resolve().is_relative_to(mount[0])]
    return max(around, key=lambda mount: len(mount[0]))[1] if around else "unknown"


if __name__ == "__main__":
    main()
