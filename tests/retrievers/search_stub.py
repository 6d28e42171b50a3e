"""A search server on the loopback that speaks the documented JSON of Elasticsearch and OpenSearch, as far as we use it.

It keeps documents, scores them by how many words of the query they have, and answers errors in the servers' own shape.
It is no search server: what is tested against it is what goes over the wire.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.retrievers.listening import Quiet, listening

ELASTIC_JSON = re.compile(r"application/vnd\.elasticsearch\+(?:json|x-ndjson); ?compatible-with=(\d+)")


@dataclass
class SearchStub:
    """What the server holds, what it was asked, and what is wrong with it.

    Attributes:
        product: ``elasticsearch`` or ``opensearch``.
        version: the major one.
        indices: documents by id, by index.
        seen: (method, path, body) of each request; a body of lines is a list.
        key: if set, what ``Authorization`` has to be.
        refuse_ids: documents that do not fit the index.
        failed_shards, timed_out: of each search from now on.
    """

    product: str = "elasticsearch"
    version: int = 9
    indices: dict[str, dict[str, dict[str, Any]]] = field(default_factory=dict)
    seen: list[tuple[str, str, Any]] = field(default_factory=list)
    key: str | None = None
    refuse_ids: frozenset[str] = frozenset()
    failed_shards: int = 0
    timed_out: bool = False
    url: str = ""

    def answer(self, method: str, path: str, headers: Mapping[str, str], body: bytes) -> tuple[int, Any]:
        """Status and body of the answer."""
        lines = [json.loads(line) for line in body.split(b"\n") if line] if body else []
        self.seen.append((method, path, lines if path.endswith(("_msearch", "_bulk")) else lines[0] if lines else None))
        if self.key is not None and headers.get("authorization") != self.key:
            return error(401, "security_exception", f"missing authentication credentials for REST request [{path}]")
        spoken = ELASTIC_JSON.match(headers.get("content-type", headers.get("accept", "")))
        if spoken and int(spoken[1]) > self.version:
            reason = (
                f"Accept version must be either version {self.version} or {self.version - 1}, but found {spoken[1]}."
            )
            return error(400, "media_type_header_exception", reason)
        match path.strip("/").split("/"):
            case [""]:
                return 200, self._info()
            case ["_msearch"]:
                pairs = zip(lines[::2], lines[1::2], strict=True)
                answers = [self._search(header["index"], search) for header, search in pairs]
                return 200, {"took": 3, "responses": answers}
            case ["_bulk"]:
                return 200, self._bulk(lines)
            case [index, "_refresh"]:
                return 200, {"_shards": {"total": 2, "successful": 1, "failed": 0}}
            case [index] if method == "HEAD":
                return (200 if index in self.indices else 404), None
            case [index] if method == "PUT":
                self.indices[index] = {}
                return 200, {"acknowledged": True, "shards_acknowledged": True, "index": index}
        return error(400, "illegal_argument_exception", f"no handler found for uri [{path}] and method [{method}]")

    def _info(self) -> dict[str, Any]:
        number = {"distribution": self.product} if self.product == "opensearch" else {"build_flavor": "default"}
        return {
            "name": "stub",
            "cluster_name": "stub",
            "version": {**number, "number": f"{self.version}.0.0", "minimum_wire_compatibility_version": "8.19.0"},
            "tagline": "You Know, for Search" if self.product == "elasticsearch" else "The OpenSearch Project",
        }

    def _search(self, index: str, search: Mapping[str, Any]) -> dict[str, Any]:
        if index not in self.indices:
            reason = f"no such index [{index}]"
            status, told = error(404, "index_not_found_exception", reason)
            return {**told, "status": status}
        if search["size"] > 10_000:
            reason = "Result window is too large, from + size must be less than or equal to: [10000]"
            status, told = error(400, "illegal_argument_exception", reason)
            return {**told, "status": status}
        hits = [self._hit(index, name, document, search) for name, document in self.indices[index].items()]
        found = sorted((hit for hit in hits if hit["_score"] is None or hit["_score"] > 0), key=by_score)
        return {
            "took": 2,
            "timed_out": self.timed_out,
            "_shards": {"total": 5, "successful": 5 - self.failed_shards, "skipped": 0, "failed": self.failed_shards},
            "hits": {
                "total": {"value": len(found), "relation": "eq"},
                "max_score": found[0]["_score"] if found else None,
                "hits": found[: search["size"]],
            },
            "status": 200,
        }

    def _hit(self, index: str, name: str, document: dict[str, Any], search: Mapping[str, Any]) -> dict[str, Any]:
        if "sort" in search:
            return {"_index": index, "_id": name, "_score": None, "_source": document, "sort": [name]}
        matched = search["query"]["multi_match"]
        words = set(" ".join(str(document.get(one, "")) for one in matched["fields"]).lower().split())
        score = float(len(words.intersection(matched["query"].lower().split())))
        source = {one: document[one] for one in search["_source"] if one in document}
        return {"_index": index, "_id": name, "_score": score, "_source": source}

    def _bulk(self, lines: list[Any]) -> dict[str, Any]:
        items = [self._put(head["index"], document) for head, document in zip(lines[::2], lines[1::2], strict=True)]
        return {"took": 30, "errors": any("error" in item["index"] for item in items), "items": items}

    def _put(self, head: Mapping[str, Any], document: dict[str, Any]) -> dict[str, Any]:
        about = {"_index": head["_index"], "_id": head["_id"]}
        if head["_id"] in self.refuse_ids:
            told = {"type": "document_parsing_exception", "reason": "[1:9] failed to parse field [text]"}
            return {"index": {**about, "status": 400, "error": told}}
        index = self.indices[head["_index"]]
        result = "updated" if head["_id"] in index else "created"
        index[head["_id"]] = document
        return {"index": {**about, "_version": 1, "result": result, "status": 201, "_seq_no": 0, "_primary_term": 1}}


def by_score(hit: Mapping[str, Any]) -> float:
    return -(hit["_score"] or 0)


def error(status: int, kind: str, reason: str) -> tuple[int, dict[str, Any]]:
    cause = {"type": kind, "reason": reason}
    return status, {"error": {"root_cause": [cause], **cause}, "status": status}


@contextmanager
def serve(stub: SearchStub) -> Iterator[SearchStub]:
    """The stub on a port of the loopback, while the block runs; its address is in ``url``."""

    class Handler(Quiet):
        protocol_version = "HTTP/1.1"

        def respond(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            target = urlsplit(self.path)
            assert "preference" not in parse_qs(target.query)  # it belongs into the header lines of _msearch
            headers = {name.lower(): value for name, value in self.headers.items()}
            status, answer = stub.answer(self.command, target.path, headers, body)
            data = b"" if answer is None else json.dumps(answer).encode()
            self.send_response(status)
            if stub.product == "elasticsearch":
                self.send_header("X-elastic-product", "Elasticsearch")
            kind = ELASTIC_JSON.match(self.headers.get("Accept", ""))
            json_type = f"application/vnd.elasticsearch+json;compatible-with={kind[1]}" if kind else "application/json"
            self.send_header("Content-Type", json_type)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(data)

        do_GET = do_HEAD = do_PUT = do_POST = respond  # noqa: N815

    with listening(Handler) as stub.url:
        yield stub
