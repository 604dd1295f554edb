"""Resolve every release of MLX in the table, and write docs/releases.md.

With --index the table itself is renewed first: when each release of MLX and mlx-lm was published,
by an index that says so (PEP 700). With --results the releases that were measured there show how
they ended.
"""

import argparse
import json
import re
import urllib.request
from dataclasses import asdict
from pathlib import Path

from kvpeak.base.errors import UserError
from kvpeak.base.files import write_text
from kvpeak.base.tables import csv_text
from kvpeak.base.untrusted import read_csv
from kvpeak.environments.releases import TABLE, Release, numbers, releases
from kvpeak.environments.resolve import Resolution, resolve
from kvpeak.report.markdown import table

OLDEST = {"mlx": (0, 26, 5), "mlx-lm": (0, 21)}  # what has a wheel for Linux, and what goes with it
HEAD = """# The releases of MLX, and what each runs in

Written by `workflow/scripts/release_table.py`. Each release of MLX has a wheel for Linux without a GPU. A commit of the matrix that names MLX alone,
`packages: {mlx: 0.28.0}`, gets the mlx-lm of its time: the newest that was published before the MLX after it. Everything else is
resolved as of that moment (column *until*), with hashes, when the matrix is planned. A pre-release is taken only where a release asks for
one. What cannot be resolved is planned as unavailable, with the resolver's reason.

Which of them changed a peak, `kvpeak bisect` finds without measuring them all ([an example](findings/2026-12-releases/README.md)). It goes on
where it was stopped:

    kvpeak bisect --matrix config/releases/matrix.yaml --good mlx-0.26.5 --bad mlx-0.32.4 \\
        --cell qwen2-tiny/alice-512/cat/none/laboratory --above 300

"""  # noqa: E501


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--index", metavar="URL", help="renew the table from this package index")
    parser.add_argument("--results", type=Path, help="a folder with summary.csv")
    parser.add_argument(
        "--out", type=Path, default=Path("docs/releases.md"), help="default: %(default)s"
    )


def run(given: argparse.Namespace) -> None:
    if given.index:
        write_text(TABLE, renewed(given.index))
        releases.cache_clear()
    found = {each.version: resolve({"mlx": each.version}) for each in releases("mlx")}
    write_text(given.out, document(found, ended(given.results) if given.results else {}))
    print(
        f"{given.out}: {len(found)} releases, {sum(bool(r.lock) for r in found.values())} resolve"
    )


def renewed(index: str) -> str:
    """The table as CSV text. Raises UserError if the index does not say when files were
    published.
    """
    rows = []
    for package, oldest in OLDEST.items():
        published = first_files(_page(index, package), package)
        for version in sorted(published, key=numbers):
            if numbers(version) >= oldest:
                rows.append(asdict(Release(package, version, published[version][:19] + "Z")))
    return csv_text(Release.__annotations__, rows)


def first_files(page: dict, package: str) -> dict[str, str]:
    """version → when its first file came, of an index's page; pre-releases and withdrawn ones are
    left out.
    """
    found: dict[str, str] = {}
    name = re.escape(package).replace(r"\-", "[-_]")
    for file in page["files"]:
        match = re.match(rf"{name}-(\d+(?:\.\d+)*)(?:-|\.tar)", file["filename"])
        if match and not file.get("yanked"):
            if "upload-time" not in file:
                raise UserError("--index: does not say when files were published (PEP 700)")
            version, at = match[1], file["upload-time"]
            found[version] = min(found.get(version, at), at)
    return found


def _page(index: str, package: str) -> dict:
    asked = urllib.request.Request(
        f"{index.rstrip('/')}/{package}/",
        headers={"Accept": "application/vnd.pypi.simple.v1+json"},
    )
    try:
        with urllib.request.urlopen(asked, timeout=60) as answer:
            return json.load(answer)
    except (OSError, ValueError) as error:
        raise UserError(f"--index {index}: {package}: {error}") from None


def ended(results: Path) -> dict[str, dict[str, str]]:
    """commit → variant → the peak in MiB, or how it ended, from summary.csv."""
    found: dict[str, dict[str, str]] = {}
    for row in read_csv(results / "summary.csv", ("commit", "variant", "outcome")):
        peak = row["peak_footprint_mib"]
        said = f"{float(peak):,.0f}" if row["outcome"] == "ok" and peak else row["outcome"]
        found.setdefault(row["commit"], {})[row["variant"]] = said
    return found


def document(found: dict[str, Resolution], peaks: dict[str, dict[str, str]]) -> str:
    """docs/releases.md: a row for each release, and the reason for each that does not resolve."""
    published = {each.version: each.published[:10] for each in releases("mlx")}
    variants = list(dict.fromkeys(name for each in peaks.values() for name in each))
    header = ["MLX", "published", "mlx-lm", "resolved", "until", "packages"]
    header += [f"{name}, MiB" for name in variants]
    body = [
        [
            version,
            published[version],
            each.packages.get("mlx-lm", ""),
            each.how or "unavailable",
            (each.until or "")[:10],
            str(len(re.findall(r"^\S", each.lock, re.MULTILINE))),
            *(peaks.get(f"mlx-{version}", {}).get(name, "–") for name in variants),
        ]
        for version, each in found.items()
    ]
    text = HEAD + str(table(header, body, "     r" + "r" * len(variants))) + "\n"
    if variants:
        text += (
            "\nPeaks are those of config/releases/matrix.yaml's cells; what did not end well says "
            "how it ended.\n"
        )
    reasons = [f"- {v}: {r.unavailable}\n" for v, r in found.items() if r.unavailable]
    return text + ("\nUnavailable:\n\n" + "".join(reasons) if reasons else "")
