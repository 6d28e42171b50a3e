"""Mem0 as a memory store: the library in this process, its hosted platform, or a server of one's own."""

from __future__ import annotations

import asyncio
import inspect
import json
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from typing import Any

from prefixpilot.core import ContextBlock
from prefixpilot.errors import ConfigError, MissingExtraError, RetrieverError
from prefixpilot.retrievers.base import BatchRetriever, Retrieved, check_query
from prefixpilot.retrievers.corpus import corpus_of, distinct

_LIBRARIES = (("mem0.exceptions", "MemoryError"), ("httpx", "HTTPError"), ("openai", "OpenAIError"))
"""Modules, if they are loaded, and the base of what they raise: Mem0, and what it asks for embeddings."""


class Mem0Server:
    """A Mem0 server of one's own (the REST server of its open-source project), with ``add`` and ``search`` as ``mem0``
    has them. For the hosted platform use ``mem0.MemoryClient``."""

    def __init__(self, url: str, api_key: str | None = None, timeout: float = 30.0) -> None:
        """
        Args:
            url: where it is: ``http://127.0.0.1:8888``.
            api_key: sent as ``X-API-Key``.
            timeout: seconds that one request may take.

        Raises:
            ConfigError: ``url`` is no HTTP address, or ``timeout`` is not above 0.
        """
        if not url.startswith(("http://", "https://")):
            raise ConfigError("url", f"is {url!r}", "give an address that begins with http:// or https://")
        if not timeout > 0:
            raise ConfigError("timeout", f"is {timeout!r}", "give seconds above 0")
        self._url = url.rstrip("/")
        self._headers = {"Content-Type": "application/json", **({} if api_key is None else {"X-API-Key": api_key})}
        self._timeout = timeout

    def add(self, messages: Sequence[Mapping[str, str]], **scope: Any) -> Any:
        """``POST /memories``. Raises RetrieverError."""
        return self._post("/memories", {"messages": list(messages), **scope})

    def search(self, query: str, **how: Any) -> Any:
        """``POST /search``. Raises RetrieverError."""
        return self._post("/search", {"query": query, **how})

    def _post(self, path: str, body: Mapping[str, Any]) -> Any:
        request = urllib.request.Request(self._url + path, json.dumps(body).encode(), self._headers)
        try:
            with urllib.request.urlopen(request, timeout=self._timeout) as response:
                return json.load(response)
        except urllib.error.HTTPError as error:
            told = error.read(2000).decode(errors="replace")
            raise RetrieverError(f"Mem0 refused with status {error.code} ({told}); look at its log") from error
        except OSError as error:
            told = str(getattr(error, "reason", error))
            raise RetrieverError(f"Mem0 did not answer ({told}); start it, or mend the url") from error
        except ValueError as error:
            raise RetrieverError(f"Mem0's answer is no JSON ({error}); mend the url") from error


