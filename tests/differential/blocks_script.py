"""Random conversations with ``context_blocks``: several users at one proxy, each prompt judged as it arrives."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final, NamedTuple

from .blocks_oracle import Block, Case, Judged, Memory, Points, judge, remember
from .clients import STYLES, ApiName, Asks, Body, Entry, Result, Says, Style, Use, answer_of, body_of, extras
from .reading import Violation
from .routes import Headers, Request, Route

QUESTIONS: Final = ("Why?", "How much is it?", 'Say "yes" or \\no\\.', "Und wann, für wen? 🙂")
REPLIES: Final = ("Yes.", "Yes. It is 4 %.", "No.")
OPENING: Final = "What do the documents say?"
SYSTEMS: Final = ("", "You answer from documents.", "Be short.\n\nAnswer in verse.")


def texts_of(rng: Random, user: str, world: str) -> list[Block]:
    """A pool of documents, some of all users and some of one. A few look like our own wording."""
    shared = [Block(f"Rule {i} of {world}: the fee is {i * 7} €, due in month {i}.") for i in range(4)]
    own = [
        Block(f"~{user}~ owes {i} in {world}.\n\nPaid: {i % 3}.", title=("", "Account", "Konto: Übersicht")[i % 3])
        for i in range(4)
    ]
    odd = [
        Block(f"[Doc 1]\n~{user}~ wrote this, not the proxy."),
        Block(f"Please refer to [Doc 1] above.\n\n[Doc 2]\nRule 1 of {world}"),
        Block(f'```\n{world}\n```\n\n\u2028 \U0001f600 \\u0041 "quoted" ~{user}~'),
        Block(f"Rule 0 of {world}: the fee is 0 €, due in month 0.", title="Same text, with a title"),
    ]
    return [*shared, *own, *rng.sample(odd, 2)]


class Last(NamedTuple):
    """The last turn, to be tried again."""

    entries: tuple[Entry, ...]
    blocks: tuple[Block, ...]


@dataclass(slots=True)
class Client:
    """One program that speaks for a user.

    Attributes:
        conversation: the id it sends; ``None`` for a client that sends none.
        saved: branches that were left, to come back to.
    """

    user: str
    key: str
    conversation: str | None
    api: ApiName
    mode: str
    style: Style
    system: str
    more: dict[str, Any]
    pool: list[Block]
    memory: Memory | None
    history: tuple[Entry, ...] = ()
    saved: list[tuple[Entry, ...]] = field(default_factory=list)
    last: Last | None = None
    calls: int = 0

    def headers(self) -> Headers:
        own = (("Content-Type", "application/json"), ("Authorization", f"Bearer {self.key}"))
        mode = (("X-PrefixPilot-Mode", self.mode),) if self.mode != "on" else ()
        return (*own, *mode, *((("X-PrefixPilot-Conversation", self.conversation),) if self.conversation else ()))


class Judgement(NamedTuple):
    """A request that was judged, or refused."""

    judged: Judged | None
    says: Says | None


class Talk:
    """Some clients and a route; ``step`` does one thing that clients do.

    Args:
        world: makes the texts of this talk unlike those of others.
        strict: no error of ours is injected, so that everything is promised.
    """

    def __init__(self, rng: Random, route: Route, world: str, *, strict: bool = True) -> None:
        self.rng = rng
        self.route = route
        self.strict = strict
        self.seen: Counter[str] = Counter()
        self.memories: dict[tuple[str, str, str], Memory] = {}
        self.api: ApiName = rng.choice(("chat", "chat", "responses", "messages", "completions"))
        self.clients = self._clients(world)

    def _clients(self, world: str) -> list[Client]:
        """Two users under one conversation id, one of them at two windows; and one without an id."""
        ids = (("ann", f"c {world}"), ("bob", f"c {world}"), ("ann", f"d {world}"), ("cyd", None))
        chosen = self.rng.sample(ids, self.rng.choice((1, 2, 2, 3)))
        return [self._client(f"{user}{world}", conversation, world) for user, conversation in chosen]

    def _client(self, user: str, conversation: str | None, world: str) -> Client:
        rng = self.rng
        mode = "off" if rng.random() < 0.1 else "on"
        key = f"key of {user}"
        memory = None
        if conversation is not None and self.api != "completions":
            memory = self.memories.setdefault((key, conversation, mode), Memory(doubt=not self.strict))
        more = extras(rng, self.api)
        system = "" if self.api == "completions" else rng.choice(SYSTEMS)
        style = rng.choice(STYLES)
        return Client(user, key, conversation, self.api, mode, style, system, more, texts_of(rng, user, world), memory)

    def run(self, steps: int) -> None:
        """So many steps of random clients. Raises Violation."""
        if self.rng.random() < 0.5:
            self.open_together()
        for _ in range(steps):
            client = self.rng.choice(self.clients)
            self.rng.choice(_STEPS)(self, client)

    # -- steps

    def open_together(self) -> None:
        """All clients ask the same at once."""
        asked = [(client, (*client.history, Asks(OPENING)), self._blocks(client)) for client in self.clients]
        requests, cases, said = [], [], []
        for client, entries, blocks in asked:
            says = Says(self.rng.choice(REPLIES))
            request, case = self.request(client, entries, blocks, says)
            requests.append(request)
            cases.append(case)
            said.append(says)
        arrived = self.route.send_together(requests)
        for (client, entries, blocks), case, says, one in zip(asked, cases, said, arrived, strict=True):
            if one.refused is not None:
                raise Violation("refused", f"an opening got {one.refused}")
            judged = self.check(case, judge(case, one.body, one.told), says)
            self._answered(client, case, entries, blocks, judged, says)
        self.seen["together"] += len(asked) > 1

    def ask(self, client: Client) -> None:
        parts = self.rng.random() < 0.2
        question = Asks(self.rng.choice((OPENING, *QUESTIONS)), parts, parts and self.rng.random() < 0.5)
        says = Says(self.rng.choice(REPLIES), thinking="hm" if self.rng.random() < 0.2 else "")
        self.send(client, (*client.history, question), self._blocks(client), says)

    def ask_after_a_failure(self, client: Client) -> None:
        """The engine answers with an error, and the client tries again with other documents."""
        entries = (*client.history, Asks(self.rng.choice(QUESTIONS)))
        self.send(client, entries, self._blocks(client), None)
        self.send(client, entries, self._blocks(client), Says(self.rng.choice(REPLIES)))

    def use_tools(self, client: Client) -> None:
        if client.api == "completions":
            return
        blocks = self._blocks(client)
        entries = (*client.history, Asks(self.rng.choice(QUESTIONS)))
        for _ in range(self.rng.choice((1, 1, 2))):
            client.calls += 1
            use = Use(f"call_{client.calls}_{len(client.saved)}", "read_file", '{"path": "a.py"}')
            says = Says("", (use,))
            if self.send(client, entries, blocks, says).judged is None:
                return
            entries = (*entries, says, Result(use.id, self.rng.choice(("42", f"~{client.user}~ 43"))))
            blocks = self.rng.choice((blocks, (), blocks[:1])) if client.memory is not None else blocks
        self.send(client, entries, blocks, Says(self.rng.choice(REPLIES)))
        self.seen["tools"] += 1

    def retry(self, client: Client) -> None:
        """The same again, or the same documents in another order, or one less."""
        if client.last is None:
            return
        blocks = list(client.last.blocks)
        how = self.rng.choice(("same", "same", "shuffled", "less"))
        if how != "same":
            self.rng.shuffle(blocks)
        if how == "less":
            blocks = blocks[1:]
        self.send(client, client.last.entries, tuple(blocks), Says(self.rng.choice(REPLIES)))
        self.seen["retry"] += 1

    def go_back(self, client: Client) -> None:
        """A branch from an earlier answer."""
        client.saved = [*client.saved[-3:], client.history]
        ends = [i + 1 for i, entry in enumerate(client.history) if isinstance(entry, Says) and not entry.uses]
        client.history = client.history[: self.rng.choice([0, *ends])]
        client.last = None

    def switch(self, client: Client) -> None:
        if client.saved:
            client.history = self.rng.choice(client.saved)
            client.last = None

    def edit(self, client: Client) -> None:
        """An earlier question becomes another; what follows it stays."""
        asked = [i for i, entry in enumerate(client.history) if isinstance(entry, Asks)]
        if asked:
            i = self.rng.choice(asked)
            client.history = (*client.history[:i], Asks("Something else?"), *client.history[i + 1 :])
            client.last = None

    def truncate(self, client: Client) -> None:
        """The oldest turn leaves; perhaps a summary stands in its place."""
        asked = [i for i, entry in enumerate(client.history) if isinstance(entry, Asks)]
        if len(asked) > 1:
            summary = (Asks("Summary of what was said."), Says("I see.")) if self.rng.random() < 0.5 else ()
            client.history = (*summary, *client.history[asked[1] :])
            client.last = None
            self.seen["truncated"] += 1

    def trim(self, client: Client) -> None:
        """The client changes what the engine said."""
        said = [i for i, entry in enumerate(client.history) if isinstance(entry, Says) and not entry.uses]
        if said and client.memory is not None:
            i = self.rng.choice(said)
            client.history = (*client.history[:i], Says("(shortened)"), *client.history[i + 1 :])
            client.last = None

    def begin_anew(self, client: Client) -> None:
        """The same id, an empty history."""
        client.saved = [*client.saved[-3:], client.history]
        client.history, client.last = (), None

    def paste(self, client: Client) -> None:
        """A history that this client never sent, such as others begin with, too."""
        client.saved = [*client.saved[-3:], client.history]
        client.history, client.last = (Asks(OPENING), Says(self.rng.choice(REPLIES))), None

    # -- sending

    def request(
        self, client: Client, entries: Sequence[Entry], blocks: Sequence[Block], says: Says | None
    ) -> tuple[Request, Case]:
        """The bytes, and what is known of them."""
        body: Body = body_of(client.api, entries, client.system, client.more)
        bare = client.style.dumps(body.value)
        text = bare
        if blocks or self.rng.random() < 0.1:
            text = client.style.dumps(self._with_blocks(body.value, blocks))
        answer = None if says is None else answer_of(client.api, says)
        request = Request(client.api, text.encode(), client.headers(), answer)
        return request, Case(body, text, bare, entries, blocks, client.memory, client.user, client.mode, self.strict)

    def _with_blocks(self, value: dict[str, Any], blocks: Sequence[Block]) -> dict[str, Any]:
        """The member stands anywhere; a block is a string or an object."""
        plain = self.rng.random() < 0.5
        given = [
            b.text if plain and not b.title else {"text": b.text, **({"title": b.title} if b.title else {}), "id": i}
            for i, b in enumerate(blocks)
        ]
        members = list(value.items())
        members.insert(self.rng.randrange(len(members) + 1), ("context_blocks", given or self.rng.choice((None, []))))
        return dict(members)

    def send(
        self, client: Client, entries: tuple[Entry, ...], blocks: tuple[Block, ...], says: Says | None
    ) -> Judgement:
        request, case = self.request(client, entries, blocks, says)
        arrived = self.route.send(request)
        if arrived.refused is not None:
            self._refused(case, arrived.refused)
            return Judgement(None, says)
        judged = self.check(case, judge(case, arrived.body, arrived.told), says)
        self.seen["ambiguous"] += bool((arrived.told or {}).get("ambiguous"))
        if says is not None:
            self._answered(client, case, entries, blocks, judged, says)
        return Judgement(judged, says)

    def _refused(self, case: Case, status: int) -> None:
        """Only new blocks in a tool loop may be refused, and those come only where the branch could not be told."""
        in_loop = isinstance(case.entries[-1], Result)
        if status != 400 or not in_loop or not case.blocks:
            raise Violation("refused", f"a request got {status}")
        self.seen["refused"] += 1

    def check(self, case: Case, judged: Judged, says: Says | None) -> Judged:
        self.seen["requests"] += 1
        self.seen["blocks"] += len(case.blocks)
        self.seen["kept"] += judged.kept
        self.seen["replaced"] += judged.replaced
        if says is not None:
            remember(case, judged, says)
        return judged

    def _answered(
        self,
        client: Client,
        case: Case,
        entries: tuple[Entry, ...],
        blocks: tuple[Block, ...],
        judged: Judged,
        says: Says,
    ) -> None:
        client.history = (*entries, says)
        client.last = Last(entries, blocks)
        stands = judged.parsed.get(max(i for i, e in enumerate(entries) if isinstance(e, Asks)))
        self.seen["pointed"] += stands is not None and any(isinstance(item, Points) for item in stands.items)
        self.seen["ordered"] += stands is not None and bool(stands.order)

    def _blocks(self, client: Client) -> tuple[Block, ...]:
        """What a retriever gives: some of the pool in any order, now and then one of them twice."""
        count = self.rng.choice((0, 1, 3, 3, 4, 5))
        blocks = self.rng.sample(client.pool, count)
        if count > 1 and self.rng.random() < 0.15:
            blocks.append(blocks[0])
        return tuple(blocks)


_STEPS: Final = (
    Talk.ask,
    Talk.ask,
    Talk.ask,
    Talk.ask,
    Talk.ask_after_a_failure,
    Talk.use_tools,
    Talk.retry,
    Talk.go_back,
    Talk.switch,
    Talk.edit,
    Talk.truncate,
    Talk.trim,
    Talk.begin_anew,
    Talk.paste,
)
