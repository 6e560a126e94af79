import pytest

from fedpriv.datasets.importers.tokens import split_sentences, tff_tokens


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("Hello, World", ["hello", ",", "world"]),
        ("see HTTPS://Example.org/A?b=1 now", ["see", "<URL>", "now"]),
        ("<URL>", ["<", "url", ">"]),  # nobody can write the special token
        ("caf\u00e9 \u4f60\u597d na\u00efve", ["caf", "nave"]),
        ("a\u00a0b", ["a", "b"]),
        ("C++ & snake_case", ["c", "+", "+", "&", "snake", "_", "case"]),
        ("\u4f60\u597d", []),
    ],
)
def test_text_is_lower_case_ascii_with_punctuation_apart(text, tokens):
    assert tff_tokens(text) == tokens


@pytest.mark.parametrize(
    ("markup", "expected"),
    [
        ("<p>One. Two! Three? Four</p>", ["one .", "two !", "three ?", "four"]),
        ("<ul><li>x<li>y</ul>", ["x", "y"]),
        ("line<br/>break\nand another", ["line", "break", "and another"]),
        ("3.14 is pi", ["3 . 14 is pi"]),
        ("<p>&amp;lt; &lt;b&gt; &quot;q&quot;</p>", ['& lt ; < b > " q "']),
        ('<a href="http://x.org/">link</a>', ["link"]),
        ("<a>http://x.org/a</a>.", ["<URL> ."]),
        ("<!-- hidden --><em>k</em>ept", ["kept"]),
        ("1 < 2 and <unclosed", ["1 < 2 and < unclosed"]),
    ],
)
def test_html_becomes_sentences(markup, expected):
    assert [" ".join(tokens) for tokens in split_sentences(markup)] == expected


@pytest.mark.slow
def test_a_run_of_open_brackets_costs_linear_time():
    # With quadratic matching this input takes minutes and the suite's timeout ends it.
    assert len(split_sentences("<a" * 400_000)) == 1
