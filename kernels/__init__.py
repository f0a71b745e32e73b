"""Attention over a paged KV cache, the policy that picks it, and the small kernels beside it.

Start with ``batch`` (what every strategy is given) and ``strategy`` (plan once a step, run once a
layer), then read ``split``: the others differ in how they cut the work. ``registry`` knows the
strategies by name.

- Strategies: ``paged_strategy`` checks what each is given (``checks``); ``sdpa``, ``split``,
  ``workqueue`` in torch (``torch_strategy``) over ``tasks``, ``gather``, ``attend`` and ``merge``;
  ``split_triton`` and ``workqueue_triton`` (``triton_strategy``, compiled as ``tile_config`` says)
  around the loop of ``attend_triton``, or of ``attend_hopper`` where it takes the shape; their
  shares come from ``planner_triton``, ``merge_triton`` ends them; and ``flashinfer`` on CUDA.
- A step: ``qkv`` norms, rotates and writes K/V (``kv``, quantised if asked), then ``step`` runs the
  strategy on decode rows and ``prefill`` or ``flashinfer_prefill`` on chunks.
- The choice: ``policy`` over ``cost``, what attention takes by itself; ``surcharge`` adds what it
  costs the model around it, and ``trials`` correct both while chatting. Constants and dtypes come
  from ``calibration``, kept as ``records`` (some in ``shipped``; ``prior`` scales one for a GPU
  that cannot be measured), filled by ``measure_costs`` (with ``measure_cpu``, or
  ``measure_cuda`` and ``graph_timing``) and ``measure_types``.
- Products: ``linear``, with ``gemv_triton`` for a row or two (``measure_products``); ``packed``
  (CPU) and ``quant_linear`` (CUDA) keep GGUF's blocks quantised, as ``quant_formats`` arranges
  them: ``quant_gemv``, ``quant_skinny`` and ``quant_gemm`` multiply one row, a few and many, over
  ``quant_tiles``; ``routed`` has experts' matrices.
- ``norm``, ``rope``, ``activation``; ``bandwidth`` for benchmarks.

A module in _triton is the CUDA form of its namesake; ``launch_triton`` starts their kernels.
"""
