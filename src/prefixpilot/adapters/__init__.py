"""Frameworks that people build with: each by its own extension point, one file and one extra each.

Import the file of your framework: ``prefixpilot.adapters.langchain``, ``.llamaindex``, ``.haystack``, ``.litellm``,
``.openai``. This module loads none of them.
"""

from prefixpilot.adapters.arranging import Arrangement, Arranger
from prefixpilot.adapters.conversations import Conversations, Prepared

__all__ = ["Arrangement", "Arranger", "Conversations", "Prepared"]
