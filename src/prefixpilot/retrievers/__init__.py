"""Retrievers: ranked context blocks for a query, by the libraries that people use. One file and one extra each."""

from prefixpilot.retrievers.base import AsyncRetriever, BatchRetriever, MemoryStore, Retrieved, Retriever

__all__ = ["AsyncRetriever", "BatchRetriever", "MemoryStore", "Retrieved", "Retriever"]
