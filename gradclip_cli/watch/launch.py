"""Running a script as `python SCRIPT ARGS` would, in a process that is started for it and watched.

Nothing that the script did not ask for is loaded before it: it may tell torch how many threads to start, and a module beside it may be
called as one that we use. The hooks go in when the script has imported torch.
"""

from __future__ import annotations

import atexit
import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import runpy
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import CodeType, ModuleType, TracebackType
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from gradclip_cli.watch.watcher import Watcher

_HERE = os.path.dirname(os.path.abspath(__file__)) + os.sep

# Ours is the last place looked at, and out of the path again before the script runs.
_BOOT = """import sys
if sys.path[:1] == [""]: del sys.path[0]
sys.path.append({root!r})
from gradclip_cli.watch.launch import main
sys.path.pop()
main()"""


def start(script: str, args: Sequence[str], *, as_module: bool = False, **watch: Any) -> NoReturn:
    """Become the process that runs the script; this one is over.

    Args:
        script: A file, a directory or archive with a `__main__`, or with `as_module` the name of a module.
        args: What the script finds behind its name in `sys.argv`.
        watch: What the watcher is told; see `gradclip_cli.watch.watcher.Watcher`.
    """
    command = command_line(script, args, as_module=as_module, **watch)
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    os.execv(command[0], command)


def command_line(script: str, args: Sequence[str], *, as_module: bool = False, quiet: bool = False, **watch: Any) -> list[str]:
    """The command that `start` becomes. `quiet`: it says nothing of the recording."""
    from subprocess import _args_from_interpreter_flags  # type: ignore[attr-defined]

    settings = json.dumps({"as_module": as_module, "quiet": quiet, "watch": watch})
    root = str(Path(__file__).resolve().parents[2])
    return [sys.executable, *_args_from_interpreter_flags(), "-c", _BOOT.format(root=root), settings, script, *args]


def main() -> None:
    """The whole life of that process."""
    settings = json.loads(sys.argv[1])
    script, args = sys.argv[2], sys.argv[3:]
    recording = _Recording(settings["watch"], [script, *args], quiet=settings["quiet"])
    # Registered before the script can register anything, and therefore called behind all of that.
    atexit.register(recording.end)
    after_import("torch", recording.begin)
    _watch_exit(recording)
    error = None
    try:
        run_as_main(script, args, as_module=settings["as_module"])
    except SystemExit as e:
        recording.error = e
        raise
    except BaseException as e:  # noqa: BLE001 - whatever a script may raise
        recording.error = error = e
    if error is not None:
        _print_as_python_does(error)
        if isinstance(error, KeyboardInterrupt):
            # Python itself now ends the process as the signal would have; the traceback is already there.
            sys.excepthook = lambda *_: None
            raise error
        sys.exit(1)


class _Recording:
    """The watcher of this process, once there is something to watch.

    Attributes:
        error: What the script raised out of its main module.
    """

    def __init__(self, settings: dict[str, Any], command: list[str], *, quiet: bool) -> None:
        self._settings = settings
        self._quiet = quiet
        self._command = command
        self._watcher: Watcher | None = None
        self._pid = os.getpid()
        self.error: BaseException | None = None

    def begin(self) -> None:
        from gradclip_cli.watch.processes import watch_fork_server
        from gradclip_cli.watch.watcher import Watcher

        self._watcher = Watcher(**self._settings, command=self._command, on_problem=lambda text: say(f"warning: {text}")).start()
        watch_fork_server()

    def end(self, ended: str | None = None) -> None:
        """Write what is left. A forked child does so for itself."""
        watcher, self._watcher = self._watcher, None
        if watcher is None:
            if os.getpid() == self._pid and not self._quiet:
                say("nothing was recorded: the script did not import torch")
            return
        if ended is None:
            from gradclip_cli.watch.watcher import StopTraining, how_it_ended

            ended = f"stopped after {watcher.updates} updates" if isinstance(self.error, StopTraining) else how_it_ended(self.error)
        watcher.stop(ended)
        from gradclip_cli.launch_environment import launched_rank

        if os.getpid() == self._pid and not self._quiet and launched_rank()[0] == 0:
            self._tell(watcher)

    def _tell(self, watcher: Watcher) -> None:
        where = self._settings["directory"]
        if watcher.failed:
            # Why was said when it happened.
            if watcher.num_recorded and os.path.isdir(where):
                from gradclip_cli.wording import count

                say(f"{count(watcher.num_recorded, 'update')} recorded before that\nsee with: gradclip analyze {_quoted(where)}")
        elif watcher.updates:
            if os.path.isdir(where):
                say(f"{watcher.updates:,} updates recorded\nsee them with: gradclip analyze {_quoted(where)}")
        elif os.path.isdir(where):
            say(f"processes that the script started were recorded\nsee them with: gradclip analyze {_quoted(where)}")
        else:
            say("nothing was recorded: the script took no optimizer step")


