"""Station *report*: shows a result, never recomputes it."""
