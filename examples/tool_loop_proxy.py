"""The same agent without us in its code: `prefixpilot serve` stands between it and the engine, and does the same."""

import json
import os
from typing import Any

from openai import OpenAI

FILES = {"app.py": "import lib\n" + "print(lib.f(1))\n" * 30, "lib.py": "def f(x):\n" + "    x += 1\n" * 40}
PATH = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
TOOLS: Any = [{"type": "function", "function": {"name": "read_file", "description": "Read.", "parameters": PATH}}]

client = OpenAI()  # OPENAI_BASE_URL names the proxy: http://127.0.0.1:8765/v1
messages: list[Any] = [{"role": "user", "content": "What does app.py print?"}]
while True:
    answer = client.chat.completions.create(model=os.environ.get("MODEL", "smollm2"), messages=messages, tools=TOOLS)
    message = answer.choices[0].message
    messages.append(message.to_dict())
    if not message.tool_calls:
        break
    for call in message.tool_calls:
        if call.type == "function":
            path = json.loads(call.function.arguments)["path"]
            messages.append({"role": "tool", "tool_call_id": call.id, "content": FILES[path]})

results = sum(message["role"] == "tool" for message in messages)
print(f"{results} results, {answer.usage.prompt_tokens if answer.usage else None} tokens in the last prompt")
