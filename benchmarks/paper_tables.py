"""The sections of docs/benchmarks.md that stand beside the paper's tables: from paper.json, engine.json and others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, TypeAlias

from benchmarks.markdown import machine, share, table
from benchmarks.plots import lines

Result: TypeAlias = dict[str, Any]
ARMS: Final = ("arrival", "longest prefix first", "ours online", "ours offline")
NAMES: Final = {
    "queue": "longest prefix first",
    "deduped": "ours online",
    "scheduled": "ours offline",
    "given": "contextpilot 0.5.0",
}
NOT_MEASURED: Final = "not measured"


def by_cache(result: Result) -> str:
    head = ["trace", "cache in mean requests", *ARMS, "bound"]
    rows = [
        [
            name,
            "no bound" if row["requests"] is None else f"{row['requests']}",
            *_rates(row, ARMS),
            share(trace["bound"]),
        ]
        for name, trace in result["traces"].items()
        for row in trace["by_cache"]
    ]
    return table(head, rows) + machine(result)


def by_k(result: Result) -> str:
    rows = [
        [name, str(row["k"]), *_rates(row, ARMS), share(row["bound"])]
        for name, trace in result["traces"].items()
        for row in trace["by_k"]
    ]
    return table(["trace", "k", *ARMS, "bound"], rows) + machine(result)


def over_time(result: Result) -> str:
    rows = []
    for name, trace in result["traces"].items():
        base = trace["over_time"]["arrival"]["cached_tokens"][-1]
        for arm, found in trace["over_time"].items():
            third = found["hit_rates"][:: max(1, len(found["hit_rates"]) // 5)]
            total = found["cached_tokens"][-1]
            ratio = f"{total / base:.2f}x" if base else ""
            rows.append([name, arm, " ".join(map(share, third)), f"{total:,}", ratio])
    head = ["trace", "arm", "hit rate, in each fifth of the requests", "cached tokens in all", "of arrival's"]
    plots = "".join(f"\n![{name.replace('-', ' ')}](benchmarks-{name}.svg)\n" for name in time_plots(result))
    return table(head, rows) + machine(result) + plots


def side_by_side(result: Result) -> str:
    rows = []
    for setting in result["side_by_side"]["settings"]:
        for arm in setting["arms"]:
            times = [f"{arm[name]:.2f}" for name in ("ttft_median_s", "ttft_p95_s")]
            rates = [share(arm["hit_rate"]), f"{arm['prompt_tokens']:,}", *times]
            rows.append([str(setting["concurrency"]), NAMES.get(arm["arm"], arm["arm"]), *rates, _ratio(arm["ttft"])])
    head = ["sessions at once", "arm", "hit rate", "prompt tokens", "TTFT median s", "p95 s", "median, arrival / arm"]
    return table(head, rows) + machine(result)


def components(result: Result) -> str:
    paper = {"search, Algorithm 1": "0.068", "search, ours": "0.068", "order": "0.047", "de-duplicate": "0.144"}
    rows = [
        [name, f"{cost['p50_ms']:.4f}", f"{cost['mean_ms']:.4f}", paper.get(name, "")]
        for name, cost in result["components"]["parts"].items()
    ]
    live = result["components"]["live"]
    text = f"\n\nIndex of {live:,} contexts of 15 blocks; CPU time of one thread."
    return table(["part", "median ms", "mean ms", "paper (C.3)"], rows) + text + machine(result)


def zero_overlap(result: Result) -> str:
    found = result["zero_overlap"]
    rows = [
        [
            "online, one by one",
            f"{found['requests']:,}",
            f"{found['online_cpu_s']:.3f}",
            f"{found['sent_as_given']:.0%}",
        ],
        [
            "offline, one batch",
            f"{found['requests']:,}",
            f"{found['offline_cpu_s']:.3f}",
            f"{found['sent_as_given']:.0%}",
        ],
    ]
    return table(["planning", "contexts", "CPU s in all", "sent exactly as given"], rows) + machine(result)


def engine(result: Result) -> str:
    """Each part: what the engine counted and what clients waited."""
    texts = []
    for part in result["parts"]:
        limits = [value for value in part["bound"].values() if value is not None]
        for setting in part["settings"]:
            rows = [_engine_row(arm) for arm in setting["arms"]]
            head = ["arm", "prompt tokens", "hit rate", "replay says", "computed, arrival / arm", "prefill tokens/s"]
            times = ["TTFT median s", "median, arrival / arm", "sum, arrival / arm"]
            limit = f", limit 1 / (1 - bound) = {1 / (1 - limits[0]):.2f}" if limits else ""
            title = (
                f"**{part['part']}**: {part['workload']}, {setting['arms'][0]['requests']} requests, {part['repeats']} "
                f"times, cache of {setting['cache_tokens']:,} tokens, {part['engine']}{limit}"
            )
            taken = {"machine": part.get("taken_on", result["machine"])}
            texts.append(f"{title}\n\n{table([*head, *times], rows)}{machine(taken).rstrip()}")
    return "\n\n".join(texts) + "\n"


def _engine_row(arm: Result) -> list[str]:
    predicted = arm.get("predicted_hit_rate")
    name: str = arm["arm"]
    return [
        NAMES.get(name, name),
        f"{arm['prompt_tokens']:,}",
        share(arm["hit_rate"]),
        "" if predicted is None else share(predicted),
        _ratio(arm["prefilled"]),
        f"{arm['prompt_tokens'] / arm['ttft_sum_s']:,.0f}",
        f"{arm['ttft_median_s']:.2f}",
        _ratio(arm["ttft"]),
        _ratio(arm["prefill_time"]),
    ]


def _ratio(ratio: Result | None) -> str:
    return "" if ratio is None else f"{ratio['value']:.2f} ({ratio['low']:.2f}-{ratio['high']:.2f})"


def _rates(row: Mapping[str, float], arms: tuple[str, ...]) -> Iterator[str]:
    return (share(row[arm]) for arm in arms)


def summary(results: Mapping[str, Result]) -> str:
    """The paper's figures, and ours where there are any."""
    rows = [[what, theirs, _found(ours, results)] for what, theirs, ours in _CLAIMS]
    return table(["what", "the paper's", "here"], rows) + "\n"


