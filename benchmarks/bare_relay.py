"""The least that an ASGI proxy does, as a yardstick: uvicorn and aiohttp, every body read and passed on.

    python -m benchmarks.bare_relay ENGINE --port PORT [--http httptools]

Only `--http httptools` needs a package (of that name) that the extra `proxy` does not bring.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

import aiohttp
import uvicorn


class Relay:
    """An ASGI app."""

    def __init__(self, engine: str) -> None:
        self._engine = engine
        self._session: aiohttp.ClientSession | None = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await self._live(receive, send)
            return
        pieces, more = [], True
        while more:
            message = await receive()
            pieces.append(message.get("body", b""))
            more = message.get("more_body", False)
        assert self._session is not None
        url = self._engine + scope["path"]
        headers = [(k.decode(), v.decode()) for k, v in scope["headers"] if k not in (b"host", b"content-length")]
        async with self._session.request(scope["method"], url, headers=headers, data=b"".join(pieces)) as answer:
            answered = [(key.lower(), value) for key, value in answer.raw_headers]
            await send({"type": "http.response.start", "status": answer.status, "headers": answered})
            async for piece in answer.content.iter_any():
                await send({"type": "http.response.body", "body": piece, "more_body": True})
            await send({"type": "http.response.body", "body": b""})

    async def _live(self, receive: Any, send: Any) -> None:
        await receive()
        async with aiohttp.ClientSession(auto_decompress=False) as self._session:
            await send({"type": "lifespan.startup.complete"})
            await receive()
        await send({"type": "lifespan.shutdown.complete"})


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("engine")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--http", default="h11", choices=("h11", "httptools"))
    args = parser.parse_args()
    uvicorn.run(Relay(args.engine), port=args.port, http=args.http, access_log=False, log_config=None)
    return 0


if __name__ == "__main__":
    sys.exit(main())