class Mem0Store(BatchRetriever):
    """One owner's memories as blocks: id and text of the memory, never its score or date, so that a memory has the same
    bytes in every prompt.

    Satisfies :class:`prefixpilot.retrievers.MemoryStore`. Memories of equal score are in the order of their texts;
    those of equal text are one block.
    """

    def __init__(
        self,
        memory: Any,
        *,
        user_id: str | None = None,
        agent_id: str | None = None,
        run_id: str | None = None,
        infer: bool = False,
        threshold: float | None = None,
    ) -> None:
        """
        Args:
            memory: ``mem0.Memory``, ``MemoryClient``, their asynchronous forms, or :class:`Mem0Server` (``mem0ai`` 2).
                The caller's to configure and to close.
            user_id, agent_id, run_id: whose memories these are; at least one. What was added under all those that
                are given is found.
            infer: let a language model make memories of what is added. ``False`` keeps texts as they are.
            threshold: the least score of what is found; ``None`` is Mem0's own (0.1).

        Raises:
            ConfigError: no owner, or ``memory`` has no ``add`` and ``search``.
        """
        owner = {"user_id": user_id, "agent_id": agent_id, "run_id": run_id}
        self._owner = {name: value for name, value in owner.items() if value}
        if not self._owner:
            raise ConfigError("user_id", "is not given", "give user_id, agent_id or run_id: memories are somebody's")
        if not callable(getattr(memory, "add", None)) or not callable(getattr(memory, "search", None)):
            raise ConfigError("memory", f"is {type(memory).__name__}", "give mem0.Memory(), a client, or Mem0Server")
        self._memory = memory
        self._infer = infer
        self._threshold = {} if threshold is None else {"threshold": threshold}
        self._is_async = inspect.iscoroutinefunction(memory.search)

    @classmethod
    def from_config(cls, config: Mapping[str, Any], **options: Any) -> Mem0Store:
        """A store on ``mem0.Memory.from_config(config)``; ``options`` are those of the constructor.

        Raises:
            MissingExtraError: ``mem0ai`` is not installed.
        """
        try:
            from mem0 import Memory
        except ImportError:
            raise MissingExtraError("mem0ai", 'pip install "prefixpilot[mem0]"') from None
        return cls(Memory.from_config(dict(config)), **options)

    def add(self, texts: Sequence[str]) -> None:
        """Remember ``texts``, repeats among them once. (The hosted platform takes a moment until they are found.)

        Raises:
            InvalidRequestError: one string for a list, or a text that is none or is blank.
            RetrieverError: Mem0 failed.
        """
        if messages := _messages(texts):
            self._synchronous()
            try:
                self._memory.add(messages, infer=self._infer, **self._owner)
            except _failures() as error:
                raise _failed(error) from error

    async def aadd(self, texts: Sequence[str]) -> None:
        """:meth:`add` without holding the event loop."""
        if not self._is_async:
            await asyncio.to_thread(self.add, texts)
        elif messages := _messages(texts):
            try:
                await self._memory.add(messages, infer=self._infer, **self._owner)
            except _failures() as error:
                raise _failed(error) from error

    def retrieve_batch(self, queries: Sequence[str], k: int) -> list[Retrieved]:
        """See :meth:`prefixpilot.retrievers.BatchRetriever.retrieve_batch`; a search each. Blank ones find none."""
        check_query(queries, k)
        self._synchronous()
        try:
            answers = [self._memory.search(query, **self._how(k)) if query.strip() else None for query in queries]
        except _failures() as error:
            raise _failed(error) from error
        return [_found(answer, k) for answer in answers]

    async def aretrieve_batch(self, queries: Sequence[str], k: int) -> list[Retrieved]:
        """The same by an asynchronous ``memory``; in a thread if it is none."""
        if not self._is_async:
            return await super().aretrieve_batch(queries, k)
        check_query(queries, k)
        try:
            answers = [await self._memory.search(query, **self._how(k)) if query.strip() else None for query in queries]
        except _failures() as error:
            raise _failed(error) from error
        return [_found(answer, k) for answer in answers]

    def _how(self, k: int) -> dict[str, Any]:
        return {"filters": dict(self._owner), "top_k": k, **self._threshold}

    def _synchronous(self) -> None:
        if self._is_async:
            raise ConfigError("memory", "is asynchronous", "use the asynchronous methods, or give its other form")


def _messages(texts: Sequence[str]) -> list[dict[str, str]]:
    return [{"role": "user", "content": block.text or ""} for block in corpus_of(texts)] if texts else []


def _found(answer: Any, k: int) -> Retrieved:
    """``None`` is the answer to a query that was not asked."""
    if answer is None:
        return Retrieved((), ())
    try:
        hits = [(float(hit.get("score") or 0), str(hit["memory"]), str(hit["id"])) for hit in answer["results"]]
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        problem = f"Mem0's answer cannot be read ({type(error).__name__}: {error})"
        raise RetrieverError(f"{problem}; PrefixPilot knows mem0ai 2 and its server") from error
    best_first = sorted(hits, key=lambda hit: (-hit[0], hit[1:]))
    return distinct(((ContextBlock(text, id=name), score) for score, text, name in best_first if text.strip()), k)


def _failures() -> tuple[type[Exception], ...]:
    """What may be raised. A library that is not loaded has raised nothing."""
    known = [getattr(sys.modules[module], name) for module, name in _LIBRARIES if module in sys.modules]
    return (OSError, ValueError, *known)


def _failed(error: Exception) -> RetrieverError:
    told = str(error).split("\n", 1)[0]
    return RetrieverError(f"Mem0 failed ({type(error).__name__}: {told}); look at its configuration and its services")
