"""Single batches: the named ones and the grid."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from pkvchat.attention_bench.cases import grid, named_cases, ragged


@settings(max_examples=100, deadline=None)
@given(batch=st.integers(2, 64), mean=st.integers(1, 131072))
def test_ragged_rows_read_as_much_as_even_ones(batch, mean):
    rows = ragged(batch, mean)
    assert len(rows) == batch
    assert sum(rows) == batch * mean
    assert min(rows) >= 1
    if mean >= 64:
        assert max(rows) > 1.5 * min(rows)


def test_named_cases_have_names_of_their_own_and_whole_groups():
    cases = named_cases()
    names = [case.name for case in cases]
    assert len(set(names)) == len(names)
    assert all(case.num_qo_heads % case.num_kv_heads == 0 for case in cases)
    assert all(case.target >= 1 for case in cases)
    by_name = {case.name: case for case in cases}
    assert by_name["B16 2k"].lengths == (2048,) * 16
    assert by_name["B1 128k"].lengths == (131072,)
    long, *short = by_name["B8 bimodal"].lengths[:4]
    assert long >= 24576
    assert max(short) <= 12288


def test_the_grid_is_every_combination_that_fits():
    cases = list(grid([1, 2], [512, 1024], [1, 4], num_qo_heads=8, max_tokens=2 * 1024 * 8))
    assert [case.name for case in cases] == [
        "G1 B1 512",
        "G1 B1 1k",
        "G1 B2 512",
        "G1 B2 512 ragged",
        "G1 B2 1k",
        "G1 B2 1k ragged",
        "G4 B1 512",
        "G4 B1 1k",
        "G4 B2 512",
        "G4 B2 512 ragged",
        "G4 B2 1k",
        "G4 B2 1k ragged",
    ]
    assert {case.num_kv_heads for case in cases} == {2, 8}
    fewer = list(grid([1, 2], [512, 1024], [1, 4], num_qo_heads=8, max_tokens=1024 * 8))
    assert "G1 B2 1k" not in {case.name for case in fewer}
    assert "G4 B2 1k" in {case.name for case in fewer}


def test_groups_that_do_not_divide_the_heads_take_the_most_there_is_room_for():
    (case,) = grid([1], [512], [7], num_qo_heads=32, max_tokens=1 << 20)
    assert (case.num_qo_heads, case.num_kv_heads) == (28, 4)
