"""The result tables: every column with its unit and meaning. docs/columns.md is made from this
(columns.py).
"""

from dataclasses import dataclass

from kvpeak.base.axes import AXES

COUNTS = (  # whole numbers of at most nine digits
    *("round", "run", "rounds", "runs", "outputs", "turn", "sequence", "first_difference"),
    *("prompt_tokens", "generated_tokens", "reused_tokens"),
)
# What may be below zero: without the power of the idle machine there may be less than nothing.
SIGNED = (
    *("temperature_c", "prefill_j", "decode_j", "idle_w"),
    *("prefill_j_per_token", "decode_j_per_token"),
)
LOWER_BOUND = "lower bound"  # part of what the source of a peak says of itself if it was sampled


@dataclass(frozen=True)
class Column:
    """One column; `unit` is '' for text, and for a number without one."""

    name: str
    unit: str
    meaning: str


@dataclass(frozen=True)
class Table:
    """One kind of CSV file and its columns, in order."""

    path: str
    rows: str  # what a row is
    columns: tuple[Column, ...]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.columns)

    @property
    def numbers(self) -> tuple[str, ...]:
        """The columns that hold numbers and nothing else."""
        return tuple(each.name for each in self.columns if each.unit or each.name in COUNTS)

    @property
    def key(self) -> tuple[str, ...]:
        """Those that no two rows have in common; () where rows are told by more."""
        told = (*AXES, "round", "run")
        return () if "turn" in self.names else tuple(each for each in told if each in self.names)


def columns(*described: tuple[str, str, str]) -> tuple[Column, ...]:
    return tuple(Column(*each) for each in described)


# Columns of RUNS and SUMMARY that hold a speed: what is fast, and its unit.
SPEEDS = {
    "prefill_tok_s": ("prefill", "tok/s"),
    "ttft_ms": ("time to first token", "ms"),
    "decode_tok_s": ("decode", "tok/s"),
}

# Columns of PROCESSES and SUMMARY that hold energy: the phase's joules and tokens in RUNS.
ENERGY = {
    "prefill_j_per_token": ("prefill_j", "prompt_tokens"),
    "decode_j_per_token": ("decode_j", "generated_tokens"),
}
_ENERGY_COLUMNS = (
    ("prefill_j_per_token", "J", "joules of the recorded prefills / their prompt tokens"),
    ("decode_j_per_token", "J", "joules of the recorded decodes / their tokens after the first"),
    ("idle_w", "W", "the power of the idle machine, which is taken off; mean of before and after"),
    ("energy_source", "", "which counter, and of what (measurement.md); empty: none without root"),
)

# Columns of PROCESSES and SUMMARY that hold memory, in MiB.
PEAKS = (
    "peak_footprint_mib",
    "peak_pool_mib",
    "peak_active_mib",
    "peak_rss_mib",
    "peak_tree_mib",
    "peak_device_mib",
    "peak_reserved_mib",
    "loaded_mib",
)

# Columns of both that say in which phase the headline was seen, and what importing the loop took.
_PHASES = columns(
    (
        "sampled_load_mib",
        "MiB",
        "the headline's largest sample before the first run; of the processes whose memory.csv is "
        "there",
    ),
    ("sampled_run_mib", "MiB", "its largest sample from the first run to the last, likewise"),
    ("sampled_end_mib", "MiB", "its largest sample after the last run, likewise"),
    ("loop_mib", "MiB", "resident memory that importing the engine's loop took"),
)

_MEANINGS = {
    "commit": "the engine's revision, a name of `commits` in the matrix",
    "model": "a name of `models`",
    "prompt": "a name of `prompts`",
    "kv_cache": "how keys and values are kept",
    "cap": "the cap on the buffer pool; `default`: the engine's own, `none`: no cap",
    "variant": "a name of `variants`: the engine's options",
}
_AXES = columns(*((axis, "", _MEANINGS[axis]) for axis in AXES))
_ROUND = columns(("round", "", "the process's number, from 1"))
_COUNTS = columns(
    ("prompt_tokens", "tokens", "the prompt's length; of a workload all that were computed"),
    ("generated_tokens", "tokens", "how many were generated; of a workload by all its parts"),
)
_WORKLOAD = columns(
    (
        "workload",
        "",
        "a prompt that is more than one text: `turns`, `repeat` or `batch` with their number, or "
        "`shared_prefix` with its tokens, such as `batch 8`; empty: one text",
    )
)

