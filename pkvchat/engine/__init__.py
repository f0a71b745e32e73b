"""Token ids in, token ids out: the engine, which knows nothing about text.

``engine`` takes steps; ``scheduler`` says whose turn it is and ``pace`` how much of a prompt, with
the KV pages of ``pages`` under each ``sequence``; ``runner`` has the model run, through the CUDA
graphs of ``graph_runner`` where it can; ``sampler`` picks tokens; ``in_flight`` is a step that the
device is still at. ``memory`` and ``workspace`` say how many pages there is room for.
"""
