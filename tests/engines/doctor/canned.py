"""Answers of engines, as they stand on the wire, and a client that gives them. Invented, in the engines' own shapes."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from prefixpilot.engines.doctor.facts import Answer

NOT_FOUND = Answer(404, {}, b'{"detail":"Not Found"}')


def answer(value: Any, **headers: str) -> Answer:
    body = value.encode() if isinstance(value, str) else json.dumps(value).encode()
    return Answer(200, {name.replace("_", "-"): text for name, text in headers.items()}, body)


class Canned:
    """Gives what is written down; 404 for the rest.

    Args:
        chat: answers each chat request.
    """

    def __init__(
        self,
        paths: Mapping[str, Answer | Sequence[Answer]],
        *,
        host: str = "127.0.0.1",
        chat: Callable[[Mapping[str, Any]], Answer] | None = None,
        posts: Mapping[str, Callable[[Mapping[str, Any]], Answer]] | None = None,
    ) -> None:
        self.host = host
        self.asked: list[str] = []
        self._paths = paths
        self._posts = dict(posts or {})
        if chat is not None:
            self._posts["/v1/chat/completions"] = chat

    def get(self, path: str) -> Answer:
        found = self._paths.get(path, NOT_FOUND)
        if not isinstance(found, Answer):
            found = found[min(self.asked.count(path), len(found) - 1)]
        self.asked.append(path)
        return found

    def post(self, path: str, body: Mapping[str, Any]) -> Answer:
        self.asked.append(path)
        return self._posts[path](body) if path in self._posts else NOT_FOUND


def vllm_metrics(caching: str = "True", page: int = 16, pages: int = 20_000, started: float = 1.5e9) -> Answer:
    config = (
        f'block_size="{page}",cache_dtype="auto",enable_prefix_caching="{caching}",engine="0",num_gpu_blocks="{pages}"'
    )
    return answer(
        f"# HELP process_start_time_seconds Start time.\nprocess_start_time_seconds {started}\n"
        f"vllm:cache_config_info{{{config}}} 1.0\nvllm:num_requests_running 0.0\n"
    )


VLLM: Mapping[str, Answer | Sequence[Answer]] = {
    "/v1/models": answer({"data": [{"id": "m/one", "owned_by": "vllm", "max_model_len": 8192}]}, server="uvicorn"),
    "/version": answer({"version": "0.32.0"}),
    "/metrics": vllm_metrics(),
    "/kv_event_sources": answer({"0": {"endpoint": "tcp://*:5557", "replay_endpoint": "tcp://*:5558"}}),
}

SGLANG: Mapping[str, Answer | Sequence[Answer]] = {
    "/v1/models": answer({"data": [{"id": "m/two", "owned_by": "sglang", "max_model_len": 32768}]}),
    "/get_server_info": answer(
        {
            "version": "0.5.23",
            "page_size": 1,
            "disable_radix_cache": False,
            "enable_cache_report": False,
            "kv_events_config": None,
            "dp_size": 1,
            "max_total_num_tokens": 400_000,
        }
    ),
}


def llamacpp(slots: int = 4, shows: bool = True) -> Mapping[str, Answer | Sequence[Answer]]:
    props = {"total_slots": slots, "endpoint_slots": shows, "default_generation_settings": {"n_ctx": 4096}}
    listed = {"data": [{"id": "tiny", "owned_by": "llamacpp", "meta": {"n_ctx": 4096}}]}
    return {
        "/v1/models": answer(listed, server="llama.cpp"),
        "/props": answer(props, server="llama.cpp"),
        "/metrics": answer("llamacpp:requests_processing 0\n", server="llama.cpp", process_start_time_unix="17"),
    }
