"""Attention over a paged KV cache.

Start with ``batch`` (what every strategy is given) and ``strategy`` (plan once a step, run once a
layer), then read ``split``: the others differ in how they cut the work. ``registry`` knows the
strategies by name.

- ``paged_strategy`` checks what each strategy is given (``checks``); ``sdpa``, ``split``,
  ``workqueue`` in torch (``torch_strategy``) over ``tasks``, ``gather``, ``attend`` and ``merge``;
  ``split_triton`` and ``workqueue_triton`` (``triton_strategy``, compiled as ``tile_config`` says;
  on Hopper around ``attend_hopper``) and ``flashinfer`` on CUDA.
- A step: ``qkv`` norms, rotates and writes K/V (``kv``, quantised if asked), then ``step`` runs the
  strategy on decode rows and ``prefill`` or ``flashinfer_prefill`` on chunks.
"""
