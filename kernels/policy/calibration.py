"""What was measured on this device: which dtypes are fast, what each strategy costs.

Measurements are kept as ``records``, and read back as warily as any file.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

import torch

from ..attention.batch import AttentionShape
from ..attention.tile_config import tile_config
from ..products.linear import LinearTypes
from ..progress import Progress
from .cost import StrategyCost
from .records import Store, device_key, dtype_name, shape_key
from .surcharge import StepTimes

_DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


@dataclass(frozen=True)
class DeviceTypes:
    """The dtypes a device is fast in: of matrix products, and of the KV cache."""

    linear: LinearTypes
    kv: torch.dtype

    @classmethod
    def uniform(cls, dtype: torch.dtype) -> DeviceTypes:
        return cls(LinearTypes.uniform(dtype), dtype)

    def to_json(self) -> dict[str, Any]:
        linear = {
            name: dtype_name(value) if isinstance(value, torch.dtype) else value
            for name, value in asdict(self.linear).items()
        }
        return {"linear": linear, "kv": dtype_name(self.kv)}

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
        return cls(LinearTypes(**linear), _DTYPES[data["kv"]])


@dataclass(frozen=True)
class Calibration:
    """What each strategy costs for one shape. workers: see CostModel."""

    workers: int
    costs: dict[str, StrategyCost]

    def covers(self, strategies: Iterable[str]) -> bool:
        return set(strategies) <= set(self.costs)

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
            constants = {each.name: getattr(cost, each.name) for each in fields(cost)}
            missed = constants.pop("missed")
            if not isinstance(missed, dict) or not all(missed.values()):
                raise ValueError(f"missed {missed!r}")
            for name, value in (constants | missed).items():
                if not isinstance(value, float | int) or not math.isfinite(value) or value < 0:
                    raise ValueError(f"{name} {value!r}")
        return cls(workers, costs)


def count_workers(shape: AttentionShape) -> int:
    """What runs side by side on its device: see CostModel."""
    if shape.device.type == "cuda":
        return tile_config(shape).num_programs
    return torch.get_num_threads()


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
        """fresh: measure even where there is a good record, and keep it whatever ``busy`` says.

        The record of products is removed at once: reading the weights measures them.
        """
        self.device, self.progress, self.fresh = device, progress, fresh
        self.store = store or Store()
        self.busy = busy()
        if fresh:  # products are measured where weights are read
            self.store.forget("products", device_key(device))

    @property
    def notes(self) -> list[str]:
        return self.store.notes

    def types(self) -> DeviceTypes:
        """Fast dtypes of this device; CUDA's are known, a CPU's are measured (about 2 s)."""
        from .measure_types import measure_types

        if self.device.type == "cuda":
            linear = LinearTypes.uniform(torch.bfloat16)
            return DeviceTypes(replace(linear, packed_bits=8), torch.bfloat16)
        key = device_key(self.device)
        types = None if self.fresh else self.store.load("types", key, DeviceTypes.from_json)
        if types is None:
            types = measure_types(self.progress)
            self.store.save("types", key, types.to_json())  # of one thread's own time
        return types

    def costs(self, shape: AttentionShape, available: Sequence[str]) -> Calibration:
        """What each of the ``available`` strategies costs for ``shape``.

        From the user's record, else a shipped one, else measured: seconds on a CPU, less than a
        minute on a GPU, and estimated on one that has no room for that.
        """
        from .measure_costs import measure_costs

        key = shape_key(shape)
        if not self.fresh:
            known = self.store.load("strategies", key, Calibration.from_json)
            if known and known.covers(available):
                return known
            shipped = self.store.load_shipped(key, Calibration.from_json)
            if shipped and shipped.covers(available) and shipped.workers == count_workers(shape):
                self.notes.append(
                    f"attention times are predicted from the record shipped for {key['device']}; "
                    "`pkvchat calibrate` measures this one"
                )
                return shipped
        try:
            measured = measure_costs(shape, available, self.progress, thorough=self.fresh)
        except torch.OutOfMemoryError:
            return self._estimate(shape)
        self._save("strategies", key, measured.to_json())
        return measured

    def steps(
        self,
        shape: AttentionShape,
        model: str,
        available: Iterable[str],
        measure: Callable[[], list[StepTimes]],
    ) -> list[StepTimes]:
        """Times of whole steps of a model: from the user's record, else as ``measure`` finds them.

        model: what tells it from others of the same ``shape``. An empty list is not kept.
        """
        key = {**shape_key(shape), "model": model}

        def parse(data: dict[str, Any]) -> list[StepTimes]:
            return [StepTimes.from_json(each) for each in data["times"]]

        known = None if self.fresh else self.store.load("steps", key, parse)
        if known and all(set(available) <= set(each.us) for each in known):
            return known
        times = measure()
        if times:
            self._save("steps", key, {"times": [asdict(each) for each in times]})
        return times

    def _estimate(self, shape: AttentionShape) -> Calibration:
        from .prior import estimate_costs, memory_bandwidth

        self.notes.append(
            "the GPU has no memory free to measure attention in: its times are estimated from the "
            "GPU's properties; free some, and `pkvchat calibrate` measures"
        )
        return estimate_costs(shape, count_workers(shape), memory_bandwidth(self.device))

    def _save(self, kind: str, key: dict[str, str], data: dict[str, Any]) -> None:
        if self.fresh or not self.busy:
            self.store.save(kind, key, data)
        if not self.busy:
            return
        note = "other programs were busy while this device was measured" + (
            ", so the figures may be off: run `pkvchat calibrate` again when it is quiet"
            if self.fresh
            else "; the next start measures again"
        )
        if note not in self.notes:
            self.notes.append(note)
