"""Measuring: a workload through planner and cache model, or through the real proxy and engine."""

from prefixpilot.bench.rendering import Rendering
from prefixpilot.bench.replaying import Mode, ReplayReport, SentPrompt, SentRequest, sent_prompts, simulate

__all__ = ["Mode", "Rendering", "ReplayReport", "SentPrompt", "SentRequest", "sent_prompts", "simulate"]
