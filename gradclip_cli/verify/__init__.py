"""Whether clipping on this machine does what its definition says: a battery of checks with an independent float64 reference."""

from gradclip_cli.verify.judge import Judged
from gradclip_cli.verify.options import Options
from gradclip_cli.verify.run import Battery, run
from gradclip_cli.verify.table import TRIALS, Trial, select

__all__ = ["TRIALS", "Battery", "Judged", "Options", "Trial", "run", "select"]
