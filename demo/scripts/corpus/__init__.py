"""Grammars that write the demo checkpoint's training samples (all text here is our own)."""
