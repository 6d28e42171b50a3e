"""Asks an engine over HTTP, for the doctor. Standard library only; every wait and every answer has a bound."""

from __future__ import annotations

import json
from collections.abc import Mapping
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Any, Final
from urllib.parse import urlsplit

from prefixpilot.engines.doctor.facts import Answer
from prefixpilot.errors import ConfigError

MAX_BYTES: Final = 8 << 20


class Client:
    """Of one engine; each request on a connection of its own, so that a balancer may choose anew.

    Args:
        url: base URL, with or without ``/v1``.
        key: sent as a bearer token; shown nowhere.
        timeout_s: bound of each wait.

    Raises:
        ConfigError: no http or https URL, or one with a user or a password.
    """

    def __init__(self, url: str, key: str | None = None, timeout_s: float = 120.0) -> None:
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError as error:
            raise ConfigError("URL", f"is {url!r} ({error})", "give http://127.0.0.1:8000") from None
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
            raise ConfigError("URL", f"is {url!r}", "give the engine's base URL, such as http://127.0.0.1:8000")
        if parts.username is not None or parts.password is not None:
            raise ConfigError("URL", "holds a user name or a password", "name a variable that has the key: --key-env")
        self.host: str = parts.hostname
        self._port = port
        self._secure = parts.scheme == "https"
        self._root = parts.path.rstrip("/").removesuffix("/v1")
        self._headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        self._timeout_s = timeout_s

    def get(self, path: str) -> Answer:
        """GET. Raises nothing."""
        return self._ask("GET", path, None)

    def post(self, path: str, body: Mapping[str, Any]) -> Answer:
        """POST of a JSON object. Raises nothing."""
        return self._ask("POST", path, json.dumps(body).encode())

    def _ask(self, method: str, path: str, body: bytes | None) -> Answer:
        kind = HTTPSConnection if self._secure else HTTPConnection
        connection = kind(self.host, self._port, timeout=self._timeout_s)
        headers = dict(self._headers) if body is None else {**self._headers, "Content-Type": "application/json"}
        try:
            connection.request(method, self._root + path, body, headers)
            response = connection.getresponse()
            data = response.read(MAX_BYTES)
            named = {name.lower(): value for name, value in response.getheaders()}
            return Answer(response.status, named, data)
        except (OSError, HTTPException, ValueError) as error:
            return Answer(0, {}, (str(error) or type(error).__name__).encode())
        finally:
            connection.close()
