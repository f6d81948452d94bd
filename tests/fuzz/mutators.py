"""Damage: what happens to the bytes of a file, repeatable by a seed."""

import itertools
import random
import re

VALUES = re.compile(
    r'"(?:[^"\\\n]|\\.)*"|-?\b\d+(?:\.\d+)?(?:[eE][+-]?\d+)?\b|\btrue\b|\bfalse\b|\bnull\b'
)
NASTY = (
    *(
        "1e999",
        "-1",
        "0",
        "1" + "0" * 400,
        "1" * 5000,
        "NaN",
        "-Infinity",
        "null",
        "true",
        "[]",
        "{}",
        '""',
        "1.5",
        "[1, [2]]",
    ),
    *(
        '"\\ud800"',
        '"x"',
        '{"a": null}',
        "[" * 100_000 + "]" * 100_000,
        "[" * 400 + "]" * 400,
        '"1"',
        "99999999999999999999",
    ),
)


def damaged(content: bytes, seed: int) -> bytes:
    """Return other content: the given one with one or a few damages."""
    for attempt in itertools.count():
        found = _damaged(content, random.Random(f"{seed} {attempt}"))
        if found != content:
            return found
    raise AssertionError


def _damaged(content: bytes, rng: random.Random) -> bytes:
    if _is_text(content) and rng.random() < 0.5:
        return _other_value(content, rng)
    for _ in range(rng.choice((1, 1, 1, 2, 4, 16))):
        content = rng.choice((_flip, _flip, _byte, _cut_out, _insert, _zero, _repeat, _cut_off))(
            content or b"x", rng
        )
    return content


def _is_text(content: bytes) -> bool:
    return content[:1] in b'{["#abcdefghijklmnopqrstuvwxyz' and b"\0" not in content[:4096]


def _place(content: bytes, rng: random.Random) -> int:
    """Choose a place; those near the two ends, where headers and footers are, more often."""
    near = min(len(content), 1500)
    return rng.choice(
        (rng.randrange(len(content)), rng.randrange(near), len(content) - 1 - rng.randrange(near))
    )


def _flip(content: bytes, rng: random.Random) -> bytes:
    at = _place(content, rng)
    return content[:at] + bytes([content[at] ^ 1 << rng.randrange(8)]) + content[at + 1 :]


def _byte(content: bytes, rng: random.Random) -> bytes:
    at = _place(content, rng)
    return (
        content[:at]
        + bytes([rng.choice((0, 34, 44, 10, 255, rng.randrange(256)))])
        + content[at + 1 :]
    )


def _cut_out(content: bytes, rng: random.Random) -> bytes:
    at = _place(content, rng)
    return content[:at] + content[at + rng.randrange(1, 64) :]


def _insert(content: bytes, rng: random.Random) -> bytes:
    at = _place(content, rng)
    return content[:at] + rng.randbytes(rng.randrange(1, 64)) + content[at:]


def _zero(content: bytes, rng: random.Random) -> bytes:
    at = _place(content, rng)
    length = min(rng.choice((1, 8, 64, 4096)), len(content) - at)
    return content[:at] + bytes(length) + content[at + length :]


def _repeat(content: bytes, rng: random.Random) -> bytes:
    at = _place(content, rng)
    return content[: at + rng.randrange(1, 4096)] + content[at:]


def _cut_off(content: bytes, rng: random.Random) -> bytes:
    return content[: _place(content, rng)]


def _other_value(content: bytes, rng: random.Random) -> bytes:
    """Put another value in the place of one in JSON or TOML, or leave the line out."""
    text = content.decode("utf-8", "replace")
    found = list(VALUES.finditer(text))
    if not found:
        return content
    one = rng.choice(found)
    other = rng.choice((rng.choice(NASTY), rng.choice(found).group()))
    return (text[: one.start()] + other + text[one.end() :]).encode("utf-8", "replace")
