"""Imported first in a child that `multiprocessing` spawned from a watched process: watches the child too, if it comes to import torch."""

from __future__ import annotations

import json
import os

from gradclip_cli.watch.launch import after_import
from gradclip_cli.watch.processes import SETTINGS


def _begin() -> None:
    from gradclip_cli.watch.watcher import Watcher

    Watcher.from_settings(json.loads(os.environ[SETTINGS])).start()


if os.environ.get(SETTINGS):
    after_import("torch", _begin)
