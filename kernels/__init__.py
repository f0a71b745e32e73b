"""Attention over a paged KV cache, the policy that picks it, and the small kernels beside it.

- ``attention``: what strategies are given, the strategies, and a step of them. Start here.
- ``policy``: which strategy a decode step runs with, and what was measured for that.
- ``products``: matrix products, dense and quantised.
- ``norm``, ``rope``, ``activation``, each beside its CUDA form; ``bandwidth`` for benchmarks;
  ``launch_triton`` starts the Triton kernels; ``device_memory`` is what is left of a GPU's;
  ``progress`` is how far a long task is.

A module in _triton is the CUDA form of its namesake.
"""
