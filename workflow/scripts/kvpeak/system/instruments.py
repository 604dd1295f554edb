"""Whether the counters of a cell read what is known: readings, tolerance, and a table of them."""

from dataclasses import asdict, dataclass

TOLERANCE, TOLERANCE_MIB = 0.02, 4.0
WIDTH = 80

# What a cell reports, and where: the same names as in cell.json and summary.csv, or of memory.csv's
# columns.
COUNTERS = {
    "peak_footprint_mib": "peak footprint",
    "peak_rss_mib": "peak resident size",
    "peak_tree_mib": "peak of the process tree",
    "peak_device_mib": "peak on the device",
    "peak_active_mib": "MLX's live bytes",
    "peak_pool_mib": "MLX's live and kept bytes",
    "footprint_mib": "sampled footprint",
    "rss_mib": "sampled resident size",
    "device_mib": "sampled on the device",
}
PROBES = {
    "touch": "a process that touches memory and keeps it",
    "free": "a process that touches memory, frees it and exits",
    "hold": "a process that holds a buffer of the accelerator for 50 ms",
    "pool": "a process that leaves a buffer in MLX's pool beside a live one",
    "child": "a process that starts one that touches memory",
}


@dataclass(frozen=True)
class Reading:
    """What a counter read of a probe, and what is known of it. MiB; read_mib: None if it read
    nothing.
    """

    probe: str
    counter: str
    known_mib: float
    read_mib: float | None

    @property
    def off_mib(self) -> float | None:
        """By how much it reads too much, or, below 0, too little."""
        return None if self.read_mib is None else self.read_mib - self.known_mib

    @property
    def right(self) -> bool:
        """Whether it is within 2 % or 4 MiB of what is known, in both directions."""
        allowed = max(TOLERANCE * self.known_mib, TOLERANCE_MIB)
        return self.off_mib is not None and abs(self.off_mib) <= allowed

    def record(self) -> dict:
        """The reading as it stands in results/instruments/…json."""
        words = {"process": PROBES[self.probe], "what": COUNTERS[self.counter]}
        return words | asdict(self) | {"off_mib": self.off_mib, "right": self.right}


@dataclass(frozen=True)
class Fall:
    """How the memory fell after MLX's pool was cleared. MiB; after_s: None if it did not while it
    was watched.
    """

    counter: str
    before_mib: float
    cleared_mib: float
    after_s: float | None
    left_mib: float

    def record(self) -> dict:
        found = asdict(self)
        return found | {"words": fall_words(found)}


def wrong(record: dict) -> dict[str, list[dict]]:
    """The readings of a record that are off, by counter. A counter that read nothing is not among
    them: its numbers are empty.
    """
    found: dict[str, list[dict]] = {}
    for reading in record["readings"]:
        if not reading["right"] and reading["read_mib"] is not None:
            found.setdefault(reading["counter"], []).append(reading)
    return found


def table(record: dict) -> str:
    """The readings of a record for a terminal, with what to do; at most WIDTH columns."""
    lines = [f"{record['machine']}; {record['environment']}"[:WIDTH], ""]
    lines.append(f"{'MiB':<34}{'known':>12}{'read':>12}{'off by':>12}")
    for probe, words in PROBES.items():
        readings = [each for each in record["readings"] if each["probe"] == probe]
        if readings:
            lines += [words, *map(_line, readings)]
    return "\n".join([*lines, "", *_falls(record), *advice(record)])


def _line(reading: dict) -> str:
    name, known, off = COUNTERS[reading["counter"]], reading["known_mib"], reading["off_mib"]
    if off is None:
        return f"  {name:<32}{known:>12.1f}{'–':>12}"
    mark = "" if reading["right"] else "  wrong"
    return f"  {name:<32}{known:>12.1f}{reading['read_mib']:>12.1f}{off:>+12.1f}{mark}"


def _falls(record: dict) -> list[str]:
    """One sentence for each counter whose fall was watched."""
    return [fall_words(fall) for fall in record["falls"]]


def fall_words(fall: dict) -> str:
    """How the memory fell after the pool was cleared, in one sentence."""
    what = "footprint" if fall["counter"] == "footprint_mib" else "device's memory"
    if fall["after_s"] is None:
        return f"After the pool was cleared, {fall['left_mib']:.0f} MiB of the {what} stayed."
    return f"After the pool was cleared, the {what} fell within {fall['after_s']:.2f} s."


def advice(record: dict) -> list[str]:
    """What the readings mean, and what to do, in lines of at most WIDTH columns."""
    lines = [f"Not measured: {problem}"[:WIDTH] for problem in record["problems"]]
    for counter, readings in wrong(record).items():
        worst = max(readings, key=lambda each: abs(each["off_mib"]))
        way = "too much" if worst["off_mib"] > 0 else "too little"
        lines.append(f"{COUNTERS[counter]}: reads {abs(worst['off_mib']):.1f} MiB {way}.")
    if any(each["read_mib"] is None for each in record["readings"]):
        lines += [
            "A counter without a reading: the driver does not show this process, as in a",
            "container of its own. Run outside of it, or with the host's process ids.",
        ]
    if wrong(record):
        return [
            *lines,
            "The finding marks the numbers of these counters. Close other programs and run",
            "`make doctor` again; if it stays, report it with the file that it names.",
        ]
    return lines or ["Every counter is within 2 % or 4 MiB of what is known."]
