"""The pages for users: their samples run, their commands exist, and what they list is what there is."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.docs import changes, reference
from tests.docs.pages import DOCS, ROOT, Fence, fences, pages
from tests.retrievers.search_stub import SearchStub, serve

from prefixpilot.cli import build_parser
from prefixpilot.cli.serve_settings import ServeSettings, read_settings
from prefixpilot.formats.catalogue import RECOGNISERS
from prefixpilot.proxy import ProxySettings, RunningProxy, serve_in_thread
from prefixpilot.proxy.cache.figures import CacheFigures
from prefixpilot.proxy.configuration import Sources, as_toml, load, schema
from prefixpilot.proxy.fleet.figures import FleetFigures
from prefixpilot.proxy.metrics import Metrics
from prefixpilot.proxy.own_paths import OPEN
from prefixpilot.proxy.wire import headers as h
from prefixpilot.testing import SimulatedEngine

PROXY = "http://127.0.0.1:8765"
ENGINE = "http://127.0.0.1:8000"
SEARCH_SERVER = "http://127.0.0.1:9200"
PAGES = {path.relative_to(DOCS).as_posix(): path.read_text(encoding="utf-8") for path in pages()}
FENCES = [(name, fence) for name, page in PAGES.items() for fence in fences(page)]
LLAMA_CPP = {"--cache-ram", "--cache-reuse"}
"""Flags of an engine that begin as ours do."""
REMEDY = "run `make docs-update`, and look at what changed"


def named(found: tuple[str, Fence]) -> str:
    return f"{found[0]}:{found[1].line}"


def of(*languages: str) -> list[tuple[str, Fence]]:
    return [found for found in FENCES if found[1].language in languages]


# -- generated parts


def test_the_settings_are_those_of_the_program() -> None:
    assert reference.written(PAGES["configuration.md"]) == PAGES["configuration.md"], REMEDY


def test_every_setting_has_a_meaning_and_stands_in_the_sample_file() -> None:
    sample = reference.sample()
    for setting in schema(ServeSettings):
        assert setting.doc, setting.key
    documented = {line.removeprefix("# ").partition(" = ")[0] for line in sample.splitlines() if " = " in line}
    secrets = {"token", "cache_salt_secret", "redis_password"}
    assert documented == {setting.path[-1] for setting in schema(ServeSettings)} - secrets


def test_the_sample_file_is_the_defaults(tmp_path: Path) -> None:
    path = tmp_path / "all.toml"
    path.write_text(reference.sample(), encoding="utf-8")
    loaded = load(ServeSettings, Sources(file=path))
    assert loaded.settings == ServeSettings(reference.ENGINE) and loaded.warnings == ()


def test_its_comments_are_settings_too(tmp_path: Path) -> None:
    sample = re.sub(r"^# (?=\w+ = )", "", reference.sample(), flags=re.MULTILINE)
    sample = re.sub(r"^redis_\w+ = .*\n", "", sample, flags=re.MULTILINE)  # in the place of state_dir
    embedded = sample.index("[embedded]")
    sample = sample[:embedded]
    for key in ("admin-token", "salt", "redis-password"):
        (tmp_path / key).write_text("0123456789abcdef")
        sample = sample.replace(f"/etc/prefixpilot/{key}", str(tmp_path / key))
    path = tmp_path / "all.toml"
    path.write_text(sample, encoding="utf-8")
    first = load(ServeSettings, Sources(file=path))
    assert first.settings.tenants.header == "X-Tenant" and first.settings.admin.token is not None
    path.write_text(as_toml(first), encoding="utf-8")
    assert load(ServeSettings, Sources(file=path)).settings == first.settings


def test_print_config_takes_the_sample_file(tmp_path: Path) -> None:
    path = tmp_path / "all.toml"
    path.write_text(reference.sample(), encoding="utf-8")
    command = [sys.executable, "-m", "prefixpilot.cli", "serve", "--config", str(path), "--print-config"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (run.returncode, run.stderr) == (0, "")
    assert tomllib.loads(run.stdout)["engine"] == reference.ENGINE


# -- commands


def _serve_lines() -> Iterator[tuple[str, str]]:
    for name, page in PAGES.items():
        for line in re.findall(r"(?:^|`)((?:PREFIXPILOT_\w+=\S+ )?prefixpilot serve [^`\n]*)", page, re.MULTILINE):
            yield name, line


@pytest.mark.parametrize(("page", "line"), list(_serve_lines()))
def test_a_serve_line_is_understood(page: str, line: str, tmp_path: Path) -> None:
    (tmp_path / "prefixpilot.toml").write_text(f'engine = "{reference.ENGINE}"\n')
    words = shlex.split(line.replace("prefixpilot.toml", str(tmp_path / "prefixpilot.toml")))
    serve = words.index("serve")
    environ = dict(word.split("=", 1) for word in words[: serve - 1])
    args = build_parser().parse_args(words[serve:])
    assert read_settings(args, environ).warnings == ()


def test_there_are_serve_lines_on_every_guide() -> None:
    told = {page for page, _ in _serve_lines()}
    without = {"guides/open-webui.md", "guides/retrievers.md"}
    assert told >= {name for name in PAGES if name.startswith("guides/")} - without


def test_the_flags_that_they_name_exist() -> None:
    """Flags in prose that begin as a table of ours does."""
    known = {setting.flag for setting in schema(ServeSettings)} | {"--config", "--print-config"} | LLAMA_CPP
    tables = {setting.path[0] for setting in schema(ServeSettings) if len(setting.path) > 1}
    for name, page in PAGES.items():
        for flag in re.findall(rf"--(?:{'|'.join(sorted(tables))})-[a-z-]+", page):
            assert flag in known, (name, flag)


def test_the_keys_that_they_name_exist() -> None:
    known = {setting.key for setting in schema(ServeSettings)}
    tables = {setting.path[0] for setting in schema(ServeSettings) if len(setting.path) > 1}
    for name, page in PAGES.items():
        for key in re.findall(rf"`((?:{'|'.join(sorted(tables))})\.[a-z_.]+)(?: = [^`]*)?`", page):
            if not key.endswith((".py", ".toml", ".md")):
                assert key in known or any(one.startswith(f"{key}.") for one in known), (name, key)


def test_the_make_targets_that_they_name_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for page in PAGES.values():
        for target in re.findall(r"`make ([a-z-]+)", page):
            assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE), target


# -- samples


@pytest.mark.parametrize("found", of("toml"), ids=named)
def test_toml_is_read(found: tuple[str, Fence]) -> None:
    changes.Product(found[1].text)


@pytest.mark.parametrize("found", of("json"), ids=named)
def test_json_parses(found: tuple[str, Fence]) -> None:
    assert json.loads(found[1].text)


@pytest.fixture(scope="module")
def proxy() -> Iterator[RunningProxy]:
    with SimulatedEngine() as engine, serve_in_thread(ProxySettings(engine.base_url, port=0)) as running:
        yield running


@pytest.fixture
def engine() -> Iterator[SimulatedEngine]:
    """For samples that use no proxy: with a cold cache."""
    with SimulatedEngine() as engine:
        yield engine


def _runnable(language: str) -> list[tuple[str, Fence]]:
    """Samples that need no framework; the others are run by tests/integrations."""
    return [found for found in of(language) if found[1].runs and not found[1].needs]


@pytest.fixture(scope="module")
def search_server() -> Iterator[str]:
    with serve(SearchStub()) as stub:
        yield stub.url


@pytest.mark.parametrize("found", _runnable("python"), ids=named)
def test_python_runs(
    found: tuple[str, Fence], proxy: RunningProxy, engine: SimulatedEngine, search_server: str
) -> None:
    name, fence = found
    code = fence.text.replace(PROXY, proxy.url).replace(ENGINE, engine.base_url).replace(SEARCH_SERVER, search_server)
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert run.returncode == 0, run.stderr
    behind = [other for page, other in FENCES if page == name and other.line > fence.line]
    if behind and behind[0].language == "text":
        assert run.stdout == behind[0].text
    else:
        assert run.stdout == "This is a simulated answer.\n"


@pytest.mark.skipif(shutil.which("curl") is None or shutil.which("bash") is None, reason="needs curl and bash")
@pytest.mark.parametrize("found", _runnable("bash"), ids=named)
def test_curl_runs(found: tuple[str, Fence], proxy: RunningProxy) -> None:
    script = found[1].text.replace(PROXY, proxy.url)
    run = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert run.returncode == 0, run.stderr
    if "grep" in script:
        assert run.stdout.lower().startswith("x-prefixpilot-plan: {")
    else:
        assert "error" not in json.loads(run.stdout)


def test_some_samples_run() -> None:
    assert len(_runnable("python")) >= 3 and len(_runnable("bash")) >= 4


@pytest.mark.parametrize("found", of("python"), ids=named)
def test_python_compiles(found: tuple[str, Fence]) -> None:
    compile(found[1].text, found[0], "exec")


# -- lists


def test_the_formats_are_all_named() -> None:
    page = PAGES["guides/index.md"]
    section = page[page.index("## Formats") : page.index("## What can be gained")]
    known = {recogniser.name for recogniser in RECOGNISERS} | {"documents"}
    assert known <= set(re.findall(r"`([a-z0-9_]+)`", section))
    assert set(re.findall(r"`([a-z0-9_]+_[a-z0-9_]+)`", section)) <= known | {"free_models"}


def test_the_metrics_are_all_there_and_no_other() -> None:
    metrics = Metrics()
    CacheFigures(metrics.registry)
    FleetFigures(metrics.registry, 2)
    text = metrics.text().decode()
    exposed = {name for name in re.findall(r"^# TYPE (\w+)", text, re.MULTILINE) if not name.endswith("_created")}
    table = set(re.findall(r"^\| `(prefixpilot_\w+)`", PAGES["operations.md"], re.MULTILINE))
    assert table == exposed


def test_the_headers_are_all_there_and_no_other() -> None:
    ours = {h.CONVERSATION, h.DEDUPE, h.MAX_DISPLACEMENT, h.MODE, h.RECOGNISE, h.PLAN, h.ENGINE}
    told = {
        f"x-prefixpilot-{name.lower()}".encode()
        for page in PAGES.values()
        for name in re.findall(r"(?i)\bx-prefixpilot-([a-z-]+[a-z])", page)
    }
    assert told == ours


def test_the_paths_are_all_there(proxy: RunningProxy) -> None:
    page = PAGES["operations.md"]
    rows = dict(re.findall(r"^\| `(?:GET|POST|DELETE) (/[a-z.]+)\S*` \|.*\| (yes|no) \|$", page, re.MULTILINE))
    described = {path.split("/{")[0] for path in _described()}
    assert set(rows) == described
    assert {path.encode() for path, token in rows.items() if token == "no"} == OPEN | {b"/conversations"}


def _described() -> set[str]:
    from prefixpilot.proxy.openapi import document

    return {path for path in document()["paths"] if not path.startswith("/v1/")}


def _anchors(page: str) -> set[str]:
    """As the site's generator makes them of headings."""
    headings = re.findall(r"^#+ (.*)$", re.sub(r"^```.*?^```$", "", page, flags=re.MULTILINE | re.DOTALL), re.MULTILINE)
    return {re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", heading).strip().lower()) for heading in headings}


@pytest.mark.parametrize("name", PAGES)
def test_relative_links_lead_somewhere(name: str) -> None:
    for link, anchor in re.findall(r"\]\(([^)#:]*)(?:#([^)]*))?\)", PAGES[name]):
        target = (DOCS / name).parent / link if link else DOCS / name
        assert target.exists(), link
        assert not anchor or anchor in _anchors(target.read_text(encoding="utf-8")), (link, anchor)


def test_every_page_is_in_the_navigation() -> None:
    """Decisions are added by a hook."""
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    told = set(re.findall(r"[\w/-]+\.md", navigation))
    assert told == {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md") if path.parent.name != "decisions"}
