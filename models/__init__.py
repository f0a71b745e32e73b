"""Architectures, weights, tokenizers and chat templates.

Start at ``loader.load_model``: a name becomes files (``resolve``, ``hub``, ``default_model``,
``catalogue``; ``library`` is what is here), files become a Checkpoint (``gguf_checkpoint`` over
``gguf_file``, or ``safetensors_checkpoint``), its metadata a ModelConfig (``families`` picks one:
``llama``, ``qwen``, ``gemma``, ``phi3``, ``smollm3``), its tensors a ``decoder.Decoder`` made of
``blocks``: once empty, to see what they take (``weight_plan``, ``fit``), then with ``weights``,
many parts at a time (``reading``), or with ``random_weights`` and no file.
Text goes through a Tokenizer (``backend_tokenizer`` or ``spm_tokenizer``, over ``pieces``) and a
ChatTemplate (``template``, rendered in ``sandbox``).
A new family is one file with from_gguf and from_hf, and one line in ``families``.
"""
