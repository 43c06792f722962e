"""Config, trunk, tokenizer and chat template of the family."""
