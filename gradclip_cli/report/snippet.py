"""The line to paste into a training script, by framework."""

from __future__ import annotations

from collections.abc import Mapping

from gradclip_cli.errors import GradclipError

SNIPPETS: Mapping[str, str] = {
    "torch": (
        "# After backward (and scaler.unscale_(optimizer)), before optimizer.step().\n"
        "total_norm = torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm={max_norm}{norm_type})"
    ),
    "hf": "# In TrainingArguments; on the command line --max_grad_norm {max_norm}.\nmax_grad_norm={max_norm},",
    "lightning": (
        "# With automatic optimization; Lightning unscales before it clips.\n"
        'trainer = L.Trainer(gradient_clip_val={max_norm}, gradient_clip_algorithm="norm")'
    ),
    "deepspeed": '"gradient_clipping": {max_norm}',
    "accelerate": (
        "# After accelerator.backward(loss), before optimizer.step(); it unscales first.\n"
        "if accelerator.sync_gradients:\n"
        "    total_norm = accelerator.clip_grad_norm_(model.parameters(), max_norm={max_norm}{norm_type})"
    ),
    "fsdp": (
        "# FSDP2 (fully_shard): the gradients are DTensors, torch's function takes the norm over all ranks.\n"
        "total_norm = torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm={max_norm}{norm_type})\n"
        "# FSDP1 (FullyShardedDataParallel): only the method of the root module sees all shards.\n"
        "total_norm = model.clip_grad_norm_(max_norm={max_norm}{norm_type})"
    ),
}
"""What `--snippet` takes."""


def pasted(max_norm: float) -> str:
    """The number as a program or a command line takes it: four digits, of which the interval leaves fewer."""
    return repr(float(f"{max_norm:.4g}"))


def snippet(framework: str, max_norm: float, norm_type: float) -> str:
    """The line with the number as `pasted`, comments where it matters where it goes.

    Raises:
        GradclipError: The framework clips the L2 norm only, and the number is of another.
    """
    if norm_type != 2 and "{norm_type}" not in SNIPPETS[framework]:
        message = f"the logged norms are of type {norm_type:g}, and {framework} clips the L2 norm only"
        raise GradclipError(message, hint="log the L2 norm, or clip in the loop itself (--snippet torch)")
    named = "" if norm_type == 2 else f", norm_type={norm_type:g}" if norm_type != float("inf") else ', norm_type=float("inf")'
    return SNIPPETS[framework].format(max_norm=pasted(max_norm), norm_type=named)
