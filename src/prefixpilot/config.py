"""Settings of the façade. Frozen; each validates itself."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, TypeAlias, get_args

from prefixpilot.annotations import DEFAULT_TEMPLATES, Templates
from prefixpilot.errors import ConfigError

Planner = Literal["shared-tokens", "paper"]
Schedule = Literal["depth-first", "paper"]
Matcher = Literal["prefix", "paper"]
TailOrder = Literal["adaptive", "relevance", "popularity", "popularity-tokens", "mix", "chain", "co-occurrence"]
LabelSource = Literal["counted", "ids"]
Annotate: TypeAlias = int | Literal["all"]
Normalization = Literal["none", "whitespace", "unicode"]


@dataclass(frozen=True, slots=True)
class PilotConfig:
    """Settings of a :class:`~prefixpilot.ContextPilot`.

    Attributes:
        alpha: weight of the position term of Eq. 1; the paper's range is [0.001, 0.01].
        planner: how a batch is ordered. ``shared-tokens`` agglomerates by the tokens saved; ``paper`` is Algorithm 4.
        schedule: how a batch is scheduled. ``depth-first`` walks the tree; ``paper`` is Algorithm 5.
        matcher: how a request finds its place online. ``prefix`` follows only prefixes that were sent, and takes the
            one of most tokens; ``paper`` is Algorithm 1, and needs the paper's planner.
        tail: what follows the matched prefix online. ``relevance`` keeps the retriever's order (Algorithm 2);
            ``co-occurrence`` puts first what recent contexts held together, ``adaptive`` does so where it pays; the
            others are simpler fixed policies (see :mod:`prefixpilot.tails.policies`).
        labels: ``counted`` numbers blocks along the conversation, so that equal earlier bytes have equal labels;
            ``ids`` uses the caller's ids, as the paper's examples do.
        normalization: which texts count as the same block: equal bytes, equal up to runs of whitespace, or that and
            Unicode compatibility forms (NFKC). The first-seen text is what is rendered.
        templates: the wording of annotations and labels.
        annotate: the order annotation names at most so many blocks, the most relevant ones; 0 adds none, ``all`` names
            all, as the paper does. A label costs 6 to 7 tokens.
        gate: leave requests untouched (given order, no annotation) while ordering does not pay for its annotations on
            their route, which is their tenant and scope. They are learnt from all the same. Not for batches.
        max_contexts: live requests kept in the index, over all tenants; the least recently used goes first.
        max_blocks: block records kept.
        max_conversations: conversation records kept.
        page_size: tokens of a page of the engine's cache; the shared-token planner counts in whole pages.
        max_displacement: how far a block may stand from its retriever rank, for requests that do not say; ``None`` for
            no bound. See :class:`~prefixpilot.Constraints`.
        cache_tokens: KV capacity of the engine in tokens, if known: the index then keeps no more than that.
        device: where the paper's planner compares contexts: a device of PyTorch (``cuda``), or ``None`` for the CPU by
            NumPy. Plans are the same.
        device_from: batches of fewer contexts are compared on the CPU all the same.
    """

    alpha: float = 0.001
    planner: Planner = "shared-tokens"
    schedule: Schedule = "depth-first"
    matcher: Matcher = "prefix"
    tail: TailOrder = "adaptive"
    labels: LabelSource = "counted"
    normalization: Normalization = "none"
    templates: Templates = field(default=DEFAULT_TEMPLATES)
    annotate: Annotate = 5
    gate: bool = False
    max_contexts: int = 100_000
    max_blocks: int = 1_000_000
    max_conversations: int = 100_000
    page_size: int = 1
    max_displacement: int | None = None
    cache_tokens: int | None = None
    device: str | None = None
    device_from: int = 4096

    def __post_init__(self) -> None:
        if type(self.alpha) not in (float, int) or not 0.001 <= self.alpha <= 0.01:
            raise ConfigError("alpha", f"is {self.alpha!r}", "use a value in [0.001, 0.01]")
        if not isinstance(self.templates, Templates):
            raise ConfigError("templates", f"is {type(self.templates).__name__}", "give a Templates object")
        for name, kind in _CHOICES.items():
            if getattr(self, name) not in get_args(kind):
                allowed = ", ".join(get_args(kind))
                raise ConfigError(name, f"is {getattr(self, name)!r}", f"use one of: {allowed}")
        for name in ("max_contexts", "max_blocks", "max_conversations", "page_size", "device_from"):
            if type(getattr(self, name)) is not int or getattr(self, name) < 1:
                raise ConfigError(name, f"is {getattr(self, name)!r}", "use an int of 1 or more")
        if self.max_displacement is not None and not _is_count(self.max_displacement):
            raise ConfigError("max_displacement", f"is {self.max_displacement!r}", "use an int of 0 or more, or None")
        if self.annotate != "all" and not _is_count(self.annotate):
            raise ConfigError("annotate", f"is {self.annotate!r}", "use an int of 0 or more, or 'all'")
        if type(self.gate) is not bool:
            raise ConfigError("gate", f"is {self.gate!r}", "use True or False")
        if self.matcher == "paper" and self.planner != "paper":
            raise ConfigError("matcher", "is 'paper'", "set planner='paper' too")
        if self.cache_tokens is not None and (type(self.cache_tokens) is not int or self.cache_tokens < 1):
            raise ConfigError("cache_tokens", f"is {self.cache_tokens!r}", "use an int of 1 or more, or None")
        if self.device is not None and (not isinstance(self.device, str) or not self.device):
            raise ConfigError("device", f"is {self.device!r}", "use a name that torch.device knows, or None")

    def device_for(self, contexts: int) -> str | None:
        """The device for a batch of so many contexts."""
        return self.device if contexts >= self.device_from else None


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


_CHOICES = {
    "planner": Planner,
    "schedule": Schedule,
    "matcher": Matcher,
    "tail": TailOrder,
    "labels": LabelSource,
    "normalization": Normalization,
}
