"""One line of a log -> the numbers in it that have a name."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from gradclip_cli.model.run import GRAD_NORM, LOSS
from gradclip_cli.readers import names, numbers
from gradclip_cli.readers.log import Wanted
from gradclip_cli.readers.text.fields import BAR, BAR_TOTAL, COUNT, LABEL, RANK, SCALE, TOTAL, Field, Layout
from gradclip_cli.readers.text.format import Format, pattern
from gradclip_cli.readers.text.layouts import pattern_of
from gradclip_cli.readers.text.tables import header_of, may_be_row, row_of

# The class of `names.rank` that counts epochs.
_EPOCH = 3
# Neither a number nor the name of what wraps one.
_WORD = r"(?!(?:[nN][aA][nN]|[iI][nN][fF])(?![\w./@\-])|(?:tensor|[aA]rray|np\.float\d*)\()[A-Za-z_][\w./@\-]*+"
# Nor is `?loss=1&step=2` of an address one.
_KEY = rf"(?<![\w./@\-?&])(?P<key>{_WORD}(?: {_WORD}){{0,5}}+(?: ?\([A-Za-z/%]{{1,12}}\))?+)"
_QUOTED = r"(?P<quote>['\"])(?P<quoted>[^'\"<>]{1,200}+)(?P=quote)\s*+:\s*+"
# What may stand around a value: `[0.1]`, `tensor(0.1)`, `np.float64(0.1)`, `'0.1'`.
_OPEN = r"(?:(?:[a-z]{1,6}\.)?(?:float\d*|tensor|[Aa]rray)\(\[?|[\[(])?+['\"]?+\s*+"
_FINITE = r"[+-]?(?:\d{1,3}(?:,\d{3})++(?!\d)(?:\.\d*+)?|\d++(?:\.\d*+)?|\.\d++)(?:[eE][+-]?\d++)?(?:[KMBk%](?![\w/%]))?+"
# A unit may follow (`61.9ms`, `3 it/s`), but no date, time, version, file name or assignment.
_AFTER = r"(?:(?!\w)|(?=[A-Za-z]{1,4}(?:/\w{1,6})?(?![\w.=])))(?!\.\w|:\d|=|-\d)"
_NONFINITE = r"[+-]?(?:[nN][aA][nN](?:\(ind\)|\.0)?|[iI][nN][fF](?:inity)?(?:\.0)?|1\.\#(?:QNAN|IND|INF))(?!\w|\.\w|=|\()"
_PAIR = pattern(
    rf"(?:{_QUOTED}|{_KEY}(?:\s*+[:=]\s*+|\s++|(?=\[))){_OPEN}(?P<value>{_NONFINITE}|{_FINITE}{_AFTER})(?:(?:\s*+/\s*+|\s++of\s++)(?P<total>\d++))?"
)
# `| grad_norm | 68.3     |`
_TABLE_ROW = pattern(r"\|\s*+(?P<key>[^|]{1,100}?)\s*+\|\s*+(?P<value>[^|\s]{1,40}+)\s*+\|\s*+$")
_RULE = pattern(r"\s*+[-+=]{5,}+\s*+$")
# `| 1453/4361 [20:38<43:27, 1.12it/s`
_BAR = pattern(r"(?<![\d.])(?P<bar>\d++)/(?P<total>\d++) \[(?:\d++:)?\d++:\d\d<")
# `Epoch [1][50/7330]`, `Epoch: [0]  [ 20/1251]`, `Train: [0/300][50/1251]`, `Train: 0 [ 50/1251 ( 4%)]`,
# `Train Epoch: 1 [640/60000 (1%)]`;
# of tutorials and examples, `[1,  2000] loss: 2.3`, `loss: 2.3  [ 6400/60000]`, `| epoch   1 |   200/ 2983 batches | lr 20.00 |`,
# `[0/25][100/1583] Loss_D: 2.3`.
_POSITION = pattern(
    r"(?:[Ee]poch|[Tt]rain)[^\s\[]{0,12}\s*+(?:\[\s*+(?P<epoch>\d++)(?:/\d++)?\]|(?P<epoch2>\d++)(?=\s))"
    r"\s*+\[\s*+(?P<iter>\d++)/\s*+(?P<total>\d++)(?:\s|\])"
    r"|\bepoch\s++(?P<epoch4>\d++) \|\s*+(?P<iter4>\d++)/\s*+(?P<total3>\d++) batches"
    r"|^\s*+\[\s*+(?P<epoch3>\d++),\s*+(?P<iter2>\d++)\](?=\s*+loss\b)"
    r"|^\s*+loss: ?\S++\s++\[\s*+(?P<iter3>\d++)/\s*+(?P<total2>\d++)\]\s*+$"
    r"|^\s*+\[\s*+(?P<epoch5>\d++)/\d++\]\s*+\[\s*+(?P<iter5>\d++)/\s*+(?P<total4>\d++)\]"
)
# What may be the step of a line that names none: `[ 12/300]`, `(12/300)`, `12/300`; `[12]`, `#12`, `12 | loss`. No date.
_OF_TOTAL = pattern(r"(?<![\w./:\-])(?P<count>\d{1,9}+)\s*+/\s*+(?P<total>\d{1,9}+)(?![\w/]|[.:\-]\d| \d\d:)")
_ALONE = pattern(r"(?<!\S)\[\s*+(?P<count>\d{1,9}+)\s*+\](?=[\s:])|^\s*+#?(?P<count2>\d{1,9}+)(?=\s*+[|,;)]|\s++[A-Za-z])")
# `Training loss (for one batch) at step 100: 2.3`, `loss after epoch 3 = 2.3`
_LOSS_AT = pattern(
    rf"(?i)\b(?P<key>(?:(?:train|training|average|avg|mean|total|val|valid|validation|eval|evaluation|test) )?loss)(?: \([^)]{{1,40}}\))? "
    rf"(?:at|after|in|for|of) (?P<what>step|iteration|iter|batch|epoch) (?P<at>\d++)\s*+[:=]\s*+(?P<value>{_NONFINITE}|{_FINITE}{_AFTER})"
)
# How launchers mark the lines of a process: torchrun, mpirun, Ray, our own word for it; srun only numbers them.
_RANK = pattern(
    r"\s*+(?:\[(?:rank|default|gpu|worker)[ :]?(\d++)\]|\((?:[\w.]+ )?pid=(\d++)[^)]{0,60}\)|\[\d++,(\d++)\]<std\w++>"
    r"|\[?(?:[Rr]ank|RANK|[Ww]orker|node|host)[ _\-]?(\d++)\]?\s*+[:|\]])"
)
_LABEL = pattern(r"\s*+(\d{1,6}+):(?=\s)")
_RANK_KEYS = frozenset(("rank", "local_rank", "global_rank"))
_OVERFLOW = pattern(
    r"(?i)overflow.{0,120}?(?:skipping|ignoring|setting|reducing)|skipping step.{0,80}?loss scale|gradient overflow|overflow!"
)
_NEW_SCALE = pattern(r"(?i)(?:reducing(?: loss scale)? to|setting loss scale to):?\s++(?P<value>\d++(?:\.\d*+)?(?:e[+-]?\d++)?)(?!\w)")
_OVERFLOW_RANK = pattern(r"(?i)\brank\s++(\d++)")

_NAN = r"(?:nan|inf|infinite|infinity|non-?finite|not finite)"
_HAPPENED = r"(?:detected|encountered|found|got|getting|hit|observed|occurred|obtained|produced|received|reported|returned|saw|seen)"
# `loss is nan`; `NaN loss detected`, `WARNING: NaN loss, stopping`, but no other name that begins so (`NaN loss steps`, `nan loss guard`).
_SAYS_NAN = pattern(
    rf"(?i)\bloss(?:es)? (?:(?:is|was|went|goes|turned|became|becomes|has become) (?:now |to )?{_NAN}\b|(?:has |have )?diverged\b)"
    rf"|(?:^|[:\]>|!\-]|\b(?:{_HAPPENED}|due to|because of)(?: an?)?)\s*+{_NAN}(?: or {_NAN})? (?:train(?:ing)? )?loss"
    rf"(?=\s*+(?:$|[!.,;(]|(?:at|on|in|for|from|after|was|were|has|have|{_HAPPENED})\b))"
    rf"|\b{_NAN}(?: or {_NAN})? (?:train(?:ing)? )?loss {_HAPPENED}\b|\bnan or inf found\b"
    r"|\b(?:Runtime|FloatingPoint|Assertion)Error\b.{0,400}?(?<![\w\-=])nan(?![\w\-]|\s*+[:=])"
)
# What is said of settings, in code and where nothing happened: `--stop-on-nan`, `loss is nan: False`, `NaN loss: 0`,
# `if the loss is nan`, `steps whose loss is nan are skipped`.
_ONLY_SPEAKS = pattern(
    r"(?i)--\w|\b(?:if|when|whenever|unless|until|no|never|without|check|checks|checking|number of)\b"
    r"|\b(?:in case|should|may|could|raise|print|assert)\b|\b(?:where|whose|which|before)\b[^.,;:!]{0,60}?\bloss\b"
    r"|[:=]\s*+(?:false|no|none|off|0)\b"
)
# `loss: diverged!!`, but not `loss: [0.1`, `loss: tensor(` or `loss: 3`.
_TEXT = pattern(r"[\s]*+(?P<text>[^\s\d\[({<'\"+.|,;][^|,;\r\n]{0,79}|-+(?=\s|$))")
_TEXT_KEY = pattern(rf"(?:{_QUOTED}|{_KEY}\s*+[:=])")

# A word beside the keys that says whose numbers follow.
_CONTEXT = pattern(
    r"(?i)(?<![\w/.\-])(?:(?P<eval>val|valid|validation|validate|validating|eval|evaluation|evaluating|evaluate|test|testing)|train|training)"
    r"(?![\w.\-]|/\w)"
)
# `step 50 | loss: 7.02 | val`
_LAST_WORD = pattern(r"(?i)[|,;(\[]\s*+(?P<eval>val|valid|validation|eval|evaluation|test)\s*+[)\]]?\s*+$")
# Words that people and container runtimes put before and behind a key and that do not make another key of it.
_BEFORE = frozenset(
    ("info", "debug", "warning", "warn", "error", "success", "root", "main", "current", "the", "at", "after", "finished", "completed")
    + ("done", "in", "on", "and", "with", "for", "end", "of", "now", "train", "training", "trainer", "worker", "stdout", "stderr", "f")
)
_BEHIND = frozenset(("is", "was", "of", "at", "to", "equals"))
# Other people's losses, and the declaration of a variable.
_OTHER_LOSSES = frozenset(("packet", "stop", "profit", "profit/loss", "float", "double"))
_LETTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")

# A line with none of these is not looked at. Cheap, and right for all but a handful of lines in a log.
_NEEDLES = (
    *("loss", "nan", "norm", "grad", "grdn", "trl:", "tel:", "lr", "learning", "scal", "clip", "step", "iter", "epoch", "batch", "update"),
    *("| ", "it/s", "s/it", "/s]", "/s,", "overflow"),
)


def is_rule(line: str) -> bool:
    """Whether a line is a rule across the page."""
    return line[:1] in " -+=" and bool(_RULE.match(line))


class Tokens:
    """One line -> `Layout`, or None where no number in it is worth reading.

    Args:
        formats: Asked in order for the first whose lines look like this one.
        wanted: Keys to read whatever their names.
    """

    def __init__(self, formats: Sequence[Format], wanted: Wanted) -> None:
        self._formats = formats
        self._wanted = wanted
        self._metrics = {names.words(k) for k in (wanted.loss, wanted.grad_norm) if k}
        self._asked = self._metrics | {names.words(k) for k in (wanted.lr, wanted.step) if k}
        longest = (max(k.split("_"), key=len) for k in self._asked)
        self._needles = (*_NEEDLES, *(w.encode("utf-8", "replace").decode("latin-1") for w in longest))
        self._keys: dict[tuple[str, str], str | None] = {}
        self._in_table = False
        self.saw_piece = False
        """Whether a line was a part of a dict that was printed over several lines."""

    def may_hold(self, line: str) -> bool:
        """Whether a line is worth the look. Cheap."""
        low = line.lower()
        return any(n in low for n in self._needles) or is_rule(line) or (self._in_table and may_be_row(line))

    def __call__(self, line: str) -> Layout | None:
        layout = self._take_apart(line)
        if _SAYS_NAN.search(line) and not _ONLY_SPEAKS.search(line):
            layout = replace(layout or Layout({}, (), len(line)), says_nan=True)
        if layout is not None and layout.fields and (texts := self._texts(line, layout)):
            layout = replace(layout, texts=texts)
        return layout

    def _texts(self, line: str, layout: Layout) -> dict[str, tuple[int, str]]:
        """The text in place of a metric's number, by key, and where the key ends."""
        texts: dict[str, tuple[int, str]] = {}
        for m in _TEXT_KEY.finditer(line):
            found = _TEXT.match(line, m.end())
            key = self._name(m["quoted"] or m["key"], layout.format) if found else None
            if found and key is not None and key not in layout.fields and self._is_metric(key, layout.format):
                texts.setdefault(key, (m.end(), found["text"].strip()))
        return texts

    def _take_apart(self, line: str) -> Layout | None:
        if is_rule(line):
            return Layout({}, (), len(line), rule=True)
        if self._in_table and may_be_row(line) and (row := row_of(line)):
            return replace(row, format=self._format(line))
        if "cale" in line and _OVERFLOW.search(line):
            scale, rank = _NEW_SCALE.search(line), _OVERFLOW_RANK.search(line)
            told = {SCALE: _field(scale, "value")} if scale else {}
            return Layout(told | ({RANK: _field(rank, 1)} if rank else {}), (), len(line), overflow=True)
        if pair := _TABLE_ROW.match(line):
            format = self._format(line)
            key = self._name(pair["key"], format)
            if key is not None and numbers.parse(pair["value"]) is not None:
                return replace(self._layout({key: _field(pair, "value", "key")}, len(line), format), in_table=True)
        pairs, bar = list(_PAIR.finditer(line)), _BAR.search(line)
        if not pairs and bar is None:
            return self._header(line)
        format = self._format(line)
        if format is not None and format.not_training is not None and format.not_training.search(line):
            return None
        fields: dict[str, Field] = {}
        taken = _numbers_without_key(line, bar, format, fields)
        self._numbers_with_key(line, pairs, taken, format, fields)
        if not fields.keys() - {RANK, LABEL}:
            return self._header(line)
        self.saw_piece = self.saw_piece or bool(line[0] in " \t" and pairs and pairs[-1]["quote"] and line.rstrip()[-1] == ",")
        layout = self._layout(fields, len(line), format)
        if layout.step is None and (counter := _counter(line, fields)):
            layout = replace(layout, fields=fields | counter)
        if format is not None and format.sums_up is not None and format.sums_up.search(line):
            layout = replace(layout, sums_up=True)
        return layout

    def named(self, row: Layout, columns: Sequence[str]) -> Layout | None:
        """The layout of a row of a table whose columns have these names; None where the column of steps does not hold any."""
        fields: dict[str, Field] = {}
        for i, name in enumerate(columns):
            key = self._name(name, row.format)
            if key is not None and f"<{i}>" in row.fields:
                fields.setdefault(key, row.fields[f"<{i}>"])
        layout = self._layout(fields, row.length, row.format)
        counter = layout.step or layout.epoch
        return layout if counter is not None and not fields[counter].pattern.strip(b"0,") else None

    def _header(self, line: str) -> Layout | None:
        """The header of a table with a column of steps."""
        ways = tuple(way for way in header_of(line) if any(map(self._is_step, way)))
        if not ways:
            return None
        self._in_table = self._in_table or any(self._is_metric(name, None) for way in ways for name in way)
        return Layout({}, (), len(line), header=ways)

    def _is_step(self, key: str) -> bool:
        return names.rank("step", key) is not None or names.words(key) == names.words(self._wanted.step or "step")

    def _format(self, line: str) -> Format | None:
        return next((f for f in self._formats if f.line.search(line)), None)

    def _layout(self, fields: dict[str, Field], length: int, format: Format | None) -> Layout:
        keys = list(fields)
        named = [k for k in keys if self._wanted.step and names.words(k) == names.words(self._wanted.step)]
        named += [k for k in (format.step if format else ()) if k in keys]
        # A counter that says it is global beats one that may begin anew in each epoch.
        ranked = sorted((r, "global" not in k.lower(), i, k) for i, k in enumerate(keys) if (r := names.rank("step", k)) is not None)
        # Beside a bar only the best of names is believed: its frames share their line with whatever is printed next.
        counted = named or [k for r, *_, k in ranked if r < (1 if BAR in keys else _EPOCH)] or [k for k in keys if k == BAR]
        return Layout(
            fields,
            tuple(k for k in keys if not k.startswith("<")),
            length,
            format,
            training=any(self._is_metric(k, format) for k in keys),
            counts=len(ranked) == sum(not k.startswith("<") for k in keys),
            step=counted[0] if counted else None,
            epoch=next((k for r, *_, k in ranked if r == _EPOCH), None),
        )

    def _is_metric(self, key: str, format: Format | None) -> bool:
        if names.words(key) in self._metrics or (format and key in (format.roles.get(LOSS), format.roles.get(GRAD_NORM))):
            return True
        return any(names.rank(r, key) is not None for r in (LOSS, GRAD_NORM)) or names.is_loss_like(key) or names.is_norm_like(key)

    def _numbers_with_key(
        self, line: str, pairs: list[re.Match[str]], taken: tuple[int, int], format: Format | None, fields: dict[str, Field]
    ) -> None:
        aside = _LAST_WORD.search(line, pairs[-1].end("value")) if pairs else None
        context = aside["eval"] if aside else ""
        behind = 0
        for m in pairs:
            begin = m.start("value")
            if taken[0] <= begin < taken[1]:
                continue
            key = self._name(m["quoted"] or m["key"], format)
            is_step = key is not None and names.rank("step", key) is not None
            # A word is context where it is no part of a metric's name.
            for word in _CONTEXT.finditer(line, behind, begin if key is None or is_step else m.start()):
                context = word["eval"] or (aside["eval"] if aside else "")
            behind = begin
            if key is None:
                continue
            if context and not is_step and not names.is_evaluation(key):
                key = f"{context} {key}"
            if key in fields or numbers.parse(m["value"]) is None:
                continue
            if (is_step or self._is_metric(key, format)) and names.words(key) not in self._asked:
                # A loss has no unit, nor has a step: `62ms`, `0.0f`, `3%`.
                if m["value"][-1] == "%" or line[m.end("value") : m.end("value") + 1] in _LETTERS:
                    continue
                if not is_step and m["key"] and line[m.end("key") : begin].isspace() and _is_prose(key, m["value"]):
                    continue
            if is_step and m["total"]:
                fields[TOTAL + key] = _field(m, "total")
            fields[RANK if key.lower() in _RANK_KEYS else key] = _field(m, "value", "quoted" if m["quoted"] else "key")

    def _name(self, printed: str, format: Format | None) -> str | None:
        """What a printed key is called, or None where it is not worth reading."""
        cached = (printed, format.name if format else "")
        if cached not in self._keys:
            self._keys[cached] = self._find_name(printed, format)
        return self._keys[cached]

    def _find_name(self, printed: str, format: Format | None) -> str | None:
        words = printed.encode("latin-1").decode("utf-8", "replace").split(" ")
        while len(words) > 1 and words[-1].lower() in _BEHIND:
            words.pop()
        while True:
            key = " ".join(words)
            if self._is_worth(key, format):
                return key
            if len(words) == 1 or not (words[0].lower() in _BEFORE or "." in words[0] or words[0].startswith("__")):
                return None
            words = words[1:]

    def _is_worth(self, key: str, format: Format | None) -> bool:
        if format is not None and key in (*format.step, *format.keys):
            return True
        low = key.lower()
        # Validation losses are no role of ours, but people ask for them by name.
        return (
            low in _RANK_KEYS
            or names.words(key) in self._asked
            or ((names.worth_reading(key, self._wanted) or "loss" in low or low.endswith("norm")) and _OTHER_LOSSES.isdisjoint(low.split()))
        )


