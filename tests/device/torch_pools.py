"""Run PyTorch on an NVIDIA GPU under several allocator settings: what the replay has to predict.

    python tests/device/torch_pools.py OUT

Eight workloads under five settings of PYTORCH_CUDA_ALLOC_CONF, each in a process of its own. OUT
gets two files: peaks.json, what the allocator itself counted in every process, and snapshots.zip,
for each workload a snapshot under the default setting (pickle, xz). About three minutes on an H200.
It needs PyTorch with CUDA and nothing else of this project.
"""

import argparse
import contextlib
import json
import lzma
import os
import pickle
import random
import subprocess
import sys
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

MIB = 2**20
SETTINGS = (
    "",
    "max_split_size_mb:64",
    "expandable_segments:True",
    "roundup_power2_divisions:4",
    "garbage_collection_threshold:0.6,max_split_size_mb:128",
)
# Whose recording ends too early, and what asks for the same without a limit.
SAME_REQUESTS = {"training_limited": "training"}
LIMITS = {"training_limited": 2200 * MIB, "out_of_memory": 900 * MIB}  # bytes
LAYERS, HIDDEN, HEADS, KV_HEADS, HEAD_DIM, INNER, VOCABULARY = 8, 512, 8, 2, 64, 1408, 32000


# The model: a Qwen2-shaped decoder with random weights, as plain functions -----------------------


def make_weights(torch, trained=False):
    generator = torch.Generator(device="cuda").manual_seed(0)

    def weight(rows, columns):
        values = torch.randn(
            rows, columns, generator=generator, device="cuda", dtype=torch.bfloat16
        )
        return (values * columns**-0.5).requires_grad_(trained)

    layers = [
        {
            "q": weight(HEADS * HEAD_DIM, HIDDEN),
            "k": weight(KV_HEADS * HEAD_DIM, HIDDEN),
            "v": weight(KV_HEADS * HEAD_DIM, HIDDEN),
            "o": weight(HIDDEN, HEADS * HEAD_DIM),
            "gate": weight(INNER, HIDDEN),
            "up": weight(INNER, HIDDEN),
            "down": weight(HIDDEN, INNER),
        }
        for _ in range(LAYERS)
    ]
    return {"embedding": weight(VOCABULARY, HIDDEN), "layers": layers}


def norm(x):
    return x * (x.float().pow(2).mean(-1, keepdim=True) + 1e-6).rsqrt().to(x.dtype)


