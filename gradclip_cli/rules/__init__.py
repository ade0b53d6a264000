"""The rules: one row each in `RULES`, one function each whose docstring is its explain page."""

from gradclip_cli.rules.device import DEVICE_RULES, DeviceRule, device_rule
from gradclip_cli.rules.engine import apply_rules, verdict_of
from gradclip_cli.rules.table import RULES, Rule

PAGES: tuple[Rule | DeviceRule, ...] = (*RULES, *DEVICE_RULES)
"""All rules that have a page: those that judge a run, and those that `verify` finds on a device."""

__all__ = ["DEVICE_RULES", "PAGES", "RULES", "DeviceRule", "Rule", "apply_rules", "device_rule", "verdict_of"]
