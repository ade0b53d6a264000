"""A console log -> `Log`."""

from __future__ import annotations

import re
from functools import lru_cache

import numpy as np

from gradclip_cli.errors import GradclipError
from gradclip_cli.model.run import GRAD_NORM, LOSS, LOSS_SCALE, Overflow, Values
from gradclip_cli.readers import names
from gradclip_cli.readers.log import Column, Log, Source, Wanted
from gradclip_cli.readers.text import stepping, unread
from gradclip_cli.readers.text.clean import plain, whole_dicts, with_points
from gradclip_cli.readers.text.fields import BAR, RANK, SCALE, Layout
from gradclip_cli.readers.text.format import Format
from gradclip_cli.readers.text.formats import FORMATS
from gradclip_cli.readers.text.layouts import MAX_LINE, Positions, scan
from gradclip_cli.readers.text.notebook import Console, is_stream, unwrap
from gradclip_cli.readers.text.records import Mask, Records
from gradclip_cli.readers.text.skeletons import Skeletons
from gradclip_cli.readers.text.stepping import Stepping
from gradclip_cli.readers.text.tables import name_rows
from gradclip_cli.readers.text.tokens import Tokens
from gradclip_cli.readers.unread import without_zeroed
from gradclip_cli.wording import count

# The clipping bound as the arguments are printed before a run: `clip_grad ....... 1.0`, `'max_grad_norm': 1.0`, `gradient_clipping=1.0`.
_BOUND = re.compile(
    rb"(?<![\w.\-])(?:clip_grad|max_grad_norm|gradient_clipping|grad_clip|gradient_clip_val|grad_clip_norm|clip_grad_norm)"
    rb"['\"]?(?:[ \t]*+[:=][ \t]*+|[ \t]++\.{3,}+[ \t]++)(\d++(?:\.\d*+)?(?:[eE]-?\d++)?)(?![\w.])"
)
_ARGUMENTS = 1 << 20
# A line of a fresh scaler's search may say it many times over; no log needs more of one line.
_MAX_SKIPPED = 1000
# Fewer values of a key are a summary, and no series.
_FEW_VALUES = 3


def looks_like(format: Format, source: Source) -> bool:
    """Whether the beginning of a file holds a line of a format."""
    return any(format.line.search(line) for line in _head_lines(source.text))


@lru_cache(maxsize=2)
def _head_lines(text: str) -> tuple[str, ...]:
    data = text.encode("utf-8", "replace")
    text = plain(unwrap(data).data if is_stream(text) else data).decode("latin-1")
    return tuple(line for line in text.split("\n") if len(line) <= MAX_LINE)


