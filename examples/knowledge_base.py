"""Keep a network's answers consistent with a knowledge base, which is an SQLite file.

A network names the city and the country of each photograph. It has one label per city and many for countries, and the
knowledge base knows where each city is: in a district, in a state, in a country. Two terms look up the cities that the
network considers. SQLite releases the interpreter lock while it searches, so they run in threads, and each thread opens
the file once. Run it with `python examples/knowledge_base.py`; it needs PyTorch.
"""

import itertools
import sqlite3
import tempfile
import threading
from contextlib import closing
from pathlib import Path

import torch
from torch import Generator, Tensor, nn
from torch.nn.functional import cross_entropy

import penalties as pn

STEPS = 200
CITIES, COUNTRIES = 64, 8
RANDOM = Generator().manual_seed(0)
# In each photograph there are a country, a city of it, and noise.
CLEAN = torch.randn(COUNTRIES, 24, generator=RANDOM).repeat(8, 1) + torch.randn(CITIES, 24, generator=RANDOM)
NOISE = {"day": 0.8, "night": 1.2}

# From each city upwards to its country.
QUERY = """
    WITH RECURSIVE up(city, place) AS (
        SELECT part, whole FROM part_of WHERE part IN ({})
        UNION ALL
        SELECT city, whole FROM up JOIN part_of ON part = place
    )
    SELECT city, place FROM up WHERE place LIKE 'country %'
"""


class Contradiction:
    """`-log P(the city is in the country)` by the facts, averaged over photographs (Xu et al., "Semantic Loss", 2018).

    Each worker opens the file at its first query, and keeps the connection.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.worker = threading.local()
        self.opened: list[sqlite3.Connection] = []

    def __call__(self, city: Tensor, country: Tensor, considered: int = 8) -> tuple[Tensor, dict[str, int]]:
        """Look up the likeliest cities of each photograph."""
        asked = [f"city {number}" for number in city.topk(considered).indices.unique().tolist()]
        facts = self.connection().execute(QUERY.format(", ".join("?" * len(asked))), asked).fetchall()
        # Tensors from here on: PyTorch differentiates them, in the thread.
        agree = torch.zeros(CITIES, COUNTRIES, dtype=torch.bool)
        for one, other in facts:
            agree[int(one.split()[1]), int(other.split()[1])] = True
        joint = city.log_softmax(-1)[:, :, None] + country.log_softmax(-1)[:, None]
        return -joint[:, agree].logsumexp(-1).mean(), {"facts": len(facts)}

    def connection(self) -> sqlite3.Connection:
        """The connection of this worker."""
        if not hasattr(self.worker, "connection"):
            # Another thread closes it, once the workers are gone.
            self.worker.connection = sqlite3.connect(f"{self.path.as_uri()}?mode=ro", uri=True, check_same_thread=False)
            self.opened.append(self.worker.connection)
        return self.worker.connection

    def close(self) -> None:
        for connection in self.opened:
            connection.close()

    def __reduce__(self) -> tuple[type["Contradiction"], tuple[Path]]:
        """With `runs="process"` only the path is sent, and each process opens the file itself."""
        return type(self), (self.path,)


def write_facts(path: Path) -> None:
    """Thirteen thousand places; the photographs are of 64 cities, and city n lies in country n % 8."""
    counts = {"village": 12_800, "city": CITIES, "district": 32, "state": 16, "country": COUNTRIES}
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE part_of (part TEXT PRIMARY KEY, whole TEXT)")
        for part, whole in itertools.pairwise(counts):
            rows = [(f"{part} {number}", f"{whole} {number % counts[whole]}") for number in range(counts[part])]
            connection.executemany("INSERT INTO part_of VALUES (?, ?)", rows)


def labels(known: Tensor, cities: Tensor, day: Tensor, night: Tensor, countries: Tensor) -> Tensor:
    """The base loss: the cities of a few photographs, and the countries of all others."""
    return cross_entropy(known, cities) + cross_entropy(torch.cat([day, night]), countries)


BASE = pn.Term(labels, inputs=("known.city", "cities", "day.country", "night.country", "countries"))


def photographs(cities: Tensor, when: str, random: Generator) -> Tensor:
    return CLEAN[cities] + NOISE[when] * torch.randn(len(cities), 24, generator=random)


def answers(model: nn.Linear, x: Tensor) -> dict[str, Tensor]:
    """Two groups of logits."""
    return dict(zip(("city", "country"), model(x).split([CITIES, COUNTRIES], -1), strict=True))


def train(pipeline: pn.Pipeline, *, report: bool = False) -> str:
    """Train on a stream of photographs; returns how the network does by night."""
    torch.manual_seed(0)
    random = Generator().manual_seed(1)
    model = nn.Linear(24, CITIES + COUNTRIES)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    cities = torch.arange(CITIES)
    known = photographs(cities, "day", random)
    with pn.Executor(max_workers=2) as executor:
        for step in range(STEPS + 1):
            seen = {when: torch.randint(CITIES, (32,), generator=random) for when in NOISE}
            inputs = {when: answers(model, photographs(seen[when], when, random)) for when in NOISE}
            inputs["known"] = answers(model, known)
            countries = torch.cat([*seen.values()]) % COUNTRIES
            out = executor.run(pipeline, {**inputs, "cities": cities, "countries": countries})
            optimizer.zero_grad()
            out.total.backward()
            optimizer.step()
            if report and step % 50 == 0:
                numbers = out.metrics()
                names = ("base_loss", "day", "night", "day/facts", "night/facts")
                print(f"{step:4d} " + " ".join(f"{numbers[name]:10.4g}" for name in names))
    cities = torch.arange(2000) % CITIES
    answer = answers(model, photographs(cities, "night", random))
    city, country = answer["city"].argmax(-1), answer["country"].argmax(-1)
    right, against = (city == cities).double().mean().item(), (city % COUNTRIES != country).double().mean().item()
    return f"{right:5.1%} of cities right, {against:5.1%} of answers against the facts"


def main() -> None:
    torch.set_num_threads(1)  # the layers are small, and the other cores have terms to run
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "facts.db"
        write_facts(path)
        with closing(Contradiction(path)) as contradiction:
            about = {"weight": 0.5, "runs": "thread", "timeout": 5}
            terms = [pn.Term(contradiction, name=w, inputs=(f"{w}.city", f"{w}.country"), **about) for w in NOISE]
            print(f"{'step':>4} {'base':>10} {'day':>10} {'night':>10} {'facts: day':>10} {'night':>10}")
            taught = train(pn.Pipeline(terms, base=BASE), report=True)
            print(f"\n{2 * (STEPS + 1)} questions, {len(contradiction.opened)} connections")
    print(f"without the facts: {train(pn.Pipeline(base=BASE))}")
    print(f"with the facts:    {taught}")


if __name__ == "__main__":
    main()
