import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from pkvchat.engine.pages import SCRATCH_PAGE, PagePool, PoolFull


class Pool(RuleBasedStateMachine):
    """Random allocate/share/release against a plain list of owners."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = PagePool(20)
        self.owners: list[list[int]] = []

    @rule(count=st.integers(0, 25))
    def allocate(self, count: int) -> None:
        free = self.pool.num_free
        if count > free:
            with pytest.raises(PoolFull):
                self.pool.allocate(count)
            assert self.pool.num_free == free
        else:
            pages = self.pool.allocate(count)
            assert len(set(pages)) == count
            assert SCRATCH_PAGE not in pages
            assert not {p for owned in self.owners for p in owned} & set(pages)
            self.owners.append(pages)

    @precondition(lambda self: self.owners)
    @rule(data=st.data())
    def share(self, data: st.DataObject) -> None:
        pages = data.draw(st.sampled_from(self.owners))
        self.pool.share(pages)
        self.owners.append(list(pages))

    @precondition(lambda self: self.owners)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        at = data.draw(st.integers(0, len(self.owners) - 1))
        self.pool.release(self.owners.pop(at))

    @invariant()
    def nothing_leaks(self) -> None:
        self.pool.check_integrity(self.owners)
        assert self.pool.num_used == len({p for owned in self.owners for p in owned})


TestPool = Pool.TestCase
TestPool.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


def test_lowest_pages_go_out_first_and_come_back_in_order() -> None:
    pool = PagePool(6)
    first, second = pool.allocate(2), pool.allocate(2)
    assert (first, second) == ([1, 2], [3, 4])
    pool.release(first)
    assert pool.allocate(3) == [1, 2, 5]


def test_releasing_a_free_page_is_an_error() -> None:
    pool = PagePool(4)
    pages = pool.allocate(1)
    pool.release(pages)
    with pytest.raises(ValueError, match="page 1 is already free"):
        pool.release(pages)
    with pytest.raises(ValueError, match="page 1 is free"):
        pool.share(pages)


def test_a_pool_without_a_usable_page_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 2 pages"):
        PagePool(1)


def test_check_integrity_sees_a_leak() -> None:
    pool = PagePool(4)
    pages = pool.allocate(2)
    with pytest.raises(AssertionError, match="page 2: 1 references, 0 owners"):
        pool.check_integrity([pages[:1]])
