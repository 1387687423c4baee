"""Puzzles in English. Nested parts stand in parentheses, so that a sentence has one reading."""

from __future__ import annotations

from collections.abc import Sequence

from tasks.draw import Draw
from tasks.kk.generator import Puzzle
from tasks.kk.statements import Statement

NAMES = (
    "Ada", "Amir", "Anouk", "Bela", "Boris", "Carmen", "Cleo", "Dario", "Dina", "Edgar", "Elif", "Esme", "Farid",
    "Fiona", "Goran", "Greta", "Hana", "Hugo", "Ines", "Igor", "Jana", "Jonas", "Kaito", "Kira", "Lars", "Leila",
    "Malik", "Mira", "Nadia", "Nils", "Odile", "Omar", "Paula", "Pavel", "Quinn", "Rania", "Ravi", "Rosa", "Sami",
    "Selma", "Tariq", "Tessa", "Udo", "Uma", "Vera", "Viktor", "Wanda", "Wim", "Xenia", "Yara", "Yusuf", "Zeno",
)  # fmt: skip
_OPENINGS = (
    "On a remote island everybody is either a knight, whose every word is true, or a knave, whose every word is false.",
    "Here live two kinds of people: knights, who never lie, and knaves, who never tell the truth.",
    "In this town each person is a knight or a knave. What a knight says is true; what a knave says is false.",
)
_MEETINGS = ("You meet {names}.", "{names} come your way.", "You are talking with {names}.")
_SAYINGS = (
    '{name} says: "{what}."',
    '"{what}," says {name}.',
    '{name} tells you: "{what}."',
    'You hear from {name}: "{what}."',
    "{name} claims that {what}.",
)
_QUESTIONS = (
    "Who is a knight, and who is a knave?",
    "Find out who is what.",
    "Which of them are knights, and which knaves?",
)


def puzzle_text(puzzle: Puzzle, names: Sequence[str], draw: Draw) -> str:
    """The puzzle as a riddle. ``draw`` chooses among the templates."""
    sayings = [
        draw.one(_SAYINGS).replace("{name}", name).replace("{what}", say(statement, names))
        for name, statement in zip(names, puzzle.statements, strict=True)
    ]
    meeting = draw.one(_MEETINGS).replace("{names}", listing(names))
    return " ".join([draw.one(_OPENINGS), meeting, *sayings, draw.one(_QUESTIONS)])


def say(statement: Statement, names: Sequence[str]) -> str:
    """A statement as a clause, without its full stop."""
    match statement:
        case ("telling-truth", person):
            return f"{names[person]} is a knight"
        case ("lying", person):
            return f"{names[person]} is a knave"
        case ("not", ("telling-truth", person)):
            return f"{names[person]} is not a knight"
        case ("not", ("lying", person)):
            return f"{names[person]} is not a knave"
        case ("not", inner):
            return f"it is not true that ({say(inner, names)})"
        case ("and" | "or" as word, *parts):
            return f" {word} ".join(_part(part, names) for part in parts)
        case ("->", premise, conclusion):
            return f"if {_part(premise, names)} then {_part(conclusion, names)}"
        case ("<=>", left, right):
            return f"{_part(left, names)} if and only if {_part(right, names)}"
    raise ValueError(f"{statement!r} is no statement")


def _part(statement: Statement, names: Sequence[str]) -> str:
    """A clause inside another: in parentheses unless it is about one person alone."""
    inner = statement[1] if statement[0] == "not" else statement
    simple = inner[0] in ("telling-truth", "lying")
    return say(statement, names) if simple else f"({say(statement, names)})"


def identities(names: Sequence[str], solution: Sequence[bool]) -> str:
    """The answer in the public sets' form: ``(1) Ann is a knight``, a line a person."""
    return "\n".join(
        f"({number}) {name} is a {'knight' if knight else 'knave'}"
        for number, (name, knight) in enumerate(zip(names, solution, strict=True), start=1)
    )


def listing(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else ", ".join(words[:-1]) + " and " + words[-1]
