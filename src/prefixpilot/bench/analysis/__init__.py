"""What a log of requests shares, what its cache misses, and what PrefixPilot would do about it. No engine is asked."""

from prefixpilot.bench.analysis.analyze import AnalysisOptions, analyze
from prefixpilot.bench.analysis.page import PageOptions, render_page
from prefixpilot.bench.analysis.report import Analysis, ArmResult

__all__ = ["Analysis", "AnalysisOptions", "ArmResult", "PageOptions", "analyze", "render_page"]
