"""The terminal app: tabs of chats over one engine process, reached only through its client.

Start at ``app.py`` (the window and ``run``). ``session.py`` deals with the engine, over the thread
of ``link.py``; ``saver.py`` writes chats down as they change.
What a person can ask for is in ``pkvchat/commands/`` and, where it needs a screen, in
``*_commands.py`` here: one table (``all_commands.py``) for keys (``keymap.py``), slashes, palette
and help; ``app_host.py`` is the app as the shared commands see it.
``transcript.py`` draws a chat from ``turn.py``'s lines, which ``streamed_markdown.py`` makes;
``composer.py`` takes prompts, which ``token_count.py`` measures, and commands, which
``slash_list.py`` lists. Around them are ``tabstrip.py``, ``sidebar.py``, ``panel.py``,
``status.py``.
Text from people and models is never markup here; ``pkvchat/clean.py`` makes it safe for a terminal.
"""
