"""Writes the tables and plots of docs/benchmarks.md from benchmarks/results/*.json, between its markers.

python -m benchmarks.tables
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import paper_tables
from benchmarks.machine import RESULTS
from benchmarks.markdown import machine, share, table
from benchmarks.plots import bars

DOCUMENT = Path(__file__).parents[1] / "docs" / "benchmarks.md"


def ordering(result: dict[str, Any], side: str) -> str:
    arms = list(next(iter(result["traces"].values()))[side])
    head = ["trace", *(["bound"] if side == "offline" else []), *arms]
    rows = []
    for name, trace in result["traces"].items():
        best = max(rates[-1] for rates in trace[side].values())
        cells = [" / ".join(map(share, trace[side][arm])) if arm in trace[side] else "not run" for arm in arms]
        marked = [
            f"**{cell}**" if trace[side].get(arm, [0])[-1] == best else cell
            for arm, cell in zip(arms, cells, strict=True)
        ]
        rows.append([name, *([share(trace["bound"])] if side == "offline" else []), *marked])
    return table(head, rows) + machine(result)


def optimum(result: dict[str, Any]) -> str:
    def cell(of: dict[str, float] | None) -> str:
        return f"{of['mean']:.4f} / {of['worst']:.3f}" if of else "nothing shared"

    rows = [
        [name, str(t["draws_that_share"]), cell(t["shared tokens"]), cell(t["paper"])]
        for name, t in result["traces"].items()
    ]
    return table(["trace", "draws", "shared tokens (ours)", "paper's clustering"], rows) + machine(result)


def scale(result: dict[str, Any]) -> str:
    rows = []
    for planner in ("paper", "shared-tokens"):
        growth = ["", *map(str, result[planner]["growth_exponents"])]
        for row, exponent in zip(result[planner]["sizes"], growth, strict=True):
            figures = [f"{row['wall_s']:.2f}", f"{row['cpu_s']:.2f}", str(row["peak_mib"]), str(row["input_mib"])]
            rows.append([planner, f"{row['requests']:,}", *figures, exponent])
    head = ["planner", "requests", "wall s", "CPU s", "peak MiB", "of it input MiB", "growth exponent"]
    return table(head, rows) + machine(result)


def peer_cost(result: dict[str, Any]) -> str:
    rows = []
    for cost in result["cost"]:
        for side in ("ours", "peer"):
            c = cost[side]
            ratio = [
                str(cost[f"peer_over_ours_{n}"]) if side == "peer" else "" for n in ("batch_cpu_s", "online_p50_ms")
            ]
            rows.append(
                [
                    f"{cost['contexts']:,}",
                    side,
                    *(str(c[n]) for n in ("batch_wall_s", "batch_cpu_s")),
                    ratio[0],
                    str(c["peak_mib"]),
                    *(str(c[n]) for n in ("online_p50_ms", "online_p99_ms")),
                    ratio[1],
                    str(c["online_failed"]),
                ]
            )
    head = ["contexts", "side", "batch wall s", "batch CPU s", "peer / ours", "peak MiB"]
    return table([*head, "online p50 ms", "p99 ms", "peer / ours", "failed of 100"], rows) + machine(result)


def peer_growth(result: dict[str, Any]) -> str:
    rows = [
        [
            f"{row['contexts']:,}",
            *(str(row[side][of]) for side in ("ours", "peer") for of in ("p50_ms", "p99_ms")),
            str(row["peer_over_ours_p50"]),
        ]
        for row in result["growth"]
    ]
    head = ["live contexts", "ours p50 ms", "p99 ms", "peer p50 ms", "p99 ms", "peer / ours p50"]
    failed = result["growth"][-1]["peer_failed_of_all"]
    return table(head, rows) + f"\n\nCPU milliseconds; {failed} of the peer's calls failed." + machine(result)


def peer_rates(result: dict[str, Any]) -> str:
    arms = ["ours offline", "peer offline", "ours online", "peer online"]
    rows = [
        [name, *(" / ".join(map(share, trace[arm])) for arm in arms), str(trace["peer online failed calls"])]
        for name, trace in result["hit_rate"].items()
    ]
    return table(["trace", *arms, "peer online: failed calls"], rows) + machine(result)


def referee(result: dict[str, Any]) -> str:
    def cell(pair: list[float]) -> str:
        return share(pair[0]) if pair[0] == pair[1] else f"{share(pair[0])} ({share(pair[1])})"

    arms = list(next(iter(result["traces"].values())))
    rows = [[name, *(" / ".join(map(cell, trace[arm])) for arm in arms)] for name, trace in result["traces"].items()]
    return table(["trace", *arms], rows) + machine(result)


SECTIONS: dict[str, tuple[str, Callable[[dict[str, Any]], str]]] = {
    "offline": ("ordering", lambda r: ordering(r, "offline")),
    "online": ("ordering", lambda r: ordering(r, "online")),
    "optimum": ("optimum", optimum),
    "scale": ("scale", scale),
    "scale-compiled": ("scale_compiled", scale),
    "scale-large": ("scale_large", scale),
    "scale-large-compiled": ("scale_large_compiled", scale),
    "peer-cost": ("peer_batch", peer_cost),
    "peer-growth": ("peer_growth", peer_growth),
    "peer-rates": ("peer_rates", peer_rates),
    "referee": ("referee", referee),
    **paper_tables.SECTIONS,
}


def fill(text: str) -> str:
    """``text`` with each section between ``<!-- NAME -->`` and ``<!-- end -->`` written anew, or said not to be run."""
    results = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(RESULTS.glob("*.json"))}
    for name, (source, write) in SECTIONS.items():
        missing = f"Not run yet: there is no `benchmarks/results/{source}.json`.\n"
        text = _filled(text, name, write(results[source]) if source in results else missing)
    return _filled(text, "summary", paper_tables.summary(results))


def _filled(text: str, name: str, body: str) -> str:
    before, marker, after = text.partition(f"<!-- {name} -->\n")
    return before + marker + body + "<!-- end -->" + after.partition("<!-- end -->")[2] if marker else text


def plots() -> dict[str, str]:
    """SVG by the name of its file."""
    made = {}
    ordered, paper = (RESULTS / f"{name}.json" for name in ("ordering", "paper"))
    if ordered.exists():
        traces = json.loads(ordered.read_text(encoding="utf-8"))["traces"]
        for side, title, cell in (
            ("offline", "Offline: share of prompt tokens cached, cache of 4 mean requests", 0),
            ("online", "Online: share of prompt tokens cached, cache without bound", -1),
        ):
            groups = {name: {arm: rates[cell] for arm, rates in t[side].items()} for name, t in traces.items()}
            made[f"benchmarks-{side}"] = bars(title, groups)
    if paper.exists():
        found = paper_tables.time_plots(json.loads(paper.read_text(encoding="utf-8")))
        made.update({f"benchmarks-{name}": svg for name, svg in found.items()})
    return made


def main() -> int:
    parser = argparse.ArgumentParser(description="Tables and plots of docs/benchmarks.md from the results.")
    parser.add_argument("--out", type=Path, default=DOCUMENT.parent, help="folder (default: docs/)")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / DOCUMENT.name).write_text(fill(DOCUMENT.read_text(encoding="utf-8")), encoding="utf-8")
    for name, svg in plots().items():
        (args.out / f"{name}.svg").write_text(svg, encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
