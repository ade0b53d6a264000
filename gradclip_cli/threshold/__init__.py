"""What `max_norm` should be, and what another one would have done. Runs in, numbers with their reasons out; nothing is read or printed.

`evidence` sorts the logged norms (`warmup` finds the start), `suggest` takes a percentile of the healthy ones, `interval`
says how well it is known, `candidates` what other thresholds would do, `phases` whether one fits the whole run, `adaptive`
what a moving one would have been, `notes` puts it into words. `what_if` looks at the flagged steps of an analysis.
"""

from gradclip_cli.threshold.suggest import check_choice, suggest_threshold
from gradclip_cli.threshold.what_if import check_max_norm, what_if

__all__ = ["check_choice", "check_max_norm", "suggest_threshold", "what_if"]
