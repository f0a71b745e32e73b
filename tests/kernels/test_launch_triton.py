"""Direct launches: they run what Triton would have run, and are told apart as finely."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

triton = pytest.importorskip("triton")

import triton.language as tl  # noqa: E402

from pkvchat.kernels.launch_triton import BoundKernel, launch, specialisation  # noqa: E402

BYTES = torch.zeros(256, dtype=torch.uint8)
EDGES = [0, 1, 2, 15, 16, 17, -1, -16, 48, 2**31 - 16, 2**31 - 1, 2**31, 2**31 + 1, 2**32]
EDGES += [-(2**31), -(2**31) - 1, -(2**63), 2**63 - 1, 2**63, 2**63 + 16, 2**64 - 1]

tensors = st.builds(
    lambda dtype, at: BYTES[at : at + 64].view(dtype),
    st.sampled_from([torch.uint8, torch.int8, torch.bool]),
    st.integers(0, 40),
) | st.builds(
    lambda dtype, at: BYTES[8 * at : 8 * at + 64].view(dtype),
    st.sampled_from([torch.float16, torch.bfloat16, torch.float32, torch.int32, torch.int64]),
    st.integers(0, 5),
)
scalars = st.sampled_from([None, True, False, 0.0, 1.0, -2.5, *EDGES]) | st.integers(0, 300)
single = tensors | scalars
arguments = single | st.lists(single, min_size=1, max_size=3).map(tuple)


@given(st.lists(arguments, min_size=2, max_size=30))
@settings(max_examples=100, deadline=None)
def test_what_triton_tells_apart_is_told_apart(several):
    from triton._C.libtriton import native_specialize_impl
    from triton.backends.compiler import GPUTarget
    from triton.compiler import make_backend

    backend = make_backend(GPUTarget("cuda", 90, 32))
    seen = {}
    for x in several:
        theirs = native_specialize_impl(backend, x, False, True, True)
        assert seen.setdefault(specialisation([x]), theirs) == theirs


@given(st.lists(arguments, max_size=4), st.lists(arguments, max_size=4))
@settings(max_examples=50, deadline=None)
def test_keys_of_several_arguments_are_those_of_each(left, right):
    each = [[specialisation([x]) for x in args] for args in (left, right)]
    assert (specialisation(left) == specialisation(right)) == (each[0] == each[1])


def test_arguments_that_no_kernel_takes():
    with pytest.raises(TypeError, match="'text': a kernel takes tensors"):
        specialisation(["text"])


@dataclass(frozen=True)
class Shape:
    width: int
    scaled: bool


@triton.jit(do_not_specialize=["count"])
def _kernel(
    out_ptr, count, x_ptr, pair, step, bias_ptr, scale, C: tl.constexpr, HAS_BIAS: tl.constexpr
):
    """out[i] = (x[i] + a[i] + b[i]) * scale + step + bias[i], for i < count."""
    at = tl.program_id(0) * C.width + tl.arange(0, C.width)
    mask = at < count
    a_ptr, b_ptr = pair
    value = tl.load(x_ptr + at, mask=mask).to(tl.float32)
    value += tl.load(a_ptr + at, mask=mask) + tl.load(b_ptr + at, mask=mask)
    if C.scaled:
        value *= scale
    if HAS_BIAS:
        value += tl.load(bias_ptr + at, mask=mask)
    tl.store(out_ptr + at, value + step, mask=mask)


@dataclass
class Call:
    """The arguments of one launch, on ``device``; x begins ``offset`` elements into its memory."""

    device: str
    count: int = 100
    step: int = 3
    offset: int = 0
    dtype: torch.dtype = torch.float16
    biased: bool = True
    scale: float = 0.5

    def __post_init__(self):
        torch.manual_seed(0)
        size = self.count + self.offset
        self.x = torch.randn(size, device=self.device).to(self.dtype)[self.offset :]
        self.pair = tuple(torch.randn(self.count, device=self.device) for _ in range(2))
        self.bias = torch.randn(self.count, device=self.device) if self.biased else None
        self.out = torch.full((self.count,), float("nan"), device=self.device)
        self.grid = (-(-self.count // 64),)
        self.static = {"C": Shape(64, True), "HAS_BIAS": self.biased, "num_warps": 2}

    @property
    def args(self):
        return self.out, self.count, self.x, self.pair, self.step, self.bias, self.scale

    def expected(self):
        value = (self.x.double() + self.pair[0].double() + self.pair[1].double()) * self.scale
        return value + self.step + (0 if self.bias is None else self.bias.double())

    def check(self):
        assert (self.out.double() - self.expected()).abs().max() < 1e-5
        self.out.fill_(float("nan"))


CALLS = [
    *({"step": step} for step in (0, 1, 2, 16, 17, 3)),
    *({"count": count} for count in (1, 2, 16, 200)),
    *({"offset": offset} for offset in (1, 8, 3)),
    *({"dtype": dtype} for dtype in (torch.float32, torch.int32, torch.bfloat16)),
    {"biased": False},
    {"scale": 1.0},
]


def test_launches(triton_device):
    for change in CALLS:
        call = Call(triton_device, **change)
        for _ in range(2):
            launch(_kernel, call.grid, *call.args, **call.static)
            call.check()


def test_bound_parameters_may_be_any(triton_device):
    call = Call(triton_device)
    bound = BoundKernel(_kernel, count=100, pair=call.pair, scale=0.5, **call.static)
    for step in (3, 1, 5):
        call.step = step
        bound(call.grid, call.out, call.x, step, call.bias)
        call.check()


@pytest.fixture
def compiled(monkeypatch):
    """A call whose kernel is compiled, and from then on Triton's dispatcher is out of reach."""
    call = Call("cuda")
    launch(_kernel, call.grid, *call.args, **call.static)
    call.check()
    monkeypatch.setattr(type(_kernel), "run", None)
    return call