PLAN = Table(
    "results/plan.csv",
    "one process of one planned cell",
    _AXES
    + _ROUND
    + columns(
        ("runs_here", "", "yes or no"),
        ("reason", "", "why it does not run here; empty if it does"),
        ("path", "", "the folder of its results"),
    ),
)

RUNS = Table(
    "results/runs.csv, results/cells/…/runs.csv",
    "one run of one process, warm-up included",
    _AXES
    + _ROUND
    + columns(
        ("run", "", "the run's number in its process, from 0"),
        ("warmup", "", "true for a warm-up run, which enters no mean"),
    )
    + _COUNTS
    + columns(
        ("prefill_s", "s", "start of the forward pass to its logits being ready"),
        ("prefill_tok_s", "tok/s", "prompt tokens / prefill_s"),
        (
            "ttft_ms",
            "ms",
            "start of the forward pass to the first token id on the host; of a workload that of "
            "its first prompt",
        ),
        ("decode_s", "s", "first token id on the host to the last one"),
        (
            "decode_tok_s",
            "tok/s",
            "(generated tokens − 1) / decode_s; of a workload less one for each of its parts",
        ),
        (
            "prefill_j",
            "J",
            "the energy of the prefill, that of the idle machine taken off; empty without a "
            "counter, where it did not rise, and where the phase has fewer than ten of its steps",
        ),
        ("decode_j", "J", "the same of decode"),
        ("tokens_sha256", "", "SHA-256 of the generated ids; equal hashes are equal answers"),
        ("peak_active_mib", "MiB", "the allocator's most live bytes in this run"),
        ("peak_pool_mib", "MiB", "its most live plus cached (free, kept) bytes in this run"),
        ("order", "", "the cell's number in the order of measurement"),
        ("started_at", "", "when the process started, UTC"),
        ("temperature_c", "°C", "before the process: the GPU's, else that of the hottest sensor"),
        (
            "thermal_pressure",
            "",
            "macOS, before the process: 0 nominal, 1 moderate, 2 heavy, 3 trapping, 4 sleeping",
        ),
    ),
)

TURNS = Table(
    "results/turns.csv",
    "one turn of a session, one request, or one sequence of a batch, in one run",
    _AXES
    + _ROUND
    + columns(
        ("run", "", "the run's number in its process, from 0"),
        ("warmup", "", "true for a warm-up run"),
        ("turn", "", "the turn's or request's number, from 1; empty for a batch"),
        ("sequence", "", "the sequence's number in its batch, from 1; empty for turns"),
    )
    + columns(
        ("prompt_tokens", "tokens", "tokens that were computed: what the cache holds is not again"),
        ("generated_tokens", "tokens", "how many were generated"),
        ("prefill_tok_s", "tok/s", "as in runs.csv, of this turn; empty for a batch"),
        ("ttft_ms", "ms", "the same"),
        ("decode_tok_s", "tok/s", "the same"),
        ("tokens_sha256", "", "SHA-256 of the generated ids"),
        (
            "first_difference",
            "",
            "where a sequence, or an answer on a reused cache, differs from a single run; "
            "empty: nowhere",
        ),
        ("peak_active_mib", "MiB", "the allocator's most live bytes in this turn"),
        ("peak_pool_mib", "MiB", "its most live plus cached (free, kept) bytes"),
        ("held_pool_mib", "MiB", "live plus cached bytes when it had ended"),
        ("held_rss_mib", "MiB", "the process's resident memory then"),
        ("reused_tokens", "tokens", "of a shared prefix: what was not computed again"),
        ("cache_mib", "MiB", "what the reused cache held when the request began"),
        ("cache_file_mib", "MiB", "the file, where the cache was saved and loaded again"),
        ("cache_load_ms", "ms", "opening it to every array being read; just written, it is warm"),
        ("cache_load_peak_mib", "MiB", "the allocator's most live bytes meanwhile"),
    ),
)

MEMORY = Table(
    "results/cells/…/memory.csv",
    "the largest sample of an interval of one process",
    columns(
        ("t_s", "s", "since the process started"),
        ("phase", "", "start, load, idle, prefill-N, decode-N (run N) or exit"),
        ("footprint_mib", "MiB", "macOS: physical footprint; Linux: resident set"),
        ("rss_mib", "MiB", "resident set"),
        ("device_mib", "MiB", "the process's memory on an NVIDIA GPU; empty without one"),
    ),
)