def forward(torch, weights, tokens, cache):
    F = torch.nn.functional
    x = F.embedding(tokens, weights["embedding"])
    batch, length = tokens.shape
    for number, layer in enumerate(weights["layers"]):
        h = norm(x)
        q = (h @ layer["q"].T).view(batch, length, HEADS, HEAD_DIM).transpose(1, 2)
        k = (h @ layer["k"].T).view(batch, length, KV_HEADS, HEAD_DIM).transpose(1, 2)
        v = (h @ layer["v"].T).view(batch, length, KV_HEADS, HEAD_DIM).transpose(1, 2)
        if cache is not None:
            k, v = cache(number, k, v)
        k = k.repeat_interleave(HEADS // KV_HEADS, dim=1)
        v = v.repeat_interleave(HEADS // KV_HEADS, dim=1)
        causal = length > 1 and k.shape[2] == length
        a = F.scaled_dot_product_attention(q, k, v, is_causal=causal)
        x = x + a.transpose(1, 2).reshape(batch, length, -1) @ layer["o"].T
        h = norm(x)
        x = x + (F.silu(h @ layer["gate"].T) * (h @ layer["up"].T)) @ layer["down"].T
    return norm(x)


class Growing:
    """Keys and values concatenated at every step."""

    def __init__(self, torch):
        self.torch, self.kept = torch, {}

    def __call__(self, layer, k, v):
        if layer in self.kept:
            before_k, before_v = self.kept[layer]
            k, v = self.torch.cat([before_k, k], 2), self.torch.cat([before_v, v], 2)
        self.kept[layer] = k, v
        return k, v


class Sliding(Growing):
    """The same, cut to the last `window` positions."""

    def __init__(self, torch, window):
        super().__init__(torch)
        self.window = window

    def __call__(self, layer, k, v):
        k, v = super().__call__(layer, k, v)
        self.kept[layer] = k[:, :, -self.window :].clone(), v[:, :, -self.window :].clone()
        return k, v


class Static:
    """Made once for all positions."""

    def __init__(self, torch, batch, positions):
        shape = batch, KV_HEADS, positions, HEAD_DIM
        self.kept = [
            [torch.zeros(shape, device="cuda", dtype=torch.bfloat16) for _ in range(2)]
            for _ in range(LAYERS)
        ]
        self.filled = [0] * LAYERS

    def __call__(self, layer, k, v):
        start = self.filled[layer]
        self.filled[layer] = end = start + k.shape[2]
        for kept, new in zip(self.kept[layer], (k, v), strict=True):
            kept[:, :, start:end] = new
        return tuple(kept[:, :, :end] for kept in self.kept[layer])


# The workloads ---------------------------------------------------------------------------------


def generate(torch, weights, cache, batch, prompt, steps):
    with torch.no_grad():
        tokens = torch.arange(batch * prompt, device="cuda").view(batch, prompt) % VOCABULARY
        for _ in range(steps + 1):
            hidden = forward(torch, weights, tokens, cache)[:, -1:]
            tokens = (hidden @ weights["embedding"].T).argmax(-1)


def generation_growing(torch):
    weights = make_weights(torch)
    for _ in range(2):
        generate(torch, weights, Growing(torch), 4, 2048, 48)


def generation_static(torch):
    weights = make_weights(torch)
    for _ in range(2):
        generate(torch, weights, Static(torch, 4, 2112), 4, 2048, 48)


def generation_sliding(torch):
    weights = make_weights(torch)
    for _ in range(2):
        generate(torch, weights, Sliding(torch, 1024), 4, 1536, 48)


def serving(torch):
    """Requests of many sizes, one after another."""
    weights, chance = make_weights(torch), random.Random(1)
    for _ in range(24):
        batch, prompt = chance.choice((1, 2, 4, 8)), chance.randrange(64, 3000)
        generate(torch, weights, Growing(torch), batch, prompt, 4)


def train(torch, lengths, batch):
    F = torch.nn.functional
    weights = make_weights(torch, trained=True)
    parameters = [weights["embedding"]]
    parameters += [each for layer in weights["layers"] for each in layer.values()]
    optimizer = torch.optim.AdamW(parameters, lr=1e-4)
    for length in lengths:
        tokens = torch.arange(batch * length, device="cuda").view(batch, length) % VOCABULARY
        hidden = forward(torch, weights, tokens, None)
        logits = (hidden @ weights["embedding"].T).float()
        F.cross_entropy(logits.view(-1, VOCABULARY), tokens.view(-1)).backward()
        optimizer.step()
        optimizer.zero_grad()


def training(torch):
    train(torch, (512, 896, 640, 1152, 384, 1024, 768, 1280), 2)


def training_limited(torch):
    """The same with little more memory than it needs: it is short of it again and again."""
    limit_memory(torch, LIMITS["training_limited"])
    train(torch, (512, 896, 640, 1152, 384, 1024, 768, 1280), 2)


def two_streams(torch):
    """Tensors of many sizes on two streams, without record_stream: frees are complete at once."""
    other, chance = torch.cuda.Stream(), random.Random(2)
    held = []
    for _ in range(1500):
        with torch.cuda.stream(other if chance.random() < 0.4 else torch.cuda.default_stream()):
            size = int(2 ** chance.uniform(9, 27))
            held.append(torch.empty(size, dtype=torch.uint8, device="cuda"))
        while len(held) > 24:
            held.pop(chance.randrange(len(held)))


def out_of_memory(torch):
    """Short of memory, tried again, and at last more than there is."""
    limit_memory(torch, LIMITS["out_of_memory"])
    chance, held = random.Random(3), []
    for _ in range(1500):
        held.append(
            torch.empty(int(2 ** chance.uniform(9, 27.5)), dtype=torch.uint8, device="cuda")
        )
        while len(held) > 14:
            held.pop(chance.randrange(len(held)))
    with contextlib.suppress(torch.OutOfMemoryError):
        torch.empty(1600 * MIB, dtype=torch.uint8, device="cuda")
    held.append(torch.empty(32 * MIB, dtype=torch.uint8, device="cuda"))


def limit_memory(torch, limit):
    torch.cuda.set_per_process_memory_fraction(limit / total_memory(torch))


def total_memory(torch):
    return torch.cuda.mem_get_info()[1]


def limit_of(torch, name):
    """The limit as the allocator computes it, in bytes; None without one."""
    total = total_memory(torch)
    return int(LIMITS[name] / total * total) if name in LIMITS else None


WORKLOADS = {
    work.__name__: work
    for work in (
        generation_growing,
        generation_static,
        generation_sliding,
        serving,
        training,
        training_limited,
        two_streams,
        out_of_memory,
    )
}


# One process -----------------------------------------------------------------------------------


def run_one(name: str, setting: str, out: Path) -> None:
    import torch

    torch.cuda.init()
    torch.cuda.memory._record_memory_history(max_entries=5_000_000, context=None)
    error = ""
    try:
        WORKLOADS[name](torch)
        torch.cuda.synchronize()
    except torch.OutOfMemoryError as failed:
        error = str(failed)
    stats = torch.cuda.memory_stats()
    snapshot = torch.cuda.memory._snapshot()
    answer = {
        "workload": name,
        "snapshot": SAME_REQUESTS.get(name, name),
        "setting": setting,
        "error": error,
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name(),
        "total_memory": total_memory(torch),
        "limit": limit_of(torch, name),
        "events": len(snapshot["device_traces"][0]),
        "reserved_end": stats["reserved_bytes.all.current"],
        **{f"{key}_peak": stats[f"{key}_bytes.all.peak"] for key in PEAKS},
        **{key: stats.get(key, 0) for key in COUNTS},
    }
    if not setting:
        with lzma.open(out.with_suffix(".pickle.xz"), "wb", preset=3) as file:
            pickle.dump(snapshot, file)
    out.with_suffix(".json").write_text(json.dumps(answer))


PEAKS = ("reserved", "allocated", "active", "requested")
COUNTS = ("num_alloc_retries", "num_ooms", "num_device_alloc", "num_device_free")


def start(name: str, setting: str, out: Path) -> str:
    """Run one process; what it said if it failed."""
    environment = os.environ | {"PYTORCH_CUDA_ALLOC_CONF": setting, "PYTORCH_ALLOC_CONF": setting}
    command = [sys.executable, __file__, str(out), "--one", name, "--setting", setting]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240)
    return done.stderr[-2000:] if done.returncode else ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--jobs", type=int, default=5, help="processes at once (default 5)")
    parser.add_argument("--one", choices=WORKLOADS, help=argparse.SUPPRESS)
    parser.add_argument("--setting", default="", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        run_one(given.one, given.setting, given.out)
        return 0
    work = given.out.with_name(given.out.name + "-work")
    work.mkdir(parents=True, exist_ok=True)
    given.out.mkdir(parents=True, exist_ok=True)
    each = [
        (name, setting, work / f"{name}-{number}")
        for name in WORKLOADS
        for number, setting in enumerate(SETTINGS)
    ]
    with ThreadPoolExecutor(given.jobs) as threads:
        said = list(threads.map(lambda one: start(*one), each))
    rows, silent = [], 0
    for (name, setting, out), error in zip(each, said, strict=True):
        file = out.with_suffix(".json")
        if file.exists():
            rows.append(json.loads(file.read_text()))
        else:
            silent += 1
            rows.append({"workload": name, "setting": setting, "error": error or "no answer"})
        print(name, setting or "default", rows[-1].get("reserved_peak"), rows[-1]["error"][-200:])
    (given.out / "peaks.json").write_text(json.dumps(rows, indent=1) + "\n")
    with zipfile.ZipFile(given.out / "snapshots.zip", "w") as archive:
        for file in sorted(work.glob("*.pickle.xz")):
            archive.write(file, file.name.replace("-0.", "."))
    return int(silent > 0)


if __name__ == "__main__":
    sys.exit(main())