def _found(ours: Any, results: Mapping[str, Result]) -> str:
    try:
        return str(ours(results))
    except (LookupError, TypeError, StopIteration):
        return NOT_MEASURED


def _arm(results: Mapping[str, Result], part: str, name: str, source: str = "engine") -> Result:
    found = next(each for each in results[source]["parts"] if each["part"] == part)
    return next(arm for arm in found["settings"][0]["arms"] if arm["arm"] == name)


def _first(part: str, name: str, of: str, source: str = "engine") -> Any:
    return lambda r: f"{_ratio(_arm(r, part, name, source)[of])}"


def _cache(arms: str) -> Any:
    def found(results: Mapping[str, Result]) -> str:
        traces = results["paper"]["traces"]
        rows = {name: next(row for row in t["by_cache"] if row["requests"] == 64) for name, t in traces.items()}
        return "; ".join(f"{name} {share(row['arrival'])} -> {share(row[arms])}" for name, row in rows.items())

    return found


def _sessions(results: Mapping[str, Result]) -> str:
    settings = results["paper"]["side_by_side"]["settings"]
    largest = max(settings, key=lambda setting: setting["concurrency"])
    arm = next(arm for arm in largest["arms"] if arm["arm"] == "deduped")
    return f"{largest['concurrency']} sessions, simulated engine: {_ratio(arm['ttft'])} of arrival order"


def _scale(results: Mapping[str, Result]) -> str:
    rows = results["scale"]["paper"]["sizes"]
    return ", ".join(f"{row['requests']:,}: {row['cpu_s']:.2f} CPU s" for row in rows)


