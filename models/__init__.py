"""Architectures, weights, tokenizers and chat templates."""
