"""pkvchat: a local chat app for the terminal over a paged KV cache."""

__version__ = "0.1.0"