def _is_prose(key: str, value: str) -> bool:
    """Whether a key of several words before a bare number is a part of a sentence: `the loss drops from 2.3`, `fix the loss 3`."""
    if " " not in key or any(names.rank(role, key) is not None for role in (LOSS, GRAD_NORM)):
        return False
    return value.isdigit() or not key.lower().endswith(("loss", "norm"))


def _counter(line: str, fields: dict[str, Field]) -> dict[str, Field]:
    """The number in a line that names no step which may yet be its step."""
    starts = {field.start for field in fields.values()}
    place = next((m for m in _OF_TOTAL.finditer(line) if m.start("count") not in starts), None)
    if place is not None:
        return {COUNT: _field(place, "count"), TOTAL + COUNT: _field(place, "total")}
    place = _ALONE.search(line)
    return {} if place is None else {COUNT: _field(place, "count" if place["count"] else "count2")}


def _numbers_without_key(line: str, bar: re.Match[str] | None, format: Format | None, fields: dict[str, Field]) -> tuple[int, int]:
    """Rank, bar, and the place in the epoch; returns the part of the line that needs no further reading."""
    if rank := _RANK.match(line):
        fields[RANK] = _field(rank, next(i for i, g in enumerate(rank.groups(), 1) if g is not None))
    elif label := _LABEL.match(line):
        fields[LABEL] = _field(label, 1)
    if bar:
        fields[BAR], fields[BAR_TOTAL] = _field(bar, "bar"), _field(bar, "total")
    place = format.extra.search(line) if format is not None and format.extra is not None else _POSITION.search(line)
    if place is None:
        told = _LOSS_AT.search(line)
        if told is None or any(word["eval"] for word in _CONTEXT.finditer(line, 0, told.start())):
            return 0, 0
        fields[told["what"]], fields[told["key"]] = _field(told, "at"), _field(told, "value")
        return told.span()
    for group, value in place.groupdict().items():
        if value is not None:
            key = group.rstrip("2345")
            fields[{"total": TOTAL + "iter", "rank": RANK}.get(key, key)] = _field(place, group)
    return (place.start("iter3") if place.groupdict().get("iter3") else place.start()), place.end()


def _field(m: re.Match[str], group: str | int, key: str | None = None) -> Field:
    """The field whose number is one group of a match, and whose printed key is another."""
    digits = () if key is None else tuple(m.start(key) + i for i, c in enumerate(m[key]) if "0" <= c <= "9")
    return Field(m.start(group), pattern_of(m[group]), digits)
