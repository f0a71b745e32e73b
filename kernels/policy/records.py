"""Calibration records: JSON files, one per device, versions and shape.

A user's own are in the cache directory. One that cannot be read as it should be is renamed and
measured again; a directory that cannot be written to only costs the time to measure again at the
next start. ``shipped`` has some for devices that many people have.
"""

from __future__ import annotations

import errno
import hashlib
import json
import platform
import re
import stat
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, TypeVar

import platformdirs
import torch

from ..attention.batch import AttentionShape

Record = TypeVar("Record")
Parse = Callable[[dict[str, Any]], Record]

VERSION = 4
_MAX_BYTES = 1 << 20  # some hundred times as large as a record is
SHIPPED = Path(__file__).parent / "shipped"
# the last two: whole numbers and lists that are larger than Python takes
_DAMAGED = (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError)


def device_key(device: torch.device) -> dict[str, str]:
    """What a record about dtypes depends on."""
    if device.type == "cuda":
        return {
            "device": torch.cuda.get_device_name(device),
            "driver": _driver(),
            "cuda": str(torch.version.cuda),
            "torch": torch.__version__,
            "triton": _version("triton"),
            "flashinfer": _version("flashinfer-python"),
        }
    return {
        "device": _processor(),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "threads": str(torch.get_num_threads()),
        "torch": torch.__version__,
    }


def shape_key(shape: AttentionShape) -> dict[str, str]:
    """What a record about strategies depends on."""
    heads = f"{shape.num_qo_heads}/{shape.num_kv_heads} heads, head_dim {shape.head_dim}"
    types = dtype_name(shape.dtype)
    if shape.kv_dtype != shape.dtype:
        types += f", {dtype_name(shape.kv_dtype)} KV"
    return {
        **device_key(shape.device),
        "shape": f"{heads}, page_size {shape.page_size}, {types}",
    }


def dtype_name(dtype: torch.dtype) -> str:
    """Without "torch."."""
    return str(dtype).removeprefix("torch.")


def shipped_name(key: dict[str, str]) -> str:
    """The file name of the record shipped for a device and shape."""
    return "-".join(re.findall(r"[a-z0-9]+", " ".join(_shipped_key(key)).lower())) + ".json"


def _shipped_key(key: dict[str, str]) -> tuple[str, str]:
    """What must match: not the driver and versions, nor which 16-bit float, as both are as fast."""
    return key["device"], key["shape"].replace("bfloat16", "float16")


def default_directory() -> Path:
    return Path(platformdirs.user_cache_dir("pkvchat")) / "calibration"


@dataclass
class Store:
    """The records of one directory, and those that came with the program.

    notes: what a person should know, one line each.
    """

    directory: Path = field(default_factory=default_directory)
    shipped: Path = SHIPPED
    notes: list[str] = field(default_factory=list)

    def load(self, kind: str, key: dict[str, str], parse: Parse[Record]) -> Record | None:
        """What was saved under ``kind`` and ``key``; None if there is nothing that can be trusted.

        parse: raises ValueError, KeyError, TypeError or AttributeError for what it cannot read.
        """
        path = self._path(kind, key)
        try:
            return parse(_read(path, lambda found: found == key))
        except FileNotFoundError:
            return None
        except OSError as error:
            self.notes.append(f"calibration record {path} cannot be read ({error.strerror})")
        except _DAMAGED as error:
            self._set_aside(path, error)
        return None

    def load_shipped(self, key: dict[str, str], parse: Parse[Record]) -> Record | None:
        """What was shipped for the strategies on this device and shape, whatever the versions."""
        path = self.shipped / shipped_name(key)
        try:
            wanted = _shipped_key(key)
            return parse(_read(path, lambda found: _shipped_key(found) == wanted))
        except FileNotFoundError:
            return None
        except (OSError, *_DAMAGED) as error:
            self.notes.append(f"{path} is not used: it is damaged ({_reason(error)})")
            return None

    def forget(self, kind: str, key: dict[str, str]) -> None:
        """Have what was saved measured again; failing to is a note, not an error."""
        path = self._path(kind, key)
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            self.notes.append(f"calibration record {path} cannot be removed ({error.strerror})")

    def _set_aside(self, path: Path, error: Exception) -> None:
        """Keep a damaged record for a look, out of the way."""
        aside = path.with_suffix(".damaged")
        note = f"calibration record {path} is damaged ({_reason(error)})"
        try:
            path.replace(aside)
            note += f"; kept as {aside.name} and measured again"
        except OSError:
            note += "; measured again"
        self.notes.append(note)

    def save(self, kind: str, key: dict[str, str], data: dict[str, Any]) -> None:
        """Write whole or not at all; failing to is a note, not an error."""
        path = self._path(kind, key)
        record = {"version": VERSION, "key": key, "data": data}
        partial = path.with_suffix(".partial")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            partial.unlink(missing_ok=True)  # a pipe of that name would be waited for
            partial.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
            partial.replace(path)
        except OSError as error:
            reason = error.strerror or type(error).__name__
            self.notes.append(f"calibration is measured at each start: {path}: {reason}")

    def _path(self, kind: str, key: dict[str, str]) -> Path:
        digest = hashlib.sha256(json.dumps([VERSION, key], sort_keys=True).encode()).hexdigest()
        return self.directory / f"{kind}-{digest[:12]}.json"


def _read(path: Path, fits: Callable[[dict[str, str]], bool]) -> dict[str, Any]:
    """Raises OSError or one of _DAMAGED where it is no record whose key ``fits``."""
    found = path.stat()
    if not stat.S_ISREG(found.st_mode):  # reading a pipe or a device might never end
        raise OSError(errno.EINVAL, "it is no file")
    if found.st_size > _MAX_BYTES:
        raise OSError(errno.EFBIG, f"it has more than {_MAX_BYTES} bytes")
    record = json.loads(path.read_text(encoding="utf-8"))
    if record["version"] != VERSION or not fits(record["key"]):
        raise ValueError("made for another version or device")
    data: dict[str, Any] = record["data"]
    return data


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def _driver() -> str:
    """The NVIDIA driver's version, "" where the system does not say."""
    try:
        text = Path("/proc/driver/nvidia/version").read_text(encoding="utf-8")
    except OSError:
        return ""
    found = re.search(r"\b\d+\.\d+(\.\d+)?\b", text)
    return found[0] if found else ""


def _processor() -> str:
    """The CPU's name; the architecture where the system does not say."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass  # not Linux
    return platform.processor() or platform.machine()
