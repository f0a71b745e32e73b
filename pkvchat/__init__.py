"""pkvchat: a local chat app for the terminal over a paged KV cache.

Start with ``service`` and ``messages``, for the engine with ``engine.engine``; ``cli`` has main.

- The engine, tokens in and tokens out: ``engine`` takes steps, ``scheduler`` says whose turn it is
  and ``pace`` how much of a prompt, with KV ``pages`` under each ``sequence``; ``runner`` has the
  model run, through ``graph_runner``'s CUDA graphs where it can; ``sampler`` picks tokens;
  ``in_flight`` is a step that the device is still at; ``steps`` records it, ``meter`` sums records
  up. ``startup`` builds all this from ``options``, with ``step_bench``'s times of whole steps;
  ``memory`` and ``workspace`` say what there is room for.
- Chats over it, text in and text out: ``service``, which runs in a ``process`` of its own behind a
  ``client``; they talk in ``messages``.
- What a person sees of chats: ``chats``, kept by ``store``, in and out by ``transfer``.
  ``open_chat`` is one in the app, ``conversation`` one in ``plain`` mode; ``commands`` are what can
  be typed.
- The command line: ``cli``, its ``flags`` of ``arguments``, ``settings``; ``shelf`` is `models`,
  `pull` and `rm`; ``bench`` (``short_bench`` within the app), ``compare``, ``calibrate`` and
  ``attention_bench`` measure, on what ``machine`` names.
- Terminals: ``streams`` are the standard ones, ``line_input`` reads lines, ``progress_line`` says
  how far things are, ``clean`` makes any text safe to show; ``counted`` puts numbers into words.
"""

__version__ = "0.1.0"
