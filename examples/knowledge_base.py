"""Keep a network's answers consistent with a knowledge base, which is an SQLite file.

A network names the city and the country of each photograph. It has one label per city and many for countries, and the
knowledge base knows where each city is: in a district, in a state, in a country. A rule follows a city upwards, and
says that it must arrive in the country of the photograph. Two terms, in threads, ask the database about each place
once. Run it with `python examples/knowledge_base.py`; it needs `pip install "penalties[torch,knowledge]"`.
"""

import itertools
import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path

import torch
from torch import Generator, Tensor, nn
from torch.nn.functional import cross_entropy

import penalties as pn
from penalties.terms.knowledge import Database, Facts, Knowledge, Rule, Table

STEPS = 200
BATCH, CITIES, COUNTRIES = 32, 64, 8
RANDOM = Generator().manual_seed(0)
# In each photograph there are a country, a city of it, and noise.
CLEAN = torch.randn(COUNTRIES, 24, generator=RANDOM).repeat(8, 1) + torch.randn(CITIES, 24, generator=RANDOM)
NOISE = {"day": 0.8, "night": 1.2}

# What the network may say of the photographs of a step, in the order of its probabilities.
FACTS = Facts(
    (photo, relation, f"{kind} {number}")
    for photo in range(BATCH)
    for relation, kind, count in (("shows", "city", CITIES), ("taken in", "country", COUNTRIES))
    for number in range(count)
)
# A city is part of a district, that of a state, and that of the country where the photograph was taken.
RULE = Rule(("shows", "part of", "part of", "part of"), "taken in")


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
    """Two groups of logits, and the probabilities of all of them."""
    city, country = model(x).split([CITIES, COUNTRIES], -1)
    return {"city": city, "country": country, "p": torch.cat([city.softmax(-1), country.softmax(-1)], -1)}


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
            seen = {when: torch.randint(CITIES, (BATCH,), generator=random) for when in NOISE}
            inputs = {when: answers(model, photographs(seen[when], when, random)) for when in NOISE}
            inputs |= {"known": answers(model, known), "cities": cities, "facts": FACTS}
            inputs["countries"] = torch.cat([*seen.values()]) % COUNTRIES
            out = executor.run(pipeline, inputs)
            optimizer.zero_grad()
            out.total.backward()
            optimizer.step()
            if report and step % 50 == 0:
                numbers = out.metrics()
                names = ("base_loss", "day", "night", "night/violated", "night/queries")
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
        with Database(f"sqlite:///{path}", {"part of": Table("part_of", "part", "whole")}, timeout=2) as base:
            knowledge = Knowledge(base, rules=[RULE], reduction="mean")
            about = {"weight": 1.0, "runs": "thread", "timeout": 5}
            terms = [pn.Term(knowledge, name=w, inputs=(f"{w}.p", "facts"), **about) for w in NOISE]
            print(f"{'step':>4} {'base':>10} {'day':>10} {'night':>10} {'violated':>10} {'queries':>10}")
            taught = train(pn.Pipeline(terms, base=BASE), report=True)
    print(f"\nwithout the facts: {train(pn.Pipeline(base=BASE))}")
    print(f"with the facts:    {taught}")


if __name__ == "__main__":
    main()
