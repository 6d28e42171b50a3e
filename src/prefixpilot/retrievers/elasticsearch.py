"""Elasticsearch 8 and 9 by its official client, synchronous and asynchronous."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from prefixpilot.errors import MissingExtraError, RetrieverError
from prefixpilot.retrievers.search_server import SearchServerRetriever, SearchSettings

try:
    from elasticsearch import ApiError, AsyncElasticsearch, Elasticsearch, TransportError, UnsupportedProductError
    from elasticsearch.helpers import streaming_bulk
except ImportError:
    raise MissingExtraError("elasticsearch", 'pip install "prefixpilot[elasticsearch]"') from None


class ElasticsearchRetriever(SearchServerRetriever):
    """Finds blocks in an index of an Elasticsearch.

    The client's major version must not be above the server's; a client of version 8 speaks with servers of 8 and 9.
    """

    server = "Elasticsearch"
    errors = (ApiError, TransportError)

    def __init__(
        self,
        settings: SearchSettings,
        client: Elasticsearch | None = None,
        async_client: AsyncElasticsearch | None = None,
    ) -> None:
        """See :class:`prefixpilot.retrievers.search_server.SearchServerRetriever`."""
        super().__init__(settings, client, async_client)

    def _bulk(self, client: Any, actions: Iterator[dict[str, Any]]) -> Iterable[tuple[bool, Mapping[str, Any]]]:
        return streaming_bulk(client, actions, raise_on_error=False)

    def _named(self, error: Exception) -> RetrieverError:
        if isinstance(error, UnsupportedProductError):
            remedy = "use OpenSearchRetriever for OpenSearch, or mend the address of the client"
            return RetrieverError(f"what answered is no Elasticsearch; {remedy}")
        if isinstance(error, ApiError):
            return self.refused(error.meta.status, error.body)
        return self.unreachable(error)
