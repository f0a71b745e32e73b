"""Matrix products whose weights stay as they were stored.

Start with ``linear`` and ``quant_linear``, which is called like it.

``linear`` is the dense one, with ``gemv_triton`` for a row or two. ``packed`` (CPU) and
``quant_linear`` (CUDA) keep GGUF's blocks quantised, as ``quant_formats`` arranges them: the
kernels ``quant_gemv_triton``, ``quant_skinny_triton`` and ``quant_gemm_triton`` are for one row,
a few and many, over ``quant_tiles_triton``; ``quant_dequantise_triton`` makes numbers of rows.
``routed`` has the experts' matrices.
"""
