"""``pkvchat bench-attention``: the attention strategies side by side, without a model around them.

- What is decoded: ``traces`` (requests that come and go, after the PersistentKV paper) or those of
  a file (``trace_file``); ``cases`` (one batch each: the named ones, and a grid).
- How it is measured: ``serving`` walks through a trace on a ``server``, ``layers`` takes a case,
  both on a ``problem`` (pages and queries), with ``engines``, after a ``check`` of each one's
  output, beside the ``floor``; ``counters`` say what one call asks of the device.
- What comes of it: ``results`` (plain data, and back from JSON), ``summary`` (ratios),
  ``report`` (Markdown), ``plot``.

``command`` puts them together; its flags are in ``options``, which imports no torch.
"""
