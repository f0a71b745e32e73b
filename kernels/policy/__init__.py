"""Which strategy a decode step runs with, and the measurements behind the choice.

Start with ``policy`` and the ``cost`` model it asks; ``calibration`` is where figures come from.

``policy`` chooses by ``cost``, with what whole steps of the model tell (``surcharge``), corrected
by ``trials`` while chatting. Constants and dtypes come from ``calibration``, kept as ``records``
(some in ``shipped``; ``prior`` scales one for a device that cannot be measured), filled by
``measure_costs`` (with ``measure_cpu``, or ``measure_cuda`` and ``graph_timing``),
``measure_types`` and ``measure_products``.
"""
