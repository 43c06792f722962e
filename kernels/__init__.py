"""One file per operation: its mathematics, its reference in plain torch and, where there is one, its kernel."""
