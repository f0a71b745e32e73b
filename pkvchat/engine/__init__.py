"""Token ids in, token ids out: the engine, which knows nothing about text.

Start with ``engine``, which takes steps, then read ``scheduler`` and ``runner``.

``scheduler`` says whose turn it is and ``pace`` how much of a prompt, with the KV pages of
``pages`` under each ``sequence``; ``runner`` has the model run, with ``attention_kernels``, and
through the CUDA graphs of ``graph_runner`` (``graph_inputs``, ``graph_pool``) where it can;
``sampler`` picks tokens; ``in_flight`` is a step that the device is still at, timed by ``mark``;
``upload`` brings values there. ``memory`` and ``workspace`` say how many pages there is room for.
"""
