"""``prefixpilot top``: a live view of a running proxy, in the terminal."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import time
import urllib.error
import urllib.request
from typing import Any, Final, NoReturn

from prefixpilot.cli.top_frame import Reading, frame, samples_of
from prefixpilot.errors import ConfigError

TOKEN_VARIABLE: Final = "PREFIXPILOT_ADMIN_TOKEN"
TIMEOUT_S: Final = 5.0
MAX_BYTES: Final = 16 << 20
UNREACHABLE: Final = 1
_DIRECT: Final = urllib.request.build_opener(urllib.request.ProxyHandler({}))
"""The token goes to the address that was given, and to no proxy of the environment."""
_CLEAR: Final = "\x1b[H\x1b[2J"
_HIDE: Final = "\x1b[?25l"
_SHOW: Final = "\x1b[?25h"

DESCRIPTION = """\
Show how a running proxy does: the engine's hit rate, saved tokens, cached tokens predicted against reported ones, why
they differ, and the same by route. Refreshed until Ctrl-C. Nothing is asked of the engine.
"""

EPILOG = f"""\
Figures are the engine's own counts where it reports them; - is unknown. Predictions and routes need the engine's cache
to be followed (cache.events or cache.token_ids of `prefixpilot serve`). The bearer token that the proxy asks for
(admin.token) is read from the file of --token-file, else from the variable {TOKEN_VARIABLE}.

examples:
  prefixpilot top http://127.0.0.1:8765
  prefixpilot top http://127.0.0.1:8765 --once           one frame, for a pipe or a ticket

exit status: 0, 1 if the proxy cannot be reached, 2 for bad input (the reason is one line on stderr)
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command ``top``."""
    parser = subparsers.add_parser(
        "top",
        help="a live view of a running proxy",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("url", metavar="URL", help="of the proxy, such as http://127.0.0.1:8765")
    parser.add_argument("--once", action="store_true", help="print one frame and end")
    parser.add_argument(
        "--interval", type=_seconds, default=2.0, metavar="S", help="seconds between frames (default %(default)g)"
    )
    parser.add_argument("--token-file", metavar="FILE", help="file that holds the admin token")


def run(args: argparse.Namespace) -> int:
    """Show frames. Returns the exit status."""
    url, token = _base(args.url), _token(args.token_file)
    try:
        if args.once:
            print(frame(url, read(url, token), width=_width()))
        else:
            _watch(url, token, args.interval)
    except UnreachableError as error:
        print(f"prefixpilot top: {error}", file=sys.stderr)
        return UNREACHABLE
    return 0


def _watch(url: str, token: str | None, interval: float) -> NoReturn:
    before: Reading | None = None
    live = sys.stdout.isatty()
    try:
        while True:
            now = read(url, token)
            print((_HIDE + _CLEAR if live else "") + frame(url, now, before, width=_width()), flush=True)
            before = now
            time.sleep(interval)
    finally:
        if live:
            print(_SHOW, end="", flush=True)


class UnreachableError(Exception):
    """The proxy did not answer, or not as a proxy of ours does."""


def read(url: str, token: str | None) -> Reading:
    """Ask a proxy for its figures.

    Raises:
        ConfigError: it asks for another token, or there is no proxy of ours at this address.
        UnreachableError: it does not answer.
    """
    stats = _document(_get(f"{url}/stats", token))
    if not isinstance(stats, dict) or "uptime_s" not in stats:
        raise ConfigError("URL", f"{url}/stats is not that of a PrefixPilot proxy", "give the address of `serve`")
    return Reading(time.monotonic(), stats, samples_of(_get(f"{url}/metrics", token).decode("utf-8", "replace")))


def _document(data: bytes) -> Any:
    """``None`` for what is no JSON."""
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None


def _get(url: str, token: str | None) -> bytes:
    request = urllib.request.Request(url, headers={} if token is None else {"Authorization": f"Bearer {token}"})
    try:
        with _DIRECT.open(request, timeout=TIMEOUT_S) as response:
            data: bytes = response.read(MAX_BYTES)
            return data
    except urllib.error.HTTPError as error:
        with error:
            if error.code == 401:
                remedy = f"give it with --token-file or in {TOKEN_VARIABLE}"
                raise ConfigError("token", "is not the admin token of this proxy", remedy) from None
            if error.code == 404:
                raise ConfigError("URL", f"{url} is not there", "give the address of `serve`") from None
            raise UnreachableError(f"{url} answers with {error.code}") from None
    except (OSError, ValueError) as error:
        reason: Any = getattr(error, "reason", error)
        raise UnreachableError(f"{url} does not answer ({reason})") from None


def _base(url: str) -> str:
    if not url.startswith(("http://", "https://")):
        raise ConfigError("URL", f"is {url!r}", "write http://HOST:PORT")
    return url.rstrip("/").removesuffix("/v1").rstrip("/")


def _token(path: str | None) -> str | None:
    if path is None:
        return os.environ.get(TOKEN_VARIABLE) or None
    from prefixpilot.proxy.configuration import Secret

    try:
        return Secret.read(path).value
    except ValueError as error:
        raise ConfigError("--token-file", str(error), "give a file that holds the token") from None


def _width() -> int:
    """Of the terminal; what goes into a file or a pipe is not cut."""
    return shutil.get_terminal_size((sys.maxsize, 24)).columns


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0.1 <= value <= 3600:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds from 0.1 to 3600")
    return value
