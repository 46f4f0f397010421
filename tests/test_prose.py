"""The project's prose stays plain English: phrases that read as if translated are at most one in a thousand words."""

import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FOLDERS = ("docs", "stellaris", "experiments", "theory_checks")
MOST = 1.0  # places in a thousand words, because some matches are good English

#: What to say instead, and the phrases. A space matches a line break as well.
PHRASES = {
    "name the thing instead of 'what'": r"(?:\b(?:of|by|from|in|to|than|with|on|for|and|is|are) |(?:^|[.;:(] ?))what\b"
    r"(?! (?:if|about)\b)(?![^.;]*\?)",
    "name the thing instead of 'those that'": r"\b(?:those (?:that|which)|that which|all that (?:is|are|was|the|it))\b",
    "split the sentence before 'of which'": r"\b(?:of which|of whom|whereof|wherein|whereby)\b",
    "repeat the description instead of 'likewise'": r"\b(?:likewise|the same holds of)\b",
    "'is not a', 'lacks', or the opposite verb": r"\b(?:is|are|was|were|be) (?-i:none|no [a-z`_]+)\b",
    "check, read or inspect": r"\blook(?:s|ed|ing)? at\b",
    "separate, own, or nothing": r"\b(?:one's own|of (?:its|their|his) own)\b",
    "result in, follow from, or the plain verb": r"\b(?:c[ao]mes? (?:to (?!mind)|of )|coming of )",
    "one ... per ...": r"\ban? (?:row|line|run|number|minute|call|second|file|module|sample|step|version) an? [a-z]+",
    "for any number of, for every": r"\b(?:however (?:many|much|often|long)|whatever (?:it|the|is|they|was))\b",
    "continue": r"\b(?:go|goes|going|gets?|went) on(?! (?:to|top)\b)",
    "also, or nothing": r", (?:too|as well)(?=[.;,)])",
    "and, next to, apart from": r"\bbesides?\b",
    "start with a verb or a noun": r"^(?-i:Of|By) ",
    "put the subject first": r"\b(?:so (?:much|many|few) (?:is|are)|such is|is to be (?:had|said|done))\b",
}
PATTERNS = {advice: re.compile(phrase.replace(" ", r"\s+"), re.IGNORECASE) for advice, phrase in PHRASES.items()}


def found(text: str) -> Iterator[tuple[int, str]]:
    """The position of each phrase in a text, and the advice."""
    for advice, pattern in PATTERNS.items():
        for match in pattern.finditer(text):
            yield match.start(), advice


def without_code(text: str) -> str:
    """A text with blanks in place of code in backticks, doctests and links, so that positions stay."""

    def blank(match: re.Match[str]) -> str:
        return re.sub(r"\S", "_", match[0])

    return re.sub(r"`[^`]*`|^ *(?:>>>|\.\.\. ).*$|https?://\S+", blank, text, flags=re.MULTILINE)


def of_markdown(text: str) -> str:
    """Its prose, with blanks in place of blocks of code."""
    return re.sub(r"^ *```.*?^ *```", lambda match: re.sub(r"\S", "", match[0]), text, flags=re.DOTALL | re.MULTILINE)


def pieces(path: Path) -> Iterator[tuple[int, str]]:
    """The first line and the text of each piece of prose: Markdown, docstrings, comments and longer strings."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        yield 1, without_code(of_markdown(text))
        return
    strings = {tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING)}
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], without_code(token.string.lstrip("#: "))
        elif token.type in strings and (len(token.string) > 30 or token.string.startswith('"""')):
            yield token.start[0], without_code(re.sub(r"^[rbfRBF]*(?:\"\"\"|\"|')", "", token.string))


def files() -> list[Path]:
    """The pages and the Python files."""
    inner = [path for folder in FOLDERS for suffix in ("md", "py") for path in (ROOT / folder).rglob(f"*.{suffix}")]
    return sorted([*ROOT.glob("*.md"), *(path for path in inner if "_build" not in path.parts)])


@pytest.mark.slow
def test_the_prose_is_plain() -> None:
    """At most one phrase in a thousand words, over the whole project."""
    words = 0
    places = []
    for path in files():
        for first, text in pieces(path):
            words += len(re.findall(r"[^\W_]+", text))
            for position, advice in found(text):
                line = text[:position].count("\n")
                shown = " ".join(text[position : position + 60].split())
                places.append(f"{path.relative_to(ROOT)}:{first + line}: {shown!r}: {advice}")
    assert words > 50_000
    share = 1000 * len(places) / words
    listed = "\n".join(places)
    assert share <= MOST, f"{len(places)} places in {words} words, {share:.1f} in a thousand:\n{listed}"


@pytest.mark.parametrize(
    "text",
    [
        "What a clamp leaves hides the rest.",
        "The bytes of what an actor delivers.",
        "Rows of those that are empty.",
        "Two maps, of which the first counts.",
        "high: likewise.",
        "aggregator=3 is none: make one",
        "that step is no transition",
        "It is looked at before any is read.",
        "A queue of its own.",
        "What came of it.",
        "a row a round",
        "bit for bit, whatever the load",
        "The episode goes\n    on after it.",
        "It runs on a cluster, too.",
        "Beside the columns.",
        "Of each trajectory.",
        "so much is tuning worth",
    ],
)
def test_phrases_that_are_found(text: str) -> None:
    """Also across a line break."""
    assert [*found(text)]


@pytest.mark.parametrize(
    "text",
    [
        "Returns the weight of each trajectory.",
        "Deadlock at 3 s: no invocation is pending.",
        "What does it cost?",
        "One row per round; a second call raises.",
        "The result comes from the trace, and too many are dropped.",
        "It builds on the other side of the order.",
    ],
)
def test_plain_sentences_pass(text: str) -> None:
    """They say the same in the usual words."""
    assert not [*found(text)]


def test_code_is_not_prose() -> None:
    """Code in backticks, doctests, blocks and links may say anything; the rest of the line counts."""
    text = "Calls `looked at`, beside it.\n  >>> likewise = 1\n"
    assert [advice for _, advice in found(without_code(text))] == ["and, next to, apart from"]
    assert not [*found(of_markdown("One.\n```python\nx = likewise\n```\nTwo.\n"))]