def read(source: Source, wanted: Wanted) -> Log:
    """The series in a console log: a row is a line of metrics, or a table of them.

    Raises:
        GradclipError: Where it holds neither a series nor a message of a loss scaler.
    """
    data, zeroed = without_zeroed(source.read_utf8())
    console = unwrap(data) if is_stream(source.text) else Console(data, ())
    text, had_commas = with_points(plain(console.data))
    tokens = Tokens(FORMATS, wanted)
    take_apart = Skeletons(tokens)

    def describe(raw: bytes) -> Layout | None:
        line = raw.decode("latin-1")
        return take_apart(line) if tokens.may_hold(line) else None

    lines = scan(text, describe, lambda layout: layout.fixed)
    if tokens.saw_piece:
        text = whole_dicts(text)
        lines = scan(text, describe, lambda layout: layout.fixed)
    lines = name_rows(lines, tokens.named)
    records = Records(text, lines)
    if had_commas:
        records.notes.append("the numbers have decimal commas: `3,1234` was read as 3.1234")
    records.strike_summaries()
    format = records.main_format()
    records.strike_other_ranks()
    records.strike_cut_number()
    records.strike_chance_lines()
    overflows = _overflows(records)
    if _mostly_tables(records):
        columns, per_epoch = _tables(records), None
        step_key = next((k for k in format.step if k in columns), None)
    else:
        steps = stepping.find(records, format)
        _strike_redraws(records, steps, format)
        columns = _joined(_columns(records, steps), steps, format, wanted, records.notes)
        step_key, per_epoch = (steps.key, steps.per_epoch) if steps else (None, None)
        if format.omits_nan:
            _fill_omitted(columns, format, step_key, records.notes)
        nonfinite = columns.pop(format.nonfinite or "", None)
        if nonfinite is not None:
            _mark_nonfinite(columns, nonfinite, format, records.notes)
        if format.skipped is not None and not overflows:
            overflows = _skipped(columns, format.skipped, step_key)
    said, damage = unread.says_nan(records, columns)
    records.notes += said
    damage += unread.texts(records, wanted)
    _drop_unreported(columns, records.notes)
    if not overflows and not any(_is_worth_naming(k, wanted) for k in columns):
        seen = unread.numeric_keys(text)
        passed = f" ({_passed_over(lines.num_too_long)})" if lines.num_too_long else ""
        raise GradclipError(
            f"{source.path}: no series in this text{passed}; expected lines with a loss or a gradient norm that repeat, "
            "such as `step 10 | loss: 2.3 | grad norm: 0.5`",
            hint="a training script? `gradclip record` runs it and records what its log would not show"
            if source.path.suffix == ".py"
            else f"numbers stand behind {seen}; name the one that is the loss with --loss"
            if seen
            else "is this the log of a training run? `gradclip analyze --help` tells the formats",
        )
    for asked in (wanted.loss, wanted.grad_norm):
        if asked is not None and asked not in columns and not names.nearest(asked, columns):
            raise GradclipError(
                f"{source.path}: no key {asked!r} in this log", hint=f"numbers stand behind {unread.numeric_keys(text) or 'no key'}"
            )
    if lines.num_too_long:
        records.notes.append(_passed_over(lines.num_too_long))
    return Log(
        format.name,
        columns,
        step_key=step_key if step_key in columns else None,
        roles={role: key for role, key in format.roles.items() if key in columns},
        norm_stage=format.norm_stage,
        stage_reason=format.stage_reason,
        sampling=format.sampling,
        max_norm=_bound(text),
        steps_per_epoch=per_epoch,
        overflows=overflows,
        damage=(*zeroed, *console.damage, *damage),
        notes=(*format.notes, *records.notes),
    )


def _passed_over(num_lines: int) -> str:
    return f"{count(num_lines, 'line')} of more than {MAX_LINE >> 10} KiB {'was' if num_lines == 1 else 'were'} passed over"


def _is_worth_naming(key: str, wanted: Wanted) -> bool:
    return key in (wanted.loss, wanted.grad_norm) or "loss" in key.lower() or names.rank(LOSS, key) is not None or names.is_norm_like(key)


def _strike_redraws(records: Records, steps: Stepping | None, format: Format) -> None:
    """A bar is drawn several times a step, and the first frame of a step still shows the numbers of the one before: keep the last."""
    if steps is None:
        return
    drawn = records.training
    if not format.running_mean:
        drawn &= np.isfinite(records.dense(BAR))
    at = np.flatnonzero(drawn)
    again = np.append(np.diff(steps.of_line[at]) == 0, False)
    if again.any():
        records.notes.append("the progress bar shows a step several times; the last time was kept")
        records.alive[at[again]] = False


