"""Phrases in English and in pig latin: the data of the demo.

`python tools/pig_latin.py` writes the files again.
"""

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Final

__all__ = ["examples", "pair", "translated", "write"]

_TEXT: Final = """
apple bear bird blue bread bright brown butter candle castle cat chair cheese child clear cloud coat cold cow
crown dance dark dear deep dog door dream drum eagle early east eight elm evening fair fall far fast fern field
fire fish flag flower fox friend frog garden gate glass gold good grape grass green grey hand happy hat hill honey
horse house ice ink island ivy jar jolly jump kind king kite lake lamp leaf light lion little lucky man map maple
meadow milk moon morning mouse narrow nest new night north nut oak ocean old open orange owl paper path peach pear
pig pine plain plum pond proud queen quick quiet rain red ring river road robin rock room rose round sail salt sand
sea seven sheep ship shore silver sky sleepy slow small smile snow soft song south spring star still stone storm
story street strong summer sun swan sweet table tall tea thick thin three tiger train tree tulip uncle under up
valley village violin voice warm water west wheat white wild wind winter wolf wood yard yellow young zebra
"""
WORDS: Final = _TEXT.split()
VOWELS: Final = "aeiou"
HELD_OUT: Final = 40
COUNT: Final = 300


def translated(word: str) -> str:
    """A word in pig latin: the letters before its first vowel move to the end, followed by "ay".

    >>> translated("string"), translated("apple"), translated("quick"), translated("young")
    ('ingstray', 'appleway', 'ickquay', 'oungyay')
    """
    start = next(index for index, letter in enumerate(word) if letter in VOWELS or (letter == "y" and index))
    if word[:start].endswith("q"):
        start += 1
    return f"{word}way" if start == 0 else f"{word[start:]}{word[:start]}ay"


def examples(count: int = COUNT, seed: int = 0) -> Iterator[dict[str, str]]:
    """Different phrases of two or three words, each with its translation."""
    drawn = random.Random(seed)
    seen: set[str] = set()
    while len(seen) < count:
        words = drawn.sample(WORDS, drawn.choice((2, 3)))
        phrase = " ".join(words)
        if phrase not in seen:
            seen.add(phrase)
            yield {"prompt": f"{phrase} =", "completion": f" {' '.join(map(translated, words))}"}


def pair(example: dict[str, str]) -> dict[str, str]:
    """A phrase with its translation as the chosen completion, and a common mistake as the rejected one.

    >>> pair({"prompt": "blue sky =", "completion": " ueblay yskay"})
    {'prompt': 'blue sky =', 'chosen': ' ueblay yskay', 'rejected': ' blueay skyay'}
    """
    words = example["prompt"].split()[:-1]
    mistake = "".join(f" {word}ay" for word in words)
    return {"prompt": example["prompt"], "chosen": example["completion"], "rejected": mistake}


def write(folder: Path) -> None:
    """Write the lines to train on, and those that are held out; and pairs of the same phrases."""
    phrases = list(examples())
    for name, lines in (("pig_latin", phrases), ("pig_latin_pairs", [pair(one) for one in phrases])):
        for suffix, some in (("", lines[HELD_OUT:]), ("_eval", lines[:HELD_OUT])):
            (folder / f"{name}{suffix}.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in some))


if __name__ == "__main__":
    write(Path(__file__).parents[1] / "src" / "penalties" / "app" / "demo")