# Columns of a process and of its cell alike.
_PEAK_SOURCE = columns(
    (
        "peak_source",
        "",
        "how the headline's counter was read; one that is sampled says that it is a lower bound",
    ),
)
_HARDWARE = columns(
    (
        "hardware",
        "",
        "which machine, and which NVIDIA GPU: a hash of the machine's name and size, the GPU's "
        "UUID",
    ),
)

PROCESSES = Table(
    "results/processes.csv",
    "one process of one cell that was measured here",
    _AXES
    + _ROUND
    + columns(
        (
            "outcome",
            "",
            "`ok`, `oom`, `guard`, `timeout`, `unsupported`, `skipped`, or `unreadable`: its files "
            "are damaged",
        ),
        ("runs", "", "how many recorded runs"),
    )
    + _WORKLOAD
    + _COUNTS
    + columns(
        ("peak_footprint_mib", "MiB", "the operating system's own lifetime peak of the process"),
        ("peak_pool_mib", "MiB", "the allocator's most live plus cached (free, kept) bytes"),
        ("peak_active_mib", "MiB", "the allocator's most live bytes; does not see the pool"),
        ("peak_rss_mib", "MiB", "the largest resident set"),
        (
            "peak_tree_mib",
            "MiB",
            "the process and all it started, added, sampled (a lower bound); empty: nothing seen",
        ),
        ("peak_device_mib", "MiB", "the largest sampled memory on an NVIDIA GPU: a lower bound"),
        (
            "peak_reserved_mib",
            "MiB",
            "CUDA: the most that the driver's asynchronous pool reserved; a part of the device's",
        ),
        ("loaded_mib", "MiB", "the allocator's live bytes after loading"),
    )
    + _PHASES
    + _PEAK_SOURCE
    + columns(
        ("prefill_tok_s", "tok/s", "mean over its recorded runs"),
        ("ttft_ms", "ms", "the same of the time to first token"),
        ("decode_tok_s", "tok/s", "the same of decode"),
        *_ENERGY_COLUMNS,
        (
            "tokens_sha256",
            "",
            "of the generated ids, `differs` if not all recorded runs gave the same",
        ),
        ("outputs", "", "how many different answers its recorded runs gave; 1: they repeat"),
    )
    + _HARDWARE
    + columns(
        ("flags", "", "why the measurement is doubtful; empty if nothing is"),
        ("detail", "", "what an outcome other than `ok` says"),
    ),
)

# What a cell.json says in words of its cell, from which counter to which BLAS.
_SAID = (
    _PEAK_SOURCE
    + columns(
        ("method", "", "`live`, `replayed: real` (with memory behind it) or `replayed: counted`"),
        ("weights", "", "`real` or `random`"),
        ("machine", "", "processor, number of CPUs, memory"),
    )
    + _HARDWARE
    + columns(
        ("accelerator", "", "`metal`, `cuda` or `cpu`; empty for a replay"),
        (
            "gpu",
            "",
            "which of several NVIDIA GPUs, where cells ran side by side; empty where the cell had "
            "the machine for itself",
        ),
        ("versions", "", "the engine's packages, with their versions"),
        ("loop", "", "the generation loop: `own`, or `mlx-lm` (its generate_step as it is)"),
        (
            "attention",
            "",
            "`fused`, the engine's own kernel, or `naive`, scores that are materialised",
        ),
        ("env", "", "the environment variables that the variant sets, NAME=value"),
        (
            "cap_bytes",
            "bytes",
            "the pool's limit as the allocator gave it back; empty where it keeps no pool",
        ),
        ("prefill_chunk", "", "tokens of the prompt taken in at a time, or `whole`"),
        ("pool_rule", "", "the rule in the place of the allocator's own; empty for its own"),
        ("recorded", "", "`yes` where the run's allocations were recorded, which takes memory"),
        ("repeat_penalty", "", "the penalty on repeated tokens; 1: none"),
        (
            "blas",
            "",
            "what computed the CPU's matrix products, and in how many threads; empty on a GPU, and "
            "where the engine does not say",
        ),
    )
)
# Columns of the summary that hold texts: the different ones of its processes.
TEXTS = (
    *("detail", "workload", "energy_source", "kv_layers", "harness", "dirty"),
    *(column.name for column in _SAID),
)

