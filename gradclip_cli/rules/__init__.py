"""The rules: one row each in `RULES`, one function each whose docstring is its explain page."""

from gradclip_cli.rules.engine import apply_rules, verdict_of
from gradclip_cli.rules.table import RULES, Rule

__all__ = ["RULES", "Rule", "apply_rules", "verdict_of"]
