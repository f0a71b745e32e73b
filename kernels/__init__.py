"""Attention over a paged KV cache, the policy that picks it, and the small kernels beside it.

Start with ``batch`` (what every strategy is given) and ``strategy`` (plan once a step, run once a
layer), then read ``split``: the others differ in how they cut the work. ``registry`` knows the
strategies by name.

- Strategies: ``paged_strategy`` checks what each is given (``checks``); ``sdpa``, ``split``,
  ``workqueue`` in torch (``torch_strategy``) over ``tasks``, ``gather``, ``attend`` and ``merge``;
  ``split_triton`` and ``workqueue_triton`` (``triton_strategy``, compiled as ``tile_config`` says)
  and ``flashinfer`` on CUDA.
- A step: ``qkv`` norms, rotates and writes K/V (``kv``, quantised if asked), then ``step`` runs the
  strategy on decode rows and ``prefill`` or ``flashinfer_prefill`` on chunks.
- The choice: ``policy`` over ``cost``, corrected by ``trials`` while chatting; constants and dtypes
  come from ``calibration``, kept as ``records`` (some in ``shipped``), filled by ``measure_costs``
  (with ``measure_cpu``, or ``measure_cuda`` and ``graph_timing``) and ``measure_types``.
- Products: ``linear``, with ``gemv_triton`` for a row or two (``measure_products``); ``packed``
  (CPU) and ``quant_linear`` (CUDA) keep GGUF's blocks quantised.
- ``norm``, ``rope``, ``activation``; ``bandwidth`` for benchmarks.

A module in _triton is the CUDA form of its namesake; ``launch_triton`` starts their kernels.
"""
