"""Imported first in a child that `multiprocessing` spawned from a watched process: watches the child too."""

from __future__ import annotations

import json
import os

from gradclip_cli.watch.processes import SETTINGS

if settings := os.environ.get(SETTINGS):
    from gradclip_cli.watch.watcher import Watcher

    Watcher.from_settings(json.loads(settings)).start()
