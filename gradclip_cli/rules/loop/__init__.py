"""GC4xx: the loop does not clip as intended. Judged from the trace of a watched loop."""