def _components(results: Mapping[str, Result]) -> str:
    parts = results["paper"]["components"]["parts"]
    wanted = ("search, ours", "order", "de-duplicate")
    return " / ".join(f"{parts[name]['mean_ms']:.3f}" for name in wanted) + " ms"


def _zero(results: Mapping[str, Result]) -> str:
    found = results["paper"]["zero_overlap"]
    seconds = f"{found['offline_cpu_s']:.2f} CPU s offline, {found['online_cpu_s']:.2f} online"
    return f"{seconds}, {found['requests']:,} contexts"


def _cumulative(results: Mapping[str, Result]) -> str:
    texts = []
    for name, trace in results["paper"]["traces"].items():
        last = {arm: found["cached_tokens"][-1] for arm, found in trace["over_time"].items()}
        if last["arrival"]:
            ratios = (last[arm] / last["arrival"] for arm in ("ours online", "ours offline"))
            texts.append(f"{name} " + " / ".join(f"{ratio:.1f}x" for ratio in ratios))
    return "; ".join(texts)


_CLAIMS: Final = (
    (
        "prefill throughput, MultihopRAG, over RadixCache (Table 2)",
        "up to 2.05x",
        _first("sessions", "scheduled", "prefill_time"),
    ),
    ("the same, one request at a time as they come", "not given", _first("sessions", "deduped", "prefill_time")),
    (
        "the same, tokens computed, all 500 requests",
        "not given",
        _first("sessions", "scheduled", "prefilled", "engine_counts"),
    ),
    ("prefill throughput over LMCache, CacheBlend (Table 2)", "up to 3.08x, 2.13x", None),
    ("TTFT, several turns, over RadixCache (Table 3a)", "up to 2.00x", _first("turns", "deduped", "ttft")),
    ("TTFT, several turns, over LMCache (Table 3a)", "3.09x to 3.45x", None),
    ("TTFT, sessions at once, over RadixCache (Table 3b)", "1.49x at 32", _sessions),
    ("index of 2,000 / 12,000 contexts (Table 3c)", "8 s CPU, 0.82 s GPU / 7.48 s GPU", _scale),
    ("search / order / de-duplicate, a request (Table 6)", "0.068 / 0.047 / 0.144 ms", _components),
    ("one hour without overlap: time added", "0.72 s", _zero),
    ("hit rate, ordering alone (Figure 8, 1.)", "MultihopRAG 4.6 -> 38.9 %; 8.49 -> 20.56 %", _cache("ours online")),
    ("hit rate, with scheduling (Figure 8, 2.)", "33.97 %", _cache("ours offline")),
    ("cached tokens in all (Figure 13)", "3.82x to 4.27x; without scheduling 2.83x", _cumulative),
    ("throughput of 16 and 32 GPUs, DeepSeek-R1 (Table 4)", "1.81x, 1.52x", None),
    (
        "answers' F1 of models of 4B to 70B (Tables 2, 5)",
        "-1.1 % to +4.4 %",
        lambda results: "a model of 135M: [quality](quality.md)",
    ),
)


def time_plots(result: Result) -> dict[str, str]:
    """SVG by name: hit rate and cached tokens over each trace."""
    made = {}
    for of, label in (("hit_rates", "hit rate"), ("cached_tokens", "cached tokens so far")):
        panels = {
            name: {arm: (found["requests"], found[of]) for arm, found in trace["over_time"].items()}
            for name, trace in result["traces"].items()
        }
        made[of.replace("_", "-")] = lines(f"{label.capitalize()}, cache of 64 mean requests", panels)
    return made


SECTIONS: Final = {
    "by-cache": ("paper", by_cache),
    "by-k": ("paper", by_k),
    "over-time": ("paper", over_time),
    "side-by-side": ("paper", side_by_side),
    "components": ("paper", components),
    "zero-overlap": ("paper", zero_overlap),
    "engine": ("engine", engine),
    "engine-counts": ("engine_counts", engine),
    "engine-whole": ("engine_whole", engine),
}