SUMMARY = Table(
    "results/summary.csv",
    "one cell that was measured here, all its processes together",
    _AXES
    + columns(
        ("rounds", "", "how many processes"),
        ("runs", "", "how many recorded runs in all of them"),
        (
            "outcome",
            "",
            "`ok`, or the first other one: `oom`, `guard`, `timeout`, `unsupported`, `skipped`, "
            "`unavailable`, `unreadable`",
        ),
    )
    + _WORKLOAD
    + _COUNTS
    + columns(
        (
            "peak_footprint_mib",
            "MiB",
            "the headline but under CUDA: the operating system's own lifetime peak of the process; "
            "the median of all processes, as every peak here",
        ),
        ("peak_footprint_min_mib", "MiB", "the smallest of all processes"),
        ("peak_footprint_max_mib", "MiB", "the largest of all processes"),
        ("peak_pool_mib", "MiB", "the allocator's most live plus cached (free, kept) bytes"),
        ("peak_active_mib", "MiB", "the allocator's most live bytes; does not see the pool"),
        ("peak_rss_mib", "MiB", "the largest resident set"),
        (
            "peak_tree_mib",
            "MiB",
            "the process and all it started, added, sampled (a lower bound); empty: nothing seen",
        ),
        (
            "peak_device_mib",
            "MiB",
            "the largest sampled memory on an NVIDIA GPU: a lower bound, and the headline under "
            "CUDA",
        ),
        ("peak_device_min_mib", "MiB", "the smallest of all processes"),
        ("peak_device_max_mib", "MiB", "the largest of all processes"),
        (
            "peak_reserved_mib",
            "MiB",
            "CUDA: the most that the driver's asynchronous pool reserved; a part of the device's",
        ),
        ("loaded_mib", "MiB", "the allocator's live bytes after loading"),
    )
    + _PHASES
    + columns(
        ("prefill_tok_s", "tok/s", "mean over processes of the mean over their recorded runs"),
        ("ttft_ms", "ms", "the same of the time to first token"),
        ("decode_tok_s", "tok/s", "the same of decode"),
        *_ENERGY_COLUMNS,
        ("tokens_sha256", "", "of the generated ids, `differs` if not all runs gave the same"),
        (
            "outputs",
            "",
            "how many different answers the recorded runs of all processes gave; 1: the cell "
            "repeats",
        ),
    )
    + _SAID
    + columns(
        (
            "kv_bytes_per_token",
            "bytes",
            "keys and values that one token adds, as the engine's caches hold them; from the "
            "shapes where it does not say",
        ),
        ("kv_bytes_from_shapes", "bytes", "the same by 2 · layers · KV heads · head size · bytes"),
        ("kv_difference", "", "why the two differ; empty where they do not"),
        ("kv_window_bytes", "bytes", "the most that caches with a window come to hold"),
        ("kv_state_bytes", "bytes", "states of a fixed size, such as a convolution's"),
        ("kv_layers", "", "which layers keep what, counted from 0"),
        (
            "prefill_flops",
            "FLOPs",
            "the prefill's matrix products, from the shapes; empty where they are not known, "
            "and of a workload",
        ),
        (
            "decode_bytes",
            "bytes",
            "the least that a decode step has to move: weights of the shapes, bytes of the caches; "
            "empty of a workload",
        ),
        ("harness", "", "git revision of kvpeak that measured"),
        ("dirty", "", "yes if its workflow/ had uncommitted changes"),
        ("flags", "", "why the measurement is doubtful; empty if nothing is"),
        ("detail", "", "what an outcome other than `ok` says"),
    ),
)

CHECKS = Table(
    "results/checks.csv",
    "one verdict; those not measured here share a row per claim and reason",
    columns(
        ("claim", "", "the claim's sentence in config/expected.yaml"),
        ("cells", "", "the names on the axes that the claim leaves open; of many the first 20"),
        (
            "verdict",
            "",
            "`holds`, `fails`, `does not repeat`, `not testable` or `not measured here`",
        ),
        ("detail", "", "the figures that decided it, or the reason"),
        ("source", "", "where the claim comes from"),
        ("kind", "", "the claim's kind (config/README.md)"),
        ("groups", "", "how many combinations of the open axes the row stands for"),
        ("held", "", "how many measured cells the claim was held against in them"),
    ),
)

