"""The terminal app: tabs of chats over one engine process, reached only through its client.

Start at ``app.py`` (the app, its keys and ``run``). ``tab.py`` is what one open chat is doing
and how the engine's events change it; it knows no widgets. ``transcript.py`` draws a chat,
``blocks.py`` turns Markdown into terminal lines as it streams, ``composer.py`` takes prompts,
``tabstrip.py``, ``panel.py`` and ``status.py`` are the three strips around them, and
``meter.py`` sums up the step records that the panel shows.
Text from people and models is never markup here; ``clean.py`` makes it safe for a terminal.
"""