def _watch_exit(recording: _Recording) -> None:
    """`os._exit` ends a process without another word; what was seen is written first."""
    real = os._exit

    def _exit(status: int) -> NoReturn:
        recording.end("finished" if status == 0 else f"exit {status}")
        real(status)

    os._exit = _exit


def say(text: str) -> None:
    """A line on standard error, or nothing where that is closed."""
    try:
        sys.stderr.write(f"gradclip: {text}\n")
        sys.stderr.flush()
    except (AttributeError, OSError, ValueError):
        pass


def _quoted(path: str) -> str:
    from shlex import quote

    return quote(path)


# The main module ------------------------------------------------------------------------------------------------------


def run_as_main(script: str, args: Sequence[str], *, as_module: bool = False) -> None:
    """Run a script as the `__main__` of this process, and let through whatever it raises.

    `sys.argv`, `sys.path[0]` and `sys.modules["__main__"]` are as `python SCRIPT` or `python -m MODULE` sets them, and stay so: what the
    script left running may still ask for them.
    """
    main = ModuleType("__main__")
    main.__dict__.update(__annotations__={}, __builtins__=sys.modules["builtins"])
    sys.modules["__main__"] = main
    if as_module:
        _put_on_path(os.getcwd())
        sys.argv = ["-m", *args]
        runpy._run_module_as_main(script)  # type: ignore[attr-defined]
    elif os.path.isdir(script) or _is_archive(script):
        _put_on_path(os.path.join(os.getcwd(), script))
        sys.argv = [script, *args]
        runpy._run_module_as_main("__main__", False)  # type: ignore[attr-defined]
    else:
        _put_on_path(os.path.dirname(os.path.realpath(script)))
        sys.argv = [script, *args]
        file = os.path.join(os.getcwd(), script)
        main.__file__ = file
        main.__loader__ = importlib.machinery.SourceFileLoader("__main__", file)
        main.__dict__["__cached__"] = None
        exec(_compiled(file), main.__dict__)


def _compiled(file: str) -> CodeType:
    with open(file, "rb") as f:
        return compile(f.read(), file, "exec", dont_inherit=True)


def _put_on_path(folder: str) -> None:
    if not sys.flags.safe_path:
        sys.path.insert(0, folder)


def _is_archive(path: str) -> bool:
    import zipfile

    return not path.endswith(".py") and zipfile.is_zipfile(path)


def _print_as_python_does(error: BaseException) -> None:
    """The traceback, without our frames, through whatever hook the script may have set."""
    _hide_ours(error)
    sys.last_type, sys.last_value, sys.last_traceback = type(error), error, error.__traceback__
    try:
        sys.excepthook(type(error), error, error.__traceback__)
    except Exception as e:  # noqa: BLE001 - a hook of the script's
        sys.stderr.write("Error in sys.excepthook:\n")
        _hide_ours(e)
        sys.__excepthook__(type(e), e, e.__traceback__)
        sys.stderr.write("\nOriginal exception was:\n")
        sys.__excepthook__(type(error), error, error.__traceback__)


def _hide_ours(error: BaseException) -> None:
    """In the traceback of an error, and of those it came from."""
    errors, seen = [error], set[int]()
    for e in errors:
        if id(e) not in seen:
            seen.add(id(e))
            e.__traceback__ = _without_ours(e.__traceback__)
            errors += [x for x in (e.__cause__, e.__context__) if x is not None]


def _without_ours(trace: TracebackType | None) -> TracebackType | None:
    """The traceback without what this package put between the script and torch."""
    theirs = []
    while trace is not None:
        if not trace.tb_frame.f_code.co_filename.startswith(_HERE):
            theirs.append(trace)
        trace = trace.tb_next
    for one in reversed(theirs):
        one.tb_next, trace = trace, one
    return trace


# The moment torch is there --------------------------------------------------------------------------------------------


def after_import(name: str, callback: Callable[[], None]) -> None:
    """Call back once a module has been imported in full, before whoever imports it goes on."""
    if name in sys.modules:
        callback()
    else:
        sys.meta_path.insert(0, _Finder(name, callback))


class _Finder(importlib.abc.MetaPathFinder):
    """Stands aside as soon as it has found the module it waits for."""

    def __init__(self, name: str, callback: Callable[[], None]) -> None:
        self._name = name
        self._callback = callback

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self._name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, self._callback)
        return spec


class _Loader(importlib.abc.Loader):
    """Loads as the real loader does, leaves that one in its place, and calls back."""

    def __init__(self, real: importlib.abc.Loader, callback: Callable[[], None]) -> None:
        self._real = real
        self._callback = callback

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._real.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        assert module.__spec__ is not None
        module.__spec__.loader = module.__loader__ = self._real
        self._real.exec_module(module)
        self._callback()