FITS = Table(
    "results/fits.csv",
    "the longest prompt that fits into one memory, predicted; or why nothing is predicted",
    columns(
        *((axis, "", _MEANINGS[axis]) for axis in AXES if axis != "prompt"),
        ("lengths", "", "at how many lengths the cells were measured"),
        ("longest_measured", "tokens", "the longest of them"),
        ("memory_mib", "MiB", "the memory that the peak has to fit into"),
        ("machine", "", "yes if it is that of the measuring machine, or of its GPU under CUDA"),
        ("longest_tokens", "tokens", "the longest prompt whose predicted peak fits"),
        ("longest_low", "tokens", "the longest whose interval's upper end fits"),
        ("longest_high", "tokens", "the longest whose interval's lower end fits"),
        ("all_positions", "", "yes if the model has positions for no more"),
        ("positions", "tokens", "of the model; empty: not known"),
        ("times_measured", "", "longest_tokens / longest_measured"),
        ("peak_mib", "MiB", "the predicted peak of that prompt"),
        ("law", "", "how the peak grows; MiB for each unit of a term"),
        ("weights_mib", "MiB", "subtracted before the fit: the weights"),
        ("process_mib", "MiB", "subtracted before the fit: the process beside the allocator"),
        ("kept_mib", "MiB", "subtracted too: what the pool keeps, where that does not grow"),
        ("left_out_error_pct", "%", "by how much of its peak a length left out is missed, at most"),
        ("reason", "", "why nothing is predicted"),
    ),
)

COMPARISON = Table(
    "what compare.py --out FILE.csv writes",
    "one cell of either folder",
    _AXES
    + columns(
        ("outcome_before", "", "how it ended in the first folder"),
        (
            "peak_mib_before",
            "MiB",
            "its headline peak there: of the device under CUDA, else of the process",
        ),
        ("outcome_after", "", "how it ended in the second folder"),
        ("peak_mib_after", "MiB", "its peak there"),
        ("peak_ratio", "", "after / before, where both ended well"),
    )
    + tuple(
        Column(f"{name}_{part}", unit if part in ("before", "after") else "", meaning.format(what))
        for name, (what, unit) in SPEEDS.items()
        for part, meaning in {
            "before": "{}: mean over the processes of the first folder",
            "after": "{}: of the second",
            "ratio": "{}: after / before",
            "low": "lower end of the ratio's 95 % interval; empty with fewer than 4 processes a "
            "side",
            "high": "its upper end",
            "verdict": "{}: same within 5 %, faster, slower, unclear or not testable",
        }.items()
    )
    + columns(("flags", "", "why the measurement is doubtful, with the folder")),
)

