"""The table of limits: what it says, and that a wrong one is refused by name."""

from __future__ import annotations

import datetime

import pytest

from prefixpilot.errors import ConfigError
from prefixpilot.providers.limits import CacheLimits, Lifetime, builtin_limits, read_limits


@pytest.mark.parametrize(
    ("provider", "model", "minimum", "read"),
    [
        ("anthropic", "claude-opus-5-5", 512, 0.05),
        ("anthropic", "claude-opus-5-20260724", 512, 0.1),
        ("anthropic", "claude-fable-5-1", 512, 0.025),
        ("anthropic", "claude-mythos-5", 512, 0.1),
        ("anthropic", "claude-opus-4-8", 1024, 0.1),
        ("anthropic", "claude-opus-4-7", 2048, 0.1),
        ("anthropic", "anthropic/claude-opus-4.6", 4096, 0.1),
        ("anthropic", "claude-opus-4-20250514", 1024, 0.1),
        ("anthropic", "us.anthropic.claude-haiku-4-5-20251001-v1:0", 4096, 0.1),
        ("anthropic", "claude-sonnet-4-5@20250929", 1024, 0.1),
        ("anthropic", "claude-sonnet-5", 1024, 0.1),
        ("anthropic", "a-model-of-tomorrow", 4096, 0.1),
        ("openai", "gpt-5.6-sol", 1024, 0.1),
        ("openai", "gpt-5-2025-08-07", 1024, 0.1),
        ("openai", "gpt-4.1-mini", 1024, 0.25),
        ("openai", "gpt-4o", 1024, 0.5),
        ("openai", "my-deployment", 1024, None),
        ("gemini", "gemini-2.5-flash", 2048, 0.1),
        ("gemini", "gemini-3.8-flash", 4096, 0.1),
        ("deepseek", "deepseek-chat", None, None),
        ("anthropic", "claude-haiku-5-5", 4096, 0.1),
        ("gemini", "gemini-4-argon", 4096, 0.1),
    ],
)
def test_rows(provider: str, model: str, minimum: int | None, read: float | None) -> None:
    row = builtin_limits().of(provider, model)
    assert row is not None
    assert (row.minimum_tokens, row.read) == (minimum, read)


def test_every_row_names_source_and_day() -> None:
    for row in builtin_limits().rows:
        assert row.source.startswith("https://")
        assert row.date >= datetime.date(2026, 11, 30)


def test_an_unknown_provider_has_no_row() -> None:
    assert builtin_limits().of("nobody", "claude-opus-5") is None


@pytest.mark.parametrize(
    ("host", "provider"),
    [
        ("api.anthropic.com", "anthropic"),
        ("API.OpenAI.com.", "openai"),
        ("eu.openai.azure.com", "openai"),
        ("openai.azure.com", None),
        ("localhost", None),
        ("evil-api.openai.com", None),
        ("api.openai.com.example.org", None),
    ],
)
def test_hosts(host: str, provider: str | None) -> None:
    assert builtin_limits().provider(host) == provider


def test_lifetimes_and_prices_by_ttl() -> None:
    row = builtin_limits().of("anthropic", "claude-sonnet-5")
    assert row is not None
    assert row.lifetime() == row.lifetime("5m") == Lifetime(300, 300)
    assert row.lifetime("1h") == Lifetime(3600, 3600)
    assert row.lifetime("2h") is None
    assert (row.write_price(), row.write_price("1h")) == (1.25, 2.0)
    deepseek = builtin_limits().of("deepseek", "x")
    assert deepseek is not None
    assert deepseek.lifetime() is None
    assert deepseek.write_price() is None


@pytest.mark.parametrize(("tokens", "cacheable"), [(0, 0), (1023, 0), (1024, 1024), (1151, 1024), (1152, 1152)])
def test_what_can_be_cached_of_a_prefix(tokens: int, cacheable: int) -> None:
    row = builtin_limits().of("openai", "gpt-5")
    assert row is not None
    assert row.cacheable(tokens) == cacheable


def test_a_prefix_without_published_limits_counts_whole() -> None:
    row = CacheLimits("p", ("*",), "https://example.org", datetime.date(2026, 1, 1))
    assert row.cacheable(7) == 7


ROW = """
[[row]]
provider = "p"
models = ["*"]
source = "https://example.org"
date = 2026-01-01
"""


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("[[row", "limits"),
        ("[other]", "other"),
        ("row = 3", "row"),
        ("row = [3]", "row[0]"),
        ("[[row]]", "row[0].provider"),
        (ROW.replace('provider = "p"', "provider = 3"), "row[0].provider"),
        (ROW.replace("2026-01-01", '"soon"'), "row[0].date"),
        (ROW.replace('["*"]', '["gpt-4*"]'), "row"),
        (ROW.replace('["*"]', '["GPT*"]'), "row[0].models"),
        (ROW.replace('["*"]', "[]"), "row[0].models"),
        (ROW + "minimum_tokens = 0", "row[0].minimum_tokens"),
        (ROW + "minimum_tokens = true", "row[0].minimum_tokens"),
        (ROW + "minimum = 3", "row[0].minimum"),
        (ROW + "ends = 1", "row[0].ends"),
        (ROW + "read = -0.1", "row[0].read"),
        (ROW + "lifetimes = 3", "row[0].lifetimes"),
        (ROW + "lifetimes = { 5m = [300] }", "row[0].lifetimes.5m"),
        (ROW + "lifetimes = { 5m = [300, 200] }", "row[0].lifetimes.5m"),
        (ROW + "lifetimes = { 5m = [300, 300] }", "row[0].default"),
        (ROW + 'default = "5m"', "row[0].default"),
        (ROW + "write = { 5m = 1.0 }", "row[0].write.5m"),
        (ROW + '[[host]]\nname = "x"', "host[0]"),
        (ROW + '[[host]]\nname = "X"\nprovider = "p"', "host[0].name"),
        (ROW + '[[host]]\nname = "x"\nprovider = "q"', "host[0].provider"),
    ],
)
def test_a_wrong_table_is_refused_by_name(text: str, field: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_limits(text)
    assert caught.value.field == field


def test_a_table_of_ones_own() -> None:
    table = read_limits(ROW + '[[host]]\nname = ".example.org"\nprovider = "p"')
    assert table.provider("llm.example.org") == "p"
    assert table.of("p", "anything") == table.rows[0]
