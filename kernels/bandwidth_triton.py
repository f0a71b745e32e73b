"""A kernel that reads and does nothing else: the floor of anything that reads as many bytes."""

# mypy: disable-error-code="no-untyped-def,untyped-decorator,misc"

from __future__ import annotations

import torch
import triton
import triton.language as tl


@triton.jit
def read_kernel(source_ptr, sink_ptr, numel, BLOCK: tl.constexpr, STAGES: tl.constexpr):
    """Each program reads every so many blocks of int32, and writes one number made of them all."""
    total = tl.zeros([BLOCK], tl.int32)
    step = tl.num_programs(0) * BLOCK
    for base in tl.range(tl.program_id(0) * BLOCK, numel, step, num_stages=STAGES):
        at = base + tl.arange(0, BLOCK)
        total = total ^ tl.load(source_ptr + at, mask=at < numel, other=0)
    tl.store(sink_ptr + tl.program_id(0), tl.sum(total, axis=0))


def read_all(values: torch.Tensor, block: int = 4096) -> torch.Tensor:
    """values: int32, contiguous, fewer than 2^31 - 2^24. Returns a number per program, int32."""
    programs = 6
    if values.is_cuda:
        device = torch.cuda.get_device_properties(values.device)
        programs = 4 * device.multi_processor_count
    sink = torch.empty(programs, dtype=torch.int32, device=values.device)
    read_kernel[(programs,)](values, sink, values.numel(), BLOCK=block, STAGES=4, num_warps=8)
    return sink
