"""Attention over a paged KV cache, and the small kernels beside it."""
