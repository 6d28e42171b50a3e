"""Search servers (Elasticsearch, OpenSearch): the searches that are sent, and what their answers say.

Each client library has a file of its own beside this one, that sends them and knows its errors.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from prefixpilot.blocks import block_identity
from prefixpilot.core import ContextBlock
from prefixpilot.errors import ConfigError, RetrieverError
from prefixpilot.retrievers.base import BatchRetriever, Retrieved, check_query
from prefixpilot.retrievers.corpus import corpus_of, distinct, with_bar

SearchBody = Callable[[str, int], Mapping[str, Any]]
"""From a query and ``k`` to the body of a search: ``query``, ``knn``, ``retriever``, filters, whatever the server
knows. ``size`` and ``_source`` are set where it does not set them."""

_AT_ONCE = 100
"""Searches in one request."""

_REMEDIES = {
    "index_not_found_exception": "index documents first, or name an index that is there",
    "media_type_header_exception": "install a client of the server's major version, or an older one",
    "security_exception": "give the client credentials that may read the index",
}


@dataclass(frozen=True, slots=True)
class SearchSettings:
    """What is searched, and what becomes of it.

    Attributes:
        index: name, alias or pattern.
        text: the field with the text of a block; ``a.b`` is a field in a field.
        title: the field with its title; ``None`` leaves titles away.
        search: the body of a search; by default the query is matched with title and text.
        preference: sent with each search, so that the same copies of the shards answer: scores of copies differ a
            little, and the order of blocks would change from one query to the next.
    """

    index: str
    text: str = "text"
    title: str | None = "title"
    search: SearchBody | None = None
    preference: str = "prefixpilot"

    def __post_init__(self) -> None:
        for name in ("index", "text"):
            if not isinstance(getattr(self, name), str) or not getattr(self, name):
                raise ConfigError(f"SearchSettings.{name}", f"is {getattr(self, name)!r}", "give a non-empty str")

    @property
    def fields(self) -> list[str]:
        return [self.text] if self.title is None else [self.title, self.text]

    def searches(self, queries: Sequence[str], k: int) -> list[Mapping[str, Any]]:
        """A header and a body for each query, as ``_msearch`` wants them."""
        header = {"index": self.index, "preference": self.preference}
        return [part for query in queries for part in (header, self._body(query, k))]

    def _body(self, query: str, k: int) -> Mapping[str, Any]:
        wanted = {"size": k, "_source": self.fields}
        if self.search is not None:
            return {**wanted, **self.search(query, k)}
        return {**wanted, "query": {"multi_match": {"query": query, "fields": self.fields}}}

    def mappings(self) -> dict[str, Any]:
        """Of an index that is made anew."""
        return {"properties": {field: {"type": "text"} for field in self.fields}}

    def document(self, block: ContextBlock) -> dict[str, Any]:
        """A block as a document of the index."""
        titled = {} if block.title is None or self.title is None else {self.title: block.title}
        return {**titled, self.text: block.text}


class SearchServerRetriever(BatchRetriever):
    """What both servers have in common.

    A batch is one request for every 100 queries. The clients are the caller's: made, configured and closed by it.
    """

    server: str
    """Its name in messages."""

    errors: tuple[type[Exception], ...]
    """What its clients raise."""

    def __init__(self, settings: SearchSettings, client: Any, async_client: Any) -> None:
        """One client or both, each for its own methods; without ``async_client`` asynchronous ones run in a thread.

        Raises:
            ConfigError: neither is given.
        """
        if client is None and async_client is None:
            raise ConfigError("client", "is not given", "give the official client, or its asynchronous form")
        self._settings = settings
        self._client = client
        self._async_client = async_client

    def retrieve_batch(self, queries: Sequence[str], k: int) -> list[Retrieved]:
        """See :meth:`prefixpilot.retrievers.BatchRetriever.retrieve_batch`. Scores are the server's.

        Blocks with the same text and title are one. Of equal scores the lower id comes first; which of them are among
        the ``k``, the server decides. Where the search sorts by something else than scores, they are 1, 1/2, 1/3, ...

        Raises:
            RetrieverError: the server did not answer, refused, or answered in part only.
        """
        check_query(queries, k)
        found: list[Retrieved] = []
        for some in _slices(queries):
            found += self._read(self._send(self._settings.searches(some, k)), len(some))
        return found

    def _send(self, searches: list[Mapping[str, Any]]) -> Mapping[str, Any]:
        client = self._synchronous()
        try:
            return client.msearch(body=searches)  # type: ignore[no-any-return]
        except self.errors as error:
            raise self._named(error) from error

    async def aretrieve_batch(self, queries: Sequence[str], k: int) -> list[Retrieved]:
        """The same by the asynchronous client; in a thread if there is none."""
        if self._async_client is None:
            return await super().aretrieve_batch(queries, k)
        check_query(queries, k)
        found: list[Retrieved] = []
        try:
            for some in _slices(queries):
                answer = await self._async_client.msearch(body=self._settings.searches(some, k))
                found += self._read(answer, len(some))
        except self.errors as error:
            raise self._named(error) from error
        return found

    def index_documents(self, documents: Iterable[str | ContextBlock], *, progress: bool = False) -> int:
        """Add ``documents`` to the index, which is made if it is not there; a block of the same id is replaced.

        A block without an id gets one from its text, so that adding it twice is adding it once. They can be found when
        this returns.

        Args:
            progress: a bar on stderr, on a terminal only.

        Returns:
            How many distinct blocks were sent.

        Raises:
            InvalidRequestError: no documents, or one without text.
            RetrieverError: the server did not answer, or refused some; those before are in the index.
        """
        client, index, blocks = self._synchronous(), self._settings.index, corpus_of(documents)
        actions = (
            {"_index": index, "_id": _id(block), "_source": self._settings.document(block)}
            for block in with_bar(blocks, f"{self.server} index", " blocks", progress)
        )
        try:
            if not client.indices.exists(index=index):
                client.indices.create(index=index, body={"mappings": self._settings.mappings()})
            for accepted, item in self._bulk(client, actions):
                if not accepted:
                    raise self._not_indexed(item)
            client.indices.refresh(index=index)
        except self.errors as error:
            raise self._named(error) from error
        return len(blocks)

    @abstractmethod
    def _bulk(self, client: Any, actions: Iterator[dict[str, Any]]) -> Iterable[tuple[bool, Mapping[str, Any]]]:
        """Send ``actions``; whether each was accepted, and what was said of it."""

    @abstractmethod
    def _named(self, error: Exception) -> RetrieverError:
        """What :meth:`refused` or :meth:`unreachable` makes of one of ``errors``."""

    def _synchronous(self) -> Any:
        if self._client is None:
            raise ConfigError("client", "is not given", "give one, or use the asynchronous methods")
        return self._client

    def _not_indexed(self, item: Mapping[str, Any]) -> RetrieverError:
        """Of an entry of a bulk answer: ``{"index": {"_id": ..., "status": ..., "error": ...}}``."""
        entry = next(iter(item.values()))
        problem = self.refused(entry.get("status"), entry)
        return RetrieverError(f"document {entry.get('_id')} was not indexed: {problem}")

    def _read(self, answer: Mapping[str, Any], count: int) -> list[Retrieved]:
        try:
            responses = answer["responses"]
            if len(responses) != count:
                raise ValueError(f"{len(responses)} answers to {count} searches")
            return [self._found(response) for response in responses]
        except (KeyError, TypeError, ValueError) as error:
            problem = f"{self.server} gave an answer that cannot be read ({type(error).__name__}: {error})"
            raise RetrieverError(f"{problem}; look at what stands between it and here") from error

    def _found(self, response: Mapping[str, Any]) -> Retrieved:
        if "error" in response:
            raise self.refused(response.get("status"), response)
        shards = response.get("_shards", {})
        if response.get("timed_out") or shards.get("failed"):
            problem = (
                f"{self.server} answered in part ({shards.get('failed', 0)} of {shards.get('total')} shards failed)"
            )
            raise RetrieverError(f"{problem}; look at its log, or give it more time")
        return _ranked([(self._block(hit), hit.get("_score")) for hit in response["hits"]["hits"]])

    def _block(self, hit: Mapping[str, Any]) -> ContextBlock:
        text = _member(hit["_source"], self._settings.text)
        if text is None:
            problem = f"document {hit['_id']} of {hit['_index']} has no text in the field {self._settings.text!r}"
            raise RetrieverError(f"{problem}; name the field in SearchSettings(text=...)")
        title = None if self._settings.title is None else _member(hit["_source"], self._settings.title)
        return ContextBlock(text, id=hit["_id"], title=title)

    def refused(self, status: object, body: object) -> RetrieverError:
        """What is raised where the server said no: its own words, and a remedy."""
        error = body.get("error") if isinstance(body, Mapping) else body
        cause = error if isinstance(error, Mapping) else {"reason": error}
        kind = str(cause.get("type", ""))
        remedy = _REMEDIES.get(kind, "look at the search, and at the server's log")
        told = ": ".join(str(part) for part in (kind, cause.get("reason")) if part)
        return RetrieverError(f"{self.server} refused with status {status} ({told}); {remedy}")

    def unreachable(self, error: Exception) -> RetrieverError:
        """What is raised where it did not answer."""
        told = str(error).split("\n", 1)[0]
        return RetrieverError(f"{self.server} did not answer ({told}); start it, or mend the address of the client")


def _slices(queries: Sequence[str]) -> Iterator[Sequence[str]]:
    return (queries[start : start + _AT_ONCE] for start in range(0, len(queries), _AT_ONCE))


def _id(block: ContextBlock) -> str:
    return str(block_identity(block) if block.id is None else block.id)


def _member(source: Mapping[str, Any], path: str) -> str | None:
    """A text of a document; several are joined by line breaks."""
    value: Any = source
    for name in [path] if path in source else path.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    if isinstance(value, list) and value and all(isinstance(part, str) for part in value):
        return "\n".join(value)
    return value if isinstance(value, str) and value else None


def _ranked(hits: Sequence[tuple[ContextBlock, float | None]]) -> Retrieved:
    if any(score is None for _, score in hits):
        scored = [(block, 1 / rank) for rank, (block, _) in enumerate(hits, 1)]
    else:
        scored = sorted(
            ((block, float(score or 0)) for block, score in hits), key=lambda hit: (-hit[1], str(hit[0].id))
        )
    return distinct(scored, len(scored))
