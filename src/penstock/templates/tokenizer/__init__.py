"""Tokenizers: files, engines, byte offsets of tokens, special tokens in text, and remembered facts."""
