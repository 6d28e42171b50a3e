"""OpenSearch by its official client, synchronous and asynchronous."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from prefixpilot.errors import MissingExtraError, RetrieverError
from prefixpilot.retrievers.search_server import SearchServerRetriever, SearchSettings

try:
    from opensearchpy import AsyncOpenSearch, OpenSearch, OpenSearchException, TransportError
    from opensearchpy.helpers import streaming_bulk
except ImportError:
    raise MissingExtraError("opensearch-py", 'pip install "prefixpilot[opensearch]"') from None


class OpenSearchRetriever(SearchServerRetriever):
    """Finds blocks in an index of an OpenSearch."""

    server = "OpenSearch"
    errors = (OpenSearchException,)

    def __init__(
        self, settings: SearchSettings, client: OpenSearch | None = None, async_client: AsyncOpenSearch | None = None
    ) -> None:
        """See :class:`prefixpilot.retrievers.search_server.SearchServerRetriever`."""
        super().__init__(settings, client, async_client)

    def _bulk(self, client: Any, actions: Iterator[dict[str, Any]]) -> Iterable[tuple[bool, Mapping[str, Any]]]:
        answers: Iterable[tuple[bool, Mapping[str, Any]]] = streaming_bulk(client, actions, raise_on_error=False)
        return answers

    def _named(self, error: Exception) -> RetrieverError:
        if isinstance(error, TransportError) and isinstance(error.status_code, int):
            return self.refused(error.status_code, error.info)
        return self.unreachable(error)
