"""Replay a memory trace under every buffer pool; say what to set.

A trace is what a program asked of its allocator: a snapshot of PyTorch's memory
(torch.cuda.memory._dump_snapshot), a recording of kvpeak's, CSV (docs/trace-format.md), or what
Candle would ask for (candle:qwen2.5-0.5b-instruct,cat,4097). No GPU and no PyTorch are needed.
docs/pools.md explains the policies and the columns.

  kvpeak pools snapshot.pickle --search
  kvpeak pools snapshot.pickle --memory 24GiB
  kvpeak pools run.kvtrace --policy mlx,cap:32MiB --policy candle --out pools
"""

import argparse
import json
import re
import sys
import time
from pathlib import Path

from kvpeak.base.errors import UserError
from kvpeak.base.files import write_together
from kvpeak.base.numbers import GIB, KIB, MIB, MOST_SIZE
from kvpeak.base.text import plain
from kvpeak.pools import answer as answers
from kvpeak.pools import page, settings, sources
from kvpeak.pools import trace as traces
from kvpeak.pools.answer import Answer
from kvpeak.pools.holders import at_the_peak
from kvpeak.pools.replay import Setting, policies, replay, replay_all
from kvpeak.pools.trace import Trace

CANDLE = "candle:"
BINS = 400  # parts of a time series
MOST_TOKENS = 10**7


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("traces", type=Path, nargs="*", metavar="TRACE")
    parser.add_argument(
        "--policy",
        action="append",
        metavar="POLICY[,KEY:VALUE…]",
        help="a setting to replay, as torch,max_split_size_mb:64; may be given more than once "
        "(default: the recorded one and the usual ones)",
    )
    parser.add_argument("--search", action="store_true", help="try all settings of all policies")
    parser.add_argument(
        "--memory", metavar="SIZE", help="how much there is, as 24GiB: what fits, where it fails"
    )
    parser.add_argument(
        "--out", type=Path, help="a folder for settings.csv, holders.csv, pools.json, index.html"
    )
    parser.add_argument("--save", type=Path, help=f"write the trace as {traces.SUFFIX}")
    parser.add_argument("--policies", action="store_true", help="list the policies")


def run(given: argparse.Namespace) -> None:
    if given.policies:
        for policy in policies().values():
            print(f"{policy.name:<12}{policy.meaning}")
        return
    if not given.traces:
        raise UserError("no trace: name a snapshot, a recording or a CSV file; see --help")
    limit = _bytes(given.memory) if given.memory else None
    found = [trace for path in given.traces for trace in _open(path)]
    for number, trace in enumerate(found):
        if number:
            print()
        answer = _answer(trace, given, limit)
        _print(answer)
        folder = given.out and (given.out if len(found) == 1 else given.out / str(number + 1))
        if folder:
            _write(answer, folder)
    if given.save:
        if len(found) > 1:
            raise UserError(f"--save: one trace a file, and there are {len(found)}")
        traces.write(found[0], given.save)


def _bytes(text: str) -> int:
    size = re.fullmatch(r"(\d+(?:\.\d+)?)(B|KiB|MiB|GiB|KB|MB|GB)?", text)
    if not size:
        raise UserError(f"--memory {text}: expected a size as 24GiB, 800MiB or 24000000000")
    units = {"KiB": KIB, "MiB": MIB, "GiB": GIB, "KB": 10**3, "MB": 10**6, "GB": 10**9}
    found = float(size[1]) * units.get(size[2] or "", 1)
    if not 1 <= found <= MOST_SIZE:
        raise UserError(f"--memory {text:.80}: expected at least 1 byte, and less than 2^63")
    return int(found)


def _open(path: Path) -> list[Trace]:
    if str(path).startswith(CANDLE):
        return [_candle(str(path))]
    progress = _Progress(f"reading {plain(path.name, 60)}", path.stat().st_size)
    found = sources.open_traces(path, progress.to)
    progress.end()
    return found


def _candle(name: str) -> Trace:
    """What Candle would ask for: candle:MODEL,KV_CACHE,TOKENS[,CHUNK], by its replay."""
    from kvpeak.inputs.shapes import find_shapes
    from kvpeak.replay.replay import place_of
    from kvpeak.replay.trace import candle_trace
    from kvpeak.replay.workload import KV_CACHES, workload

    model, cache, *numbers = (*name.removeprefix(CANDLE).split(","), "", "")[:5]
    numbers = [number for number in numbers if number]
    if cache not in KV_CACHES or not 1 <= len(numbers) <= 2 or not all(map(_counts, numbers)):
        raise UserError(
            f"{name}: expected candle:MODEL,KV_CACHE,TOKENS or …,TOKENS,CHUNK, the cache one of "
            f"{', '.join(KV_CACHES)}"
        )
    tokens, chunk = int(numbers[0]), int(numbers[1]) if numbers[1:] else None
    work = workload(tokens, cache, runs=1, prefill_chunk=chunk)
    blocks = candle_trace(find_shapes(model), work)
    return sources.from_blocks(blocks, place_of, name, "candle")