def _columns(records: Records, steps: Stepping | None) -> dict[str, Column]:
    printing = records.of_layouts([bool(layout.shape) and not layout.counts for layout in records.layouts])
    # Without a step, what is printed between two lines of the main shape is taken to belong to the first.
    row = np.maximum(np.cumsum(printing if steps else printing & _like_main(records)) - 1, 0)
    all_print = bool(printing.all()) and steps is not None

    def column(at: Positions, values: Values, rounded: bool) -> Column:
        if all_print:
            return Column(at, values, rounded)
        shown = printing[at]
        return Column(row[at[shown]], values[shown], rounded)

    # A log with a new key on every line must not cost a pass over it for each.
    once = {key for key in records.once_only() if all(names.rank(role, key) is None for role in (LOSS, GRAD_NORM, "step"))}
    columns = {key: column(*records.values(key)) for key in records.keys if not key.startswith("<") and key not in once}
    if steps is not None:
        at = np.flatnonzero(np.isfinite(steps.of_line))
        columns[steps.key] = column(at, steps.of_line[at], steps.rounded)
    return {key: c for key, c in columns.items() if len(c.values)}


def _joined(columns: dict[str, Column], steps: Stepping | None, format: Format, wanted: Wanted, notes: list[str]) -> dict[str, Column]:
    """A loss or a norm whose key changed in mid-run as one column: the second key begins right where the first ends for good."""
    named = {wanted.loss, wanted.grad_norm, *format.roles.values()}
    step = columns.get(steps.key) if steps else None
    if step is None or named != {None} or len(step.at) < 2 * _FEW_VALUES:
        return columns
    for role in (LOSS, GRAD_NORM):
        keys = [k for k, c in columns.items() if names.rank(role, k) is not None and len(c.at) >= _FEW_VALUES]
        keys.sort(key=lambda k: int(columns[k].at[0]))
        # Losses of several parts, or of several stages, are no one series.
        if len(keys) != 2:
            continue
        first, second = columns[keys[0]], columns[keys[1]]
        ends, begins = np.searchsorted(step.at, (first.at[-1], second.at[0])).tolist()
        pace = max(len(step.at[: ends + 1]) // len(first.at), 1)
        if not ends < begins <= ends + pace or begins >= len(step.values) or step.values[begins] <= step.values[ends]:
            continue
        both = np.concatenate([first.at, second.at]), np.concatenate([first.values, second.values])
        columns[keys[0]] = Column(*both, first.rounded or second.rounded)
        del columns[keys[1]]
        notes.append(f"{keys[1]!r} continues {keys[0]!r} from step {step.values[begins]:.15g} on")
    return columns


def _like_main(records: Records) -> Mask:
    """The lines that print a key which the main shape prints too."""
    layouts, of_layout = records.layouts, records.layout
    kinds = np.unique(of_layout[records.main]).tolist()
    keys = {key for i in kinds for key in layouts[i].shape} if kinds else {key for layout in layouts for key in layout.shape}
    return records.of_layouts([not keys.isdisjoint(layout.shape) for layout in layouts])


def _fill_omitted(columns: dict[str, Column], format: Format, step_key: str | None, notes: list[str]) -> None:
    """Put nan where a line of a step that was taken has no loss."""
    key = next(iter(names.candidates(LOSS, {k: len(c.values) for k, c in columns.items()})), None)
    if key is None or step_key not in columns:
        return
    skipped = columns.get(format.skipped or "")
    taken = columns[step_key].at if skipped is None else skipped.at[skipped.values == 0]
    printed = np.zeros(1 + int(columns[step_key].at[-1]), bool)
    printed[columns[key].at] = True
    omitted = taken[~printed[taken]]
    if len(omitted):
        at = np.concatenate([columns[key].at, omitted])
        order = np.argsort(at)
        columns[key] = Column(at[order], np.concatenate([columns[key].values, np.full(len(omitted), np.nan)])[order])
        notes.append(f"{len(omitted)} lines have no {key!r}, which is how this trainer prints one that is nan: read as nan")


def _mark_nonfinite(columns: dict[str, Column], counter: Column, format: Format, notes: list[str]) -> None:
    """Put nan where a line counts steps whose loss was not finite, and take these from its skipped steps."""
    key = next(iter(names.candidates(LOSS, {k: len(c.values) for k, c in columns.items()})), None)
    marked = np.unique(counter.at[(counter.values > 0) & (counter.values < np.inf)])
    if key is None or not len(marked):
        return
    loss, skipped = columns[key], columns.get(format.skipped or "")
    others = ~np.isin(loss.at, marked)
    at = np.concatenate([loss.at[others], marked])
    order = np.argsort(at, kind="stable")
    columns[key] = Column(at[order], np.concatenate([loss.values[others], np.full(len(marked), np.nan)])[order], loss.rounded)
    notes.append(f"{len(marked)} lines count steps whose loss was nan or inf: the loss of such a line was read as nan")
    if skipped is not None:
        of_row = dict(zip(counter.at.tolist(), counter.values.tolist(), strict=True))
        fewer = [max(n - of_row.get(row, 0.0), 0.0) for row, n in zip(skipped.at.tolist(), skipped.values.tolist(), strict=True)]
        columns[format.skipped or ""] = Column(skipped.at, np.array(fewer))


def _in_tables(records: Records) -> Mask:
    return records.of_layouts([layout.in_table for layout in records.layouts])


def _mostly_tables(records: Records) -> bool:
    training = records.training
    return bool(np.count_nonzero(training & _in_tables(records)) > 0.5 * np.count_nonzero(training)) and bool(training.any())


def _tables(records: Records) -> dict[str, Column]:
    """One row a table: the lines between two rules."""
    rules = records.of_layouts([layout.rule for layout in records.layouts])
    records.alive &= _in_tables(records)
    _, table = np.unique(np.cumsum(rules)[records.alive], return_inverse=True)
    table_of = np.zeros(len(records), np.int64)
    table_of[records.alive] = table
    columns = {}
    for key in records.keys:
        at, values, rounded = records.values(key)
        if len(at):
            columns[key] = Column(table_of[at], values, rounded)
    return columns


def _drop_unreported(columns: dict[str, Column], notes: list[str]) -> None:
    """A norm that is 0 in every line was not computed."""
    for key in [k for k, c in columns.items() if names.rank(GRAD_NORM, k) is not None and len(c.values) and not c.values.any()]:
        del columns[key]
        notes.append(f"{key!r} is 0 in every line: not reported by this run, and left out")


def _overflows(records: Records) -> tuple[Overflow, ...]:
    messages = records.of_layouts([layout.overflow for layout in records.layouts])
    at = np.flatnonzero(messages)
    if not len(at):
        return ()
    ranks, scales = records.dense(RANK)[at], records.dense(SCALE)[at]
    own = ~np.isfinite(ranks) | (ranks == ranks[0])
    return tuple(Overflow(None, float(s) if np.isfinite(s) else None) for s in scales[own])


def _skipped(columns: dict[str, Column], key: str, step_key: str | None) -> tuple[Overflow, ...]:
    """Overflows from a counter of skipped steps in each line."""
    counter = columns.get(key)
    if counter is None or not counter.values.any():
        return ()
    step = dict(zip(columns[step_key].at.tolist(), columns[step_key].values.tolist(), strict=True)) if step_key in columns else {}
    scale_key = next(iter(names.candidates(LOSS_SCALE, {k: len(c.values) for k, c in columns.items()})), None)
    scale = dict(zip(columns[scale_key].at.tolist(), columns[scale_key].values.tolist(), strict=True)) if scale_key else {}
    out: list[Overflow] = []
    for row, n in zip(counter.at.tolist(), counter.values.tolist(), strict=True):
        if 0 < n < np.inf:
            out += [Overflow(int(step[row]) if row in step else None, scale.get(row))] * min(int(n), _MAX_SKIPPED)
    return tuple(out)


def _bound(text: bytes) -> float | None:
    """The clipping bound among the arguments printed at the beginning, where they name just one."""
    found = {float(m[1]) for m in _BOUND.finditer(text, 0, _ARGUMENTS)} - {0.0}
    return found.pop() if len(found) == 1 else None
