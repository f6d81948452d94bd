import pytest

pytest.importorskip("typer")
pytest.importorskip("rich")

from torchleap._common.errors import TorchleapError
from torchleap.cli.lists import joined, listed, names_of, numbers_by_name


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (None, []),
        ("", []),
        (" , ,", []),
        ("a,b , c", ["a", "b", "c"]),
        ('"a,b",c', ["a,b", "c"]),
        ('c, "a,b"', ["c", "a,b"]),
        ('"a,b" , c', ["a,b", "c"]),
        ('"she said ""no""",c', ['she said "no"', "c"]),
        ('5" wide,c', ['5" wide', "c"]),
        ("it's,c", ["it's", "c"]),
        ("a b,用户", ["a b", "用户"]),
    ],
)
def test_a_list_is_read_as_csv(given, words):
    assert listed(given) == words


@pytest.mark.parametrize("given", ['"a,b', 'a,"b', '"a,b",c,"', '"'])
def test_a_quote_that_is_not_closed_is_refused(given):
    with pytest.raises(
        TorchleapError, match=r'Expected a,b or "a,b",c with every double quote closed, but found '
    ) as told:
        listed(given)
    assert str(told.value).endswith(f"{given!r}.")


def test_a_line_break_outside_of_quotes_is_refused():
    assert listed('"a\nb",c') == ["a\nb", "c"]
    with pytest.raises(
        TorchleapError, match=r"Expected words with commas between them, but found 'a\\nb'"
    ):
        listed("a\nb")


@pytest.mark.parametrize(
    ("given", "numbers"),
    [
        (None, {}),
        ("a=2.5,b=1", {"a": 2.5, "b": 1.0}),
        ('"a,b"=2,c=1', {"a,b": 2.0, "c": 1.0}),
        ('c=1,"a,b=2"', {"c": 1.0, "a,b": 2.0}),
        ("a=b=3", {"a=b": 3.0}),
    ],
)
def test_numbers_by_name_may_have_commas_in_the_names(given, numbers):
    assert numbers_by_name(given, "--cost") == numbers


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ('"a,b"', "--cost must be NAME=NUMBER,..., but has 'a,b'."),
        ("a,b=2", "--cost must be NAME=NUMBER,..., but has 'a'."),
        ("=2", "--cost must be NAME=NUMBER,..., but has '=2'."),
        ('"a,b=2', "with every double quote closed"),
    ],
)
def test_a_word_that_is_not_a_number_by_name_is_refused(given, sentence):
    with pytest.raises(TorchleapError) as told:
        numbers_by_name(given, "--cost")
    assert sentence in str(told.value)


def test_names_are_read_like_lists_but_each_column_has_one():
    assert names_of(None) is None
    assert names_of('a, "b,c",d') == ["a", "b,c", "d"]
    assert names_of("a,,b") == [
        "a",
        "",
        "b",
    ]  # to pass over it would move the names of all columns behind it
    with pytest.raises(TorchleapError, match="with every double quote closed"):
        names_of('a,"b')


@pytest.mark.parametrize(
    "names", [[], ["a", "b"], ["a,b", "c"], ['"x" wide', 'say "no", twice', "it's"]]
)
def test_a_list_that_is_shown_can_be_given_again(names):
    assert listed(joined(names)) == names
