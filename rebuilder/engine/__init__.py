"""The verbs: one file per step of a rebuild."""
