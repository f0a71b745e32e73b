"""The kernels compile for a GPU where there is none: Triton is stricter than its interpreter."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytest.importorskip("triton")

# Launches on CPU tensors, of which each compiles its kernel for an H100 or H200 and ends there.
SCRIPT = """
import dataclasses
import sys

import torch
from triton.backends.compiler import GPUTarget
from triton.runtime import driver, jit

from pkvchat.kernels.attention.batch import AttentionShape, DecodeBatch, LayerSpec
from pkvchat.kernels.attention.kv import allocate_kv, kv_rows
from pkvchat.kernels.attention.kv_triton import write_kv_triton
from pkvchat.kernels.attention.qkv_triton import store_qkv_triton
from pkvchat.kernels.attention.split_triton import SplitTriton
from pkvchat.kernels.attention.tile_config import tile_config
from pkvchat.kernels.attention.workqueue_triton import WorkqueueTriton


class Hopper:
    def get_current_target(self):
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self):
        return 0

    def get_current_stream(self, device):
        return 0


launch = jit.JITFunction.run
jit.JITFunction.run = lambda self, *args, **options: launch(
    self, *args, **{**options, "warmup": True}
)
driver.set_active(Hopper())

cls = {"split": SplitTriton, "workqueue": WorkqueueTriton}[sys.argv[1]]
kv_dtype = getattr(torch, sys.argv[2])
shape = AttentionShape(8, 2, 128, 16, torch.bfloat16, torch.device("cpu"), kv_dtype)
(kv_layer,) = allocate_kv(1, 4, shape)
gluon = sys.argv[3] == "gluon"
strategy = cls(shape, dataclasses.replace(tile_config(shape), num_stages=3, pdl=True, gluon=gluon))
spec = LayerSpec(0.125, softcap=20.0, sinks=torch.zeros(8))
for count in (2, 3):
    qkv = torch.zeros(count, 12, 128, dtype=torch.bfloat16)
    lengths = torch.full((count,), 40, dtype=torch.int32)
    table = torch.zeros(count, 3, dtype=torch.int32)
    batch = DecodeBatch(table, lengths, lengths.long(), (40,) * count)
    rows = kv_rows(batch.slot_mapping % 16, kv_layer)
    write_kv_triton(kv_layer, rows, qkv[:, 8:10], qkv[:, 10:])
    angles = torch.zeros(count, 64)
    q = store_qkv_triton(qkv, (angles, angles), None, kv_layer, rows)
    strategy.plan(batch, 2)
    for _ in range(2):  # the first layer of a step, and those that overlap the one before
        strategy.run(q, kv_layer, torch.empty_like(q), spec)
"""


@pytest.mark.parametrize(
    ("name", "kv_dtype", "language"),
    [
        ("split", "bfloat16", "triton"),
        ("split", "float8_e4m3fn", "gluon"),
        ("workqueue", "int8", "triton"),
        ("workqueue", "bfloat16", "gluon"),
    ],
)
def test_compiles_for_hopper(tmp_path, name, kv_dtype, language):
    env = {**os.environ, "TRITON_CACHE_DIR": str(tmp_path), "TRITON_INTERPRET": "0"}
    command = [sys.executable, "-c", SCRIPT, name, kv_dtype, language]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr[-2000:]
    triggers = {
        path.read_text().count("griddepcontrol.launch_dependents")
        for path in tmp_path.rglob("_attend_kernel.ptx")
    }
    # None in the first layer; at the end beside one row or two, and early, too, beside more.
    assert triggers == ({0, 1, 2} if language == "gluon" else {0, 1})