@pytest.mark.gpu
def test_launches_are_direct(compiled):
    launch(_kernel, compiled.grid, *compiled.args, **compiled.static)
    compiled.check()
    compiled.step = 16
    with pytest.raises(TypeError, match="NoneType"):  # it is compiled anew
        launch(_kernel, compiled.grid, *compiled.args, **compiled.static)


@pytest.mark.gpu
def test_bound_tensors(monkeypatch):
    call = Call("cuda")
    bound = BoundKernel(_kernel, pair=call.pair, bias_ptr=call.bias, scale=0.5, **call.static)
    for _ in range(2):
        bound(call.grid, call.out, call.count, call.x, call.step)
        call.check()
        call.x += 1
        monkeypatch.setattr(type(_kernel), "run", None)


@pytest.mark.gpu
def test_launches_in_a_graph(compiled):
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        launch(_kernel, compiled.grid, *compiled.args, **compiled.static)
    for _ in range(2):
        compiled.x += 1
        graph.replay()
        compiled.check()


@pytest.mark.gpu
def test_launches_on_the_current_stream(compiled):
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(20_000_000)
        compiled.x += 1  # which a launch on another stream would not wait for
        launch(_kernel, compiled.grid, *compiled.args, **compiled.static)
        compiled.check()


@pytest.mark.gpu
def test_launches_on_the_current_device():
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two devices")
    for index in (0, 1, 0, 1):
        with torch.cuda.device(index):
            call = Call(f"cuda:{index}")
            launch(_kernel, call.grid, *call.args, **call.static)
            call.check()


@pytest.mark.gpu
def test_hooks_see_direct_launches():
    from triton import knobs

    call, seen = Call("cuda"), []
    launch(_kernel, call.grid, *call.args, **call.static)
    knobs.runtime.launch_enter_hook.add(seen.append)
    try:
        launch(_kernel, call.grid, *call.args, **call.static)
    finally:
        knobs.runtime.launch_enter_hook.remove(seen.append)
    assert [each.get()["name"] for each in seen] == ["_kernel"]


@pytest.mark.gpu
def test_tensors_of_the_host_are_refused(compiled):
    compiled.x = compiled.x.cpu()
    with pytest.raises(ValueError, match="cpu tensor"):
        launch(_kernel, compiled.grid, *compiled.args, **compiled.static)


# Compiles for an H100 or H200; the last step, which only such a device can take, is written down.
SCRIPT = """
import sys

sys.path.insert(0, {tests!r})
from triton.backends.compiler import GPUTarget
from triton.runtime import JITFunction, driver

launches = []


class Launcher:
    def __init__(self, src, metadata):
        pass


def named(self, gridX, gridY, gridZ, stream, function, kernel_metadata, launch_metadata,
          launch_enter_hook, launch_exit_hook, *args):
    launches.append((gridX, gridY, gridZ, stream, function, kernel_metadata, args))


def some_named(self, gridX, gridY, gridZ, stream, function, *args):
    launches.append((gridX, gridY, gridZ, stream, function, args[0], args[4:]))


def unknown(self, x, y, z, *args):
    launches.append((x, y, z, *args[:3], args[6:]))


class Hopper:
    launcher_cls = Launcher
    utils = property(lambda self: self)

    def get_current_target(self):
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self):
        return 0

    def get_current_stream(self, device):
        return 7

    def get_device_properties(self, device):
        return {{"max_shared_mem": 232448}}

    def load_binary(self, name, *args):
        return name, name, 32, 0, 1024


driver.set_active(Hopper())
run, slow = JITFunction.run, []
JITFunction.run = lambda self, *args, **kwargs: (slow.append(self), run(self, *args, **kwargs))[1]

from test_launch_triton import CALLS, Call, _kernel
from pkvchat.kernels import launch_triton

for Launcher.__call__, direct in ((named, True), (some_named, True), (unknown, False)):
    _kernel.device_caches.clear()
    launch_triton._bind.cache_clear()
    for change in CALLS:
        call = Call("cpu", **change)
        _kernel[call.grid](*call.args, **call.static)
        launch_triton.launch(_kernel, call.grid, *call.args, **call.static)  # perhaps by Triton
        slow.clear()
        launch_triton.launch(_kernel, call.grid, *call.args, **call.static)
        assert bool(slow) is not direct, change
        assert launches[-3] == launches[-2] == launches[-1], change
print(len(launches))
"""


def test_launches_are_tritons_own(tmp_path):
    env = {**os.environ, "TRITON_CACHE_DIR": str(tmp_path), "TRITON_INTERPRET": "0"}
    script = SCRIPT.format(tests=str(Path(__file__).parent))
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr[-2000:]
    assert int(done.stdout) == 3 * 3 * len(CALLS)
