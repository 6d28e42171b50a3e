"""Without an extra its module says how to install it; a progress bar is for terminals only."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
import termios

import pytest

EXTRAS = [
    ("bm25", "bm25s", "bm25s", "bm25"),
    ("faiss", "faiss", "faiss-cpu", "faiss"),
    ("elasticsearch", "elasticsearch", "elasticsearch", "elasticsearch"),
    ("opensearch", "opensearchpy", "opensearch-py", "opensearch"),
]

INDEXING = (
    "from prefixpilot.retrievers.bm25 import BM25Retriever;"
    "BM25Retriever.build([f'document {n}' for n in range(600)], progress=True)"
)


@pytest.mark.parametrize(("module", "package", "name", "extra"), EXTRAS)
def test_a_missing_extra_is_named(module: str, package: str, name: str, extra: str) -> None:
    code = f"import sys; sys.modules[{package!r}] = None; import prefixpilot.retrievers.{module}"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    told = run.stderr.strip().split("\n")[-1]
    assert told.endswith(f'MissingExtraError: {name} is not installed; run: pip install "prefixpilot[{extra}]"')


def test_the_local_model_is_an_extra_too() -> None:
    code = (
        "import sys; sys.modules['wordllama'] = None\n"
        "from prefixpilot.retrievers.faiss import FaissRetriever\nFaissRetriever.build(['tea'])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert 'wordllama is not installed; run: pip install "prefixpilot[local-embeddings]"' in run.stderr


def test_the_contract_needs_no_extra() -> None:
    code = (
        "import sys; import prefixpilot.retrievers, prefixpilot.retrievers.mem0, prefixpilot.retrievers.tree_search;"
        "assert not {'bm25s', 'faiss', 'elasticsearch', 'opensearchpy', 'mem0', 'wordllama'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], timeout=60, check=True)


def test_no_bar_where_stderr_is_no_terminal() -> None:
    run = subprocess.run([sys.executable, "-c", INDEXING], capture_output=True, text=True, timeout=60, check=True)
    assert (run.stdout, run.stderr) == ("", "")


def test_a_bar_on_a_terminal() -> None:
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, 80))
    try:
        subprocess.run([sys.executable, "-c", INDEXING], stderr=theirs, timeout=60, check=True)
        os.set_blocking(ours, False)
        assert b"BM25 index" in os.read(ours, 65536)
    finally:
        os.close(ours)
        os.close(theirs)
