"""What `gradclip check` asks of a run: settings with where each came from, and runs judged by them.

Pure but for `config`, which finds and reads the configuration file. Rules are known here by id, name and severity only.
"""

from gradclip_cli.policy.config import Layer, find_config, load_config
from gradclip_cli.policy.judge import judge, unreadable
from gradclip_cli.policy.policy import Known, Policy
from gradclip_cli.policy.settings import SETTINGS, Setting, command_at, in_force, settle
from gradclip_cli.policy.verified import verified

__all__ = [
    "SETTINGS",
    "Known",
    "Layer",
    "Policy",
    "Setting",
    "command_at",
    "find_config",
    "in_force",
    "judge",
    "load_config",
    "settle",
    "unreadable",
    "verified",
]
