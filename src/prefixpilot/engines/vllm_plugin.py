"""The entry point of vLLM's plugin group ``vllm.general_plugins``: makes the connector known that reports evictions.

vLLM calls :func:`register` in each of its processes, maybe more than once. It does nothing unless the environment
variable ``PREFIXPILOT_EVICT_URL`` names the proxy; then vLLM knows a KV connector ``PrefixPilotEvictions``, which is
used only if it is asked for: ``--kv-transfer-config '{"kv_connector": "PrefixPilotEvictions", "kv_role": "kv_both"}'``.
Nothing of vLLM is replaced or patched (``docs/decisions/0028``).
"""

from __future__ import annotations

import os
from typing import Final

URL_VARIABLE: Final = "PREFIXPILOT_EVICT_URL"
TOKEN_VARIABLE: Final = "PREFIXPILOT_EVICT_TOKEN"
CONNECTOR: Final = "PrefixPilotEvictions"
MODULE: Final = "prefixpilot.engines.vllm_connector"


def register() -> None:
    """Make the connector known to this process's vLLM, if the proxy is named and it is not known yet."""
    if not os.environ.get(URL_VARIABLE):
        return
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory

    try:
        KVConnectorFactory.register_connector(CONNECTOR, MODULE, CONNECTOR)
    except ValueError:  # it is registered already
        return