def _counts(text: str) -> bool:
    return text.isdecimal() and 1 <= int(text) <= MOST_TOKENS


def _answer(trace: Trace, given: argparse.Namespace, limit: int | None) -> Answer:
    limit = limit or trace.memory or None
    if given.policy:
        tried = list(dict.fromkeys(map(Setting.parse, given.policy)))
    else:
        tried = settings.everything(trace, limit) if given.search else settings.usual(trace)
    progress = _Progress("replaying", len(tried))
    outcomes = replay_all(trace, tried, limit, progress.step)
    progress.end()
    recorded = settings.recorded(trace)
    now = next((each for each in outcomes if each.setting == recorded), None)
    best = settings.best_of_engine(trace, outcomes) if not given.policy else None
    made = Answer(trace, limit, outcomes, searched=given.search)
    made.front = settings.front(outcomes)
    made.now = now and replay(trace, now.setting, limit, BINS)
    made.best = best and replay(trace, best.setting, limit, BINS)
    made.outcomes = [made.now if each is now else each for each in outcomes]
    shown = made.now or (outcomes[0] if outcomes else None)
    if shown:
        made.holders = at_the_peak(trace, shown, limit)
    return made


def _print(answer: Answer) -> None:
    trace = answer.trace
    print(f"{plain(trace.name, 100)}: {len(trace):,} events, {trace.buffers:,} buffers")
    for note in trace.notes:
        print(f"note: {plain(note, 300)}")
    print()
    print(answers.table(answer))
    if answer.limit:
        print(f"\nwith {answers.mb(answer.limit)} of memory:")
        for each in answer.outcomes if len(answer.outcomes) <= 12 else [answer.now, answer.best]:
            if each:
                print(f"  {each.setting}: {answers.fit_of(answer, each)}")
    if answer.holders:
        shown = answer.now or answer.outcomes[0]
        print(f"\nheld at the peak of {shown.setting}:")
        print(answers.holders_table(answer.holders))
    if answer.searched:
        print("\nthe front of peak against real allocations:")
        for each in answer.front:
            print(f"  {each.setting}: {answers.mb(each.reserved_peak)}, {each.made:,} allocations")
    if answer.best:
        print(f"\n{answers.sentence(answer)}")


def _write(answer: Answer, folder: Path) -> None:
    record = {
        "trace": answer.trace.name,
        "events": len(answer.trace),
        "memory": answer.limit,
        "notes": answer.trace.notes,
        "columns": answers.COLUMNS,
        "settings": answer.rows(),
        "front": [str(each.setting) for each in answer.front],
        "now": answer.now and str(answer.now.setting),
        "best": answer.best and str(answer.best.setting),
        "sentence": answers.sentence(answer) if answer.best else "",
        "series": answer.now
        and dict(zip(("reserved", "active", "requested"), answer.now.series, strict=True)),
    }
    texts = {
        "settings.csv": answers.settings_csv(answer),
        "holders.csv": answers.holders_csv(answer),
        "index.html": page.html(answer),
        "pools.json": json.dumps(record, indent=1) + "\n",
    }
    if answer.now:
        texts = {"series.csv": answers.series_csv(answer, answer.now), **texts}
    write_together(folder, texts)
    print(f"\nwritten: {folder}/index.html and the tables beside it")


class _Progress:
    """How far a step is, on standard error: rewritten on a terminal, else a line now and then."""

    def __init__(self, what: str, total: int):
        self.what, self.total, self.done = what, max(total, 1), 0
        self.live = sys.stderr.isatty()
        self.next = time.monotonic() + (0.2 if self.live else 3)
        self.shown = False

    def step(self) -> None:
        self.to(self.done + 1)

    def to(self, done: int) -> None:
        self.done = done
        if time.monotonic() < self.next:
            return
        self.next = time.monotonic() + (0.2 if self.live else 3)
        share = min(100, 100 * done // self.total)
        self.shown = True
        end = "" if self.live else "\n"
        print(
            f"{chr(13) if self.live else ''}{self.what}: {share} %",
            end=end,
            file=sys.stderr,
            flush=True,
        )

    def end(self) -> None:
        if self.shown and self.live:
            print(f"\r{' ' * (len(self.what) + 8)}\r", end="", file=sys.stderr, flush=True)
