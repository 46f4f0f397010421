"""Options: what they take, and what is said about all else."""

import argparse
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.toolkit import options
from experiments.toolkit.shell import STATUSES, UsageError


@given(st.integers(), st.integers(0, 5))
def test_whole_numbers(number, least):
    """From the least to what fits into 32 bits with a sign."""
    if least <= number < 2**31:
        assert options.whole(least)(str(number)) == number
    else:
        with pytest.raises(argparse.ArgumentTypeError, match=str(number)):
            options.whole(least)(str(number))


@pytest.mark.parametrize("text", ["", "nan", "inf", "1.5", "x", "²", "9" * 5000])
def test_what_is_no_whole_number(text):
    with pytest.raises(argparse.ArgumentTypeError, match="is not a whole number from 0 to 2,147,483,647"):
        options.whole(0)(text)


def test_a_greatest_whole_number():
    assert options.whole(1, 32)("32") == 32
    with pytest.raises(argparse.ArgumentTypeError, match="33 is not a whole number from 1 to 32"):
        options.whole(1, 32)("33")


@given(st.floats())
def test_seconds(number):
    if 0 < number < math.inf:
        assert options.seconds(repr(number)) == number
    else:
        with pytest.raises(argparse.ArgumentTypeError, match="is not a positive, finite number of seconds"):
            options.seconds(repr(number))


@given(st.floats())
def test_finite_numbers(number):
    if math.isfinite(number):
        assert options.finite(repr(number)) == number
    else:
        with pytest.raises(argparse.ArgumentTypeError, match="is not a finite number"):
            options.finite(repr(number))


def test_folders():
    """An empty name, such as that of a variable that is not set, is not the working directory."""
    assert options.folder("a/b") == Path("a/b")
    assert options.folder(".") == Path()
    with pytest.raises(argparse.ArgumentTypeError, match="names no folder"):
        options.folder("")


def test_the_last_of_several_seeds_is_one():
    """Seeds are below 2**31."""
    assert options.seeds("--seed", 2**31 - 2, 2) == range(2**31 - 2, 2**31)
    with pytest.raises(UsageError, match="--seed: 3 seeds from 2147483646 on exceed"):
        options.seeds("--seed", 2**31 - 2, 3)


def test_errors_name_the_option():
    parser = options.Parser(prog="it")
    parser.add_argument("--number", type=options.whole(1))
    for words, said in (
        (["--number", "0"], "--number: 0 is not a whole number from 1"),
        (["--number"], "--number: expected one argument"),
        (["--nothing"], "unrecognized arguments: --nothing"),
    ):
        with pytest.raises(UsageError) as error:
            parser.parse_args(words)
        assert str(error.value).startswith(said)


def test_help_explains_the_exit_status():
    parser = options.Parser(prog="it", epilog="First.")
    sub = parser.add_subparsers().add_parser("sub")
    for text in (parser.format_help(), sub.format_help()):
        assert " ".join(STATUSES.split()) in " ".join(text.split())
