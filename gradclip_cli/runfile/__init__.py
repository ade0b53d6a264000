"""Our own run directory: what a watched loop left behind, written as it runs and read back.

```
RUN/
  run.json                      the header of rank 0: what was measured and how
  events.out.tfevents.*         TensorBoard scalars of rank 0
  rank-00000/header.json        the header of each rank
  rank-00000/updates.blocks     the columns and the norms per tensor, a checksummed block a flush (see `blocks`, `updates`)
  rank-00000/trace.jsonl        the calls that matter for clipping, a line each
  grads/step-00000412.safetensors   gradients of chosen updates (rank 0; those of rank 1 in rank-00001/grads/)
```

Everything is appended, the headers are replaced as a whole: killed at any moment, a run has lost the blocks not yet written and nothing
else. A writer holds a lock on its `updates.blocks`, so that a reader tells a run that is being written from one that was killed.

Columns, float64, one row an update: `loss`, `grad_norm` (before clipping), `grad_norm_used` (what the optimizer used), `max_norm`,
`clip_coef`, `lr` (first group), `lr/<i>` (others that differ), `loss_scale`, `skipped` (1 where the scaler skipped the step),
`num_micro_batches`, `step_s` (seconds since the update before), `batch_size`, `seq_len`, `ignored_fraction`, `batch_index`, `optimizer`
(index). NaN where an update has no such value; whether `loss`, `grad_norm` and `grad_norm_used` are there is told by `has_<name>`
(1 or 0), because a NaN of theirs may be what was measured.
"""

from gradclip_cli.runfile.reading import is_recorded, read_recorded
from gradclip_cli.runfile.writer import RunWriter, check_free, check_writable, remove_recorded

__all__ = ["RunWriter", "check_free", "check_writable", "is_recorded", "read_recorded", "remove_recorded"]
