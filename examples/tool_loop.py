"""An agent that reads files: a file that it reads again, unchanged, is named and not sent a second time."""

import os

from openai import OpenAI

from prefixpilot.rag import RagSession

FILES = {"app.py": "import lib\n" + "print(lib.f(1))\n" * 30, "lib.py": "def f(x):\n" + "    x += 1\n" * 40}
PATH = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
TOOLS = [{"type": "function", "function": {"name": "read_file", "description": "Read a file.", "parameters": PATH}}]


def read_file(path: str) -> str:
    return FILES.get(path, f"There is no file {path}.")


session = RagSession(OpenAI(), model=os.environ.get("MODEL", "smollm2"), system="You mend programs.", tools=TOOLS)
answer = session.ask("What does app.py print?", ["Style guide: four spaces."], functions={"read_file": read_file})

print(f"{answer.calls} calls, {answer.usage.prompt_tokens} prompt tokens, {answer.usage.cached_tokens} from the cache")
for message in session.messages:
    if message["role"] == "tool":
        print(f"sent: {message['content'].splitlines()[0]}")
