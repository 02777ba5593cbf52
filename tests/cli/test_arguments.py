import pytest

from headwater.cli.arguments import parse_size


@pytest.mark.parametrize(
    ("text", "size"),
    [("0", 0), ("4096", 4096), ("10MB", 10_000_000), ("64MiB", 64 << 20), ("64 mib", 64 << 20), ("1.5KiB", 1536)],
)
def test_sizes_are_decimal_or_binary(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "MiB", "64M", "-1", "1e3", "64 apples"])
def test_other_sizes_are_refused_with_examples(text: str) -> None:
    with pytest.raises(ValueError, match="write 64MiB"):
        parse_size(text)
