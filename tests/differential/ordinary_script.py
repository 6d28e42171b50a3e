"""Random ordinary conversations: applications and agents that know nothing of the proxy; each prompt is judged."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final

from .applications import APPLICATIONS, NAMED, TOOLS, Application, Document, Layout, documents
from .clients import STYLES, ApiName, Asks, Entry, Result, Says, Style, Use, answer_of, body_of, extras
from .ordinary_oracle import Case, Judged, Sender, judge, remember
from .reading import Violation
from .routes import Headers, Request, Route

QUESTIONS: Final = ("Why?", "How much is it?", 'Say "yes" or \\no\\.', "Und wann, für wen? 🙂")
REPLIES: Final = ("Yes.", "Yes. It is 4 %.", "No.")
OPENING: Final = "What do the documents say?"


@dataclass(slots=True)
class Client:
    """One program that speaks for a user.

    Attributes:
        system: that of the newest request; applications make it anew each turn.
        files: what its tools find, which changes.
    """

    user: str
    app: Application
    api: ApiName
    style: Style
    more: dict[str, Any]
    pool: list[Document]
    sender: Sender
    files: dict[str, str]
    system: str = "You are of use."
    history: tuple[Entry, ...] = ()
    saved: list[tuple[Entry, ...]] = field(default_factory=list)
    last: tuple[str, tuple[Entry, ...]] | None = None
    calls: int = 0
    off: bool = False

    def headers(self) -> Headers:
        own = (("Content-Type", "application/json"), ("X-Api-Key", f"key of {self.user}"))
        return (*own, ("X-PrefixPilot-Mode", "off")) if self.off else own


class Traffic:
    """Some clients and a route; ``step`` does one thing that applications do.

    Args:
        world: makes the texts of this traffic unlike those of others; equal worlds share them.
        strict: no error of ours is injected, so that everything is promised.
    """

    def __init__(self, rng: Random, route: Route, world: str, *, strict: bool = True) -> None:
        self.rng = rng
        self.route = route
        self.strict = strict
        self.seen: Counter[str] = Counter()
        self.layouts: dict[str, Layout] = {}
        self.found: dict[str, list[Document]] = {}
        self.senders: dict[str, Sender] = {}
        self.api: ApiName = rng.choice(("chat", "chat", "responses", "messages"))
        app = rng.choice(APPLICATIONS if rng.random() < 0.8 else NAMED)
        users = rng.choice((("ann",), ("ann", "bob"), ("ann", "ann"), ("ann", "bob", "bob")))
        self.clients = [self._client(f"{user}{world}", app, world) for user in users]

    def _client(self, user: str, app: Application, world: str) -> Client:
        rng = self.rng
        pool = documents(rng, user, world)
        files = {d.name: d.text for d in rng.sample(pool, 3)}
        files["notes.txt"] = "short"
        sender = self.senders.setdefault(user, Sender(doubt=not self.strict))
        client = Client(user, app, self.api, rng.choice(STYLES), extras(rng, self.api), pool, sender, files)
        client.off = rng.random() < 0.05
        if self.api == "chat" and rng.random() < 0.15:
            client.more["model"] = rng.choice(("ibm-granite/granite-3.3-8b-instruct", "command-r"))
        return client

    def run(self, steps: int) -> None:
        """So many steps of random clients. Raises Violation."""
        if self.rng.random() < 0.5:
            for client in self.clients:
                self.ask(client, OPENING)
        for _ in range(steps):
            self.rng.choice(_STEPS)(self, self.rng.choice(self.clients))

    # -- steps

    def ask(self, client: Client, question: str = "") -> None:
        question = question or self.rng.choice(QUESTIONS)
        asks = self._question(client, question)
        says = Says(self.rng.choice(REPLIES), thinking="hm" if self.rng.random() < 0.2 else "")
        if not self.send(client, (*client.history, asks), says):
            return
        if client.app.rebuilt:
            client.history = (*client.history[:-2], asks._replace(text=question), says)

    def _question(self, client: Client, question: str) -> Asks:
        """The newest user message, and the system text or the documents beside it that go with it."""
        if "model" in client.more:
            beside = [{"doc_id": d.name, "text": d.text} for d in self._found(client)]
            client.more = {**client.more, "documents": list({d["doc_id"]: d for d in beside}.values())}
        found = self._found(client)
        layout = client.app.layout(found, question)
        text = question
        if found and client.app.where == "system":
            self.layouts[layout.text] = layout
            client.system = layout.text
        elif found:
            self.layouts[layout.text] = layout
            text = layout.text
        parts = self.rng.random() < 0.2
        return Asks(text, parts, parts and self.rng.random() < 0.5)

    def ask_plainly(self, client: Client) -> None:
        self.send(client, (*client.history, Asks(self.rng.choice(QUESTIONS))), Says(self.rng.choice(REPLIES)))

    def use_tools(self, client: Client) -> None:
        """A loop: files are read, read again, and change between."""
        entries: tuple[Entry, ...] = (*client.history, self._question(client, self.rng.choice(QUESTIONS)))
        for _ in range(self.rng.choice((1, 2, 3, 4))):
            uses, results = [], []
            for _ in range(self.rng.choice((1, 1, 2))):
                use, result = self._call(client)
                uses.append(use)
                results.append(result)
            says = Says(self.rng.choice(("", "Let me look.")), tuple(uses))
            if not self.send(client, entries, says):
                return
            entries = (*entries, says, *results)
            if self.rng.random() < 0.3:
                self._edit_file(client)
        self.send(client, entries, Says(self.rng.choice(REPLIES)))
        self.seen["tools"] += 1

    def _call(self, client: Client) -> tuple[Use, Result]:
        client.calls += 1
        name = self.rng.choice(("read_file", "read_file", "view", *TOOLS))
        if name in ("read_file", "view"):
            path = self.rng.choice(sorted(client.files))
            arguments, found = f'{{"path": "{path}"}}', [Document(path, client.files[path])]
        elif name == "read_many":
            paths = self.rng.sample(sorted(client.files), 2)
            arguments, found = (
                f'{{"paths": ["{paths[0]}", "{paths[1]}"]}}',
                [Document(p, client.files[p]) for p in paths],
            )
        else:
            arguments, found = '{"query": "fee"}', list(self._found(client)) or client.pool[:1]
        layout = TOOLS[name](found, "fee")
        self.layouts[layout.text] = layout
        use = Use(f"call_{client.user}_{client.calls}", name, arguments)
        return use, Result(use.id, layout.text)

    def _edit_file(self, client: Client) -> None:
        path = self.rng.choice(sorted(client.files))
        client.files[path] = client.files[path].replace("the", f"the {client.calls}th", 1)

    def retry(self, client: Client) -> None:
        if client.last is None:
            return
        client.system, entries = client.last
        self.send(client, entries, Says(self.rng.choice(REPLIES)))
        self.seen["retry"] += 1

    def fail(self, client: Client) -> None:
        """The engine answers with an error; what is found then is other."""
        question = self.rng.choice(QUESTIONS)
        self.send(client, (*client.history, self._question(client, question)), None)
        self.send(client, (*client.history, self._question(client, question)), Says(self.rng.choice(REPLIES)))

    def go_back(self, client: Client) -> None:
        client.saved = [*client.saved[-3:], client.history]
        ends = [i + 1 for i, entry in enumerate(client.history) if isinstance(entry, Says) and not entry.uses]
        client.history = client.history[: self.rng.choice([0, *ends])]
        client.last = None

    def begin_anew(self, client: Client) -> None:
        """Another chat about the same matter: its documents are much those of the one before."""
        client.saved = [*client.saved[-3:], client.history]
        client.history, client.last = (), None
        self.ask(client)

    def switch(self, client: Client) -> None:
        if client.saved:
            client.history = self.rng.choice(client.saved)
            client.last = None

    def edit(self, client: Client) -> None:
        asked = [i for i, entry in enumerate(client.history) if isinstance(entry, Asks)]
        if asked:
            i = self.rng.choice(asked)
            client.history = (*client.history[:i], Asks("Something else?"), *client.history[i + 1 :])

    def truncate(self, client: Client) -> None:
        """A sliding window, or a summary in the place of what was."""
        asked = [i for i, entry in enumerate(client.history) if isinstance(entry, Asks)]
        if len(asked) > 1:
            summary = (Asks("Summary of what was said."), Says("I see.")) if self.rng.random() < 0.5 else ()
            client.history = (*summary, *client.history[asked[1] :])
            self.seen["truncated"] += 1

    def elide(self, client: Client) -> None:
        """The client itself cuts an old tool result."""
        found = [i for i, entry in enumerate(client.history) if isinstance(entry, Result)]
        if found:
            i = found[0]
            result = client.history[i]
            assert isinstance(result, Result)
            client.history = (
                *client.history[:i],
                result._replace(text="(old output left out)"),
                *client.history[i + 1 :],
            )
            self.seen["elided"] += 1

    def trim(self, client: Client) -> None:
        said = [i for i, entry in enumerate(client.history) if isinstance(entry, Says) and not entry.uses]
        if said:
            i = self.rng.choice(said)
            client.history = (*client.history[:i], Says("(shortened)"), *client.history[i + 1 :])

    # -- sending

    def send(self, client: Client, entries: tuple[Entry, ...], says: Says | None) -> bool:
        """Whether the engine answered."""
        body = body_of(client.api, entries, client.system, client.more)
        text = client.style.dumps(body.value)
        answer = None if says is None else answer_of(client.api, says)
        arrived = self.route.send(Request(client.api, text.encode(), client.headers(), answer))
        if arrived.refused is not None:
            raise Violation("refused", f"a request got {arrived.refused}")
        sender = client.sender if not client.off else Sender()
        case = Case(body, text, client.system, entries, self.layouts, sender, client.user)
        if client.off and arrived.body != text.encode():
            raise Violation("changed", "a request in mode off was changed")
        judged = judge(case, arrived.body)
        self._count(judged)
        if says is None:
            return False
        remember(case, judged)
        client.history = (*entries, says)
        client.last = client.system, entries
        return True

    def _count(self, judged: Judged) -> None:
        self.seen["requests"] += 1
        self.seen["notes"] += judged.notes
        self.seen["moved"] += judged.moved
        self.seen["kept"] += judged.kept
        self.seen["rankings"] += judged.rankings
        self.seen["documents"] += bool(judged.documents)

    def _found(self, client: Client) -> Sequence[Document]:
        """What a retriever gives: some of the pool, in any order, each name once. Often what it gave before, ranked
        anew, and one more behind it."""
        found = self.rng.sample(client.pool, self.rng.choice((0, 2, 3, 4, 5)))
        known = self.found.get(client.user, [])
        if len(known) > 1 and self.rng.random() < 0.3:
            found = [*self.rng.sample(known, len(known)), *(d for d in found[:1] if d not in known)]
        self.found[client.user] = found
        return list({d.name: d for d in found}.values()) if client.app.name == "letta" else found


_STEPS: Final = (
    Traffic.ask,
    Traffic.ask,
    Traffic.ask,
    Traffic.ask_plainly,
    Traffic.use_tools,
    Traffic.use_tools,
    Traffic.retry,
    Traffic.fail,
    Traffic.go_back,
    Traffic.begin_anew,
    Traffic.begin_anew,
    Traffic.switch,
    Traffic.edit,
    Traffic.truncate,
    Traffic.truncate,
    Traffic.elide,
    Traffic.elide,
    Traffic.trim,
)
