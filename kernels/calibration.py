"""What was measured on this device: which dtypes are fast, what each strategy costs.

Records are JSON files in the user's cache directory, one per device, versions and shape. One that
cannot be read as it should be is renamed and measured again; a directory that cannot be written
to only costs the time to measure again at the next start.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import platform
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, TypeVar

import platformdirs
import torch

from .batch import AttentionShape
from .cost import StrategyCost
from .linear import LinearTypes

VERSION = 1
Progress = Callable[[str, int, int], None]  # stage, done, total

Record = TypeVar("Record")

_DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


@dataclass(frozen=True)
class DeviceTypes:
    """The dtypes a device is fast in.

    linear: of matrix products. activation: of what flows between them. kv: of the KV cache.
    """

    linear: LinearTypes
    activation: torch.dtype
    kv: torch.dtype

    @classmethod
    def uniform(cls, dtype: torch.dtype) -> DeviceTypes:
        return cls(LinearTypes.uniform(dtype), dtype, dtype)

    def to_json(self) -> dict[str, Any]:
        linear = {name: _plain(value) for name, value in asdict(self.linear).items()}
        return {"linear": linear, "activation": _plain(self.activation), "kv": _plain(self.kv)}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> DeviceTypes:
        """Raises KeyError, TypeError or ValueError for anything that to_json does not make."""
        linear = dict(data["linear"])
        for name in ("few_limit", "packed_bits"):
            if type(linear[name]) is not int or linear[name] < 0:
                raise ValueError(f"{name} {linear[name]!r}")
        if type(linear["dense"]) is not bool:
            raise ValueError(f"dense {linear['dense']!r}")
        for name in ("weight", "few_rows", "many_rows"):
            linear[name] = _DTYPES[linear[name]]
        return cls(LinearTypes(**linear), _DTYPES[data["activation"]], _DTYPES[data["kv"]])


@dataclass(frozen=True)
class Calibration:
    """What each strategy costs for one shape. workers: see CostModel."""

    workers: int
    costs: dict[str, StrategyCost]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Calibration:
        """Raises KeyError, TypeError or ValueError for anything that to_json does not make."""
        workers = data["workers"]
        if type(workers) is not int or workers < 1:
            raise ValueError(f"workers {workers!r}")
        costs = {name: StrategyCost(**constants) for name, constants in data["costs"].items()}
        for cost in costs.values():
            for constant in fields(cost):
                value = getattr(cost, constant.name)
                if not isinstance(value, float | int) or not math.isfinite(value) or value < 0:
                    raise ValueError(f"{constant.name} {value!r}")
        return cls(workers, costs)


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
    return {
        **device_key(shape.device),
        "shape": f"{heads}, page_size {shape.page_size}, {_plain(shape.dtype)}",
    }


def default_directory() -> Path:
    return Path(platformdirs.user_cache_dir("pkvchat")) / "calibration"


@dataclass
class Store:
    """The records of one directory. notes: what a person should know, one line each."""

    directory: Path = field(default_factory=default_directory)
    notes: list[str] = field(default_factory=list)

    def load(self, kind: str, key: dict[str, str]) -> dict[str, Any] | None:
        """The data saved under ``kind`` and ``key``; None if there is none that can be trusted."""
        path = self._path(kind, key)
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
            if record["version"] != VERSION or record["key"] != key:
                raise ValueError("made for another version or device")
            data: dict[str, Any] = record["data"]
        except FileNotFoundError:
            return None
        except OSError as error:
            self.notes.append(f"calibration record {path} cannot be read ({error.strerror})")
            return None
        except (ValueError, KeyError, TypeError) as error:
            self.set_aside(kind, key, error)
            return None
        return data

    def set_aside(self, kind: str, key: dict[str, str], error: Exception) -> None:
        """Keep a damaged record for a look, out of the way."""
        path = self._path(kind, key)
        aside = path.with_suffix(".damaged")
        note = f"calibration record {path} is damaged ({type(error).__name__}: {error})"
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
            partial.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
            partial.replace(path)
        except OSError as error:
            reason = error.strerror or type(error).__name__
            self.notes.append(f"calibration is measured at each start: {path}: {reason}")

    def _path(self, kind: str, key: dict[str, str]) -> Path:
        digest = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:12]
        return self.directory / f"{kind}-{digest}.json"


def machine_is_busy() -> bool:
    """Whether other programs take so much of the CPU that a measurement would mislead later."""
    try:
        return os.getloadavg()[0] > 0.6 * (os.cpu_count() or 1)
    except (AttributeError, OSError):
        return False  # not known on this system


class Calibrator:
    """Loads records, or measures and saves them.

    What strategies cost while the machine is busy is used, but not kept for the next start.
    """

    def __init__(
        self,
        device: torch.device,
        progress: Progress = lambda stage, done, total: None,
        store: Store | None = None,
        *,
        fresh: bool = False,
        busy: Callable[[], bool] = machine_is_busy,
    ) -> None:
        """fresh: measure even where there is a good record, and keep it whatever ``busy`` says."""
        self.device, self.progress, self.fresh = device, progress, fresh
        self.store = store or Store()
        self.keep = fresh or not busy()

    @property
    def notes(self) -> list[str]:
        return self.store.notes

    def types(self) -> DeviceTypes:
        """Fast dtypes of this device; CUDA's are known, a CPU's are measured (about 2 s)."""
        from .measure_types import measure_types

        if self.device.type == "cuda":
            linear = LinearTypes.uniform(torch.bfloat16)
            return DeviceTypes(replace(linear, packed_bits=8), torch.bfloat16, torch.bfloat16)
        key = device_key(self.device)
        types = self._load("types", key, DeviceTypes.from_json)
        if types is None:
            types = measure_types(self.progress)
            self.store.save("types", key, types.to_json())  # of one thread's own time
        return types

    def costs(self, shape: AttentionShape, available: Sequence[str]) -> Calibration:
        """What each of the ``available`` strategies costs for ``shape`` (about 3 s)."""
        from .measure_costs import measure_costs

        key = shape_key(shape)
        calibration = self._load("strategies", key, Calibration.from_json)
        if calibration is None or not set(available) <= set(calibration.costs):
            calibration = measure_costs(shape, available, self.progress)
            self._save("strategies", key, calibration.to_json())
        return calibration

    def _load(
        self, kind: str, key: dict[str, str], parse: Callable[[dict[str, Any]], Record]
    ) -> Record | None:
        data = None if self.fresh else self.store.load(kind, key)
        if data is None:
            return None
        try:
            return parse(data)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            self.store.set_aside(kind, key, error)
            return None

    def _save(self, kind: str, key: dict[str, str], data: dict[str, Any]) -> None:
        note = "measured while other programs keep this machine busy; measured again at next start"
        if self.keep:
            self.store.save(kind, key, data)
        elif note not in self.notes:
            self.notes.append(note)


def _plain(value: Any) -> Any:
    return str(value).removeprefix("torch.") if isinstance(value, torch.dtype) else value


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