_CELL = (
    ("prompt_tokens", "tokens", "the prompt's length"),
    ("kv_cache", "", "cat, cat-contiguous or prealloc"),
    ("cap", "", "none, or how many times its request a reused buffer may be"),
)
_ERROR = ("error_pct", "%", "replay / published − 1")
REPLAY = tuple(
    Table(f"results/replay/{name}.csv", rows, columns(*described))
    for name, (rows, *described) in {
        "cells": (
            "one of the finding's cells: published and replayed",
            ("prompt", "", "the finding's name of the prompt"),
            *_CELL,
            ("fornace_mib", "MiB", "the process's peak as published, measured on a Mac"),
            ("replay_mib", "MiB", "the replay's"),
            _ERROR,
        ),
        "log": (
            "one layer of the finding's allocation log: buffers of 512 MiB",
            ("layer", "", "from 0"),
            ("fornace_new", "", "made in the layer, published"),
            ("replay_new", "", "made in the layer, replayed"),
            ("fornace_held", "", "held at its softmax, published; empty: not published"),
            ("replay_held", "", "held at its softmax, replayed"),
            ("equal", "", "yes or no"),
        ),
        "other_cases": (
            "one published figure that takes no part in the fit",
            ("case", "", "what was measured"),
            ("unit", "", "of the next two; empty: a count"),
            ("published", "", "as published; GB is read as GiB"),
            ("replay", "", "the replay's"),
            _ERROR,
        ),
        "fit": (
            "one structure that was fitted to the finding's peaks",
            ("mlp_buffers", "", "of the MLP at a time"),
            ("host_mask", "", "yes if the mask's copy in ordinary memory counts"),
            ("constants", "", "how many were fitted"),
            ("capacity_factor", "", "prealloc's room, in prompt + generated tokens"),
            ("process_mib", "MiB", "the process and Metal's runtime"),
            ("worst_error_pct", "%", "the largest error of the 18 peaks"),
            ("traced_error_pct", "%", "of the traced run, which takes no part"),
            ("used", "", "yes for the one that is used"),
        ),
        "left_out": (
            "one length left out of the fit",
            ("left_out_tokens", "tokens", "the length"),
            ("capacity_factor", "", "as in fit.csv"),
            ("process_mib", "MiB", "as in fit.csv"),
            ("fitted_error_pct", "%", "the largest error of the lengths that were fitted"),
            ("predicted_error_pct", "%", "the largest error of the length that was left out"),
        ),
        "choices": (
            "one option of one choice, everything else as it is used",
            ("choice", "", "what was chosen"),
            ("option", "", "one of its options"),
            ("used", "", "yes for the one that is used"),
            ("source", "", "what the choice rests on"),
            ("log_equal", "", "layers of the allocation log that are equal, of 24"),
            ("process_mib", "MiB", "the process constant, fitted anew"),
            ("worst_error_pct", "%", "the largest error of the 18 peaks"),
        ),
        "holders": (
            "tensors of one kind that hold a buffer of a larger class than their own",
            *_CELL[1:],
            ("role", "", "which tensor"),
            ("requested_mib", "MiB", "what each asked for"),
            ("buffer_mib", "MiB", "what each holds"),
            ("tensors", "", "how many"),
            ("excess_mib", "MiB", "held by all of them beyond their own class"),
        ),
        "length": (
            "one length, predicted",
            *_CELL,
            ("peak_mib", "MiB", "the process's predicted peak"),
        ),
        "longest": (
            "the longest prompt that fits into one memory, predicted",
            *_CELL[1:],
            ("memory_gib", "GiB", "the memory that the peak has to fit into"),
            ("longest_tokens", "tokens", "the longest prompt that fits"),
            (
                "longest_low",
                "tokens",
                "if the peaks are too low by the error on left-out lengths",
            ),
            ("longest_high", "tokens", "if they are too high by it"),
            ("all_positions", "", "yes if the model has positions for no more"),
            ("peak_mib", "MiB", "the predicted peak of that prompt"),
        ),
        "slack": (
            "one prompt and cache, predicted under each cap",
            *_CELL[:2],
            *(
                (f"cap_{cap}", "MiB", f"predicted peak, cap {cap}")
                for cap in ("none", "1x", "2x", "4x", "8x")
            ),
        ),
        "models": (
            "one model, predicted",
            ("model", "", "a name of config/models"),
            ("dtype", "", "of its activations"),
            *_CELL[:2],
            ("none_mib", "MiB", "predicted peak without a cap"),
            ("none_waited_mib", "MiB", "the same, if the host waits between loading and prefill"),
            ("capped_mib", "MiB", "predicted peak with 4x"),
            ("capped_waited_mib", "MiB", "the same, if the host waits between loading and prefill"),
            ("times", "", "none_mib / capped_mib"),
        ),
        "too_large": (
            "one model and length that does not fit in some machine's memory",
            ("model", "", "a name of config/models"),
            _CELL[0],
            ("none_gib", "GiB", "predicted peak without a cap"),
            ("none_not_in_gib", "GiB", "the sizes of memory that it does not fit in"),
            ("capped_gib", "GiB", "predicted peak with 4x"),
            ("capped_not_in_gib", "GiB", "the sizes of memory that it does not fit in"),
        ),
        "questions": (
            "one open question of the finding",
            ("question", "", "the question"),
            ("prediction", "", "what the replay predicts"),
        ),
        "figure": (
            "the replay's figure",
            ("file", "", "its path from report/"),
            ("alt", "", "what it shows, in words"),
            ("caption", "", "how to read it"),
        ),
    }.items()
)

_BOTH = ("counted", "by PyTorch"), ("replayed", "from the workload's one recording")
POOLS = Table(
    "results/pools/pytorch.csv",
    "one process of PyTorch under one setting of its allocator",
    columns(
        ("workload", "", "what the process did"),
        ("setting", "", "its PYTORCH_CUDA_ALLOC_CONF, or default"),
        *((f"{how}_bytes", "bytes", f"peak of the reserved memory, {by}") for how, by in _BOTH),
        *(
            (f"{how}_active_bytes", "bytes", f"peak in live buffers, whole ones, {by}")
            for how, by in _BOTH
        ),
        *(
            (f"{how}_retries", "", f"requests tried again after free memory went back, {by}")
            for how, by in _BOTH
        ),
        ("counted_end", "", "ran, or out of memory"),
        ("replayed_end", "", "the same of the replay"),
        ("engine", "", "PyTorch and its version"),
        ("device", "", "the GPU"),
    ),
)

TABLES = (PLAN, RUNS, TURNS, PROCESSES, SUMMARY, CHECKS, FITS, MEMORY, COMPARISON, *REPLAY, POOLS)
