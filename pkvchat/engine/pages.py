"""The ref-counted pool of KV pages. It knows page numbers only, not tensors or sequences."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

SCRATCH_PAGE = 0  # padded rows write here; never handed out


class PoolFull(Exception):
    """More pages were asked for than are free."""


class PagePool:
    """Pages ``1 .. num_pages - 1``; the lowest free number goes out first.

    Low numbers first keeps a lone chat's pages side by side and untouched memory untouched.
    """

    def __init__(self, num_pages: int) -> None:
        if num_pages < 2:
            raise ValueError(f"a pool needs at least 2 pages, one of them scratch; got {num_pages}")
        self.num_pages = num_pages
        self._free = list(range(num_pages - 1, SCRATCH_PAGE, -1))  # descending: pop() is the lowest
        self._sorted = True
        self._refs = [0] * num_pages
        self._num_shared = 0

    @property
    def capacity(self) -> int:
        """Pages that can be handed out."""
        return self.num_pages - 1

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_used(self) -> int:
        return self.capacity - self.num_free

    @property
    def num_shared(self) -> int:
        """Pages that more than one chat reads."""
        return self._num_shared

    def allocate(self, count: int) -> list[int]:
        """``count`` pages with one reference each. Raises PoolFull, taking none, if too few."""
        if count > len(self._free):
            raise PoolFull(f"{count} pages wanted, {len(self._free)} of {self.capacity} free")
        if not self._sorted:
            self._free.sort(reverse=True)
            self._sorted = True
        pages = [self._free.pop() for _ in range(count)]
        for page in pages:
            self._refs[page] = 1
        return pages

    def share(self, pages: Sequence[int]) -> None:
        """One more reference to each page, all of them in use."""
        for page in pages:
            if self._refs[page] == 0:
                raise ValueError(f"page {page} is free and cannot be shared")
        for page in pages:
            self._refs[page] += 1
            self._num_shared += self._refs[page] == 2

    def release(self, pages: Sequence[int]) -> None:
        """One reference less; a page without references is free again."""
        for page in pages:
            if self._refs[page] == 0:
                raise ValueError(f"page {page} is already free")
            self._refs[page] -= 1
            self._num_shared -= self._refs[page] == 1
            if self._refs[page] == 0:
                self._free.append(page)
                self._sorted = False

    def is_shared(self, page: int) -> bool:
        return self._refs[page] > 1

    def check_integrity(self, owners: Iterable[Sequence[int]]) -> None:
        """owners: all page lists in use. Raises AssertionError if a page leaked or was lost."""
        held = Counter(page for pages in owners for page in pages)
        for page in range(self.num_pages):
            if self._refs[page] != held[page]:
                raise AssertionError(
                    f"page {page}: {self._refs[page]} references, {held[page]} owners"
                )
        if self._num_shared != sum(refs > 1 for refs in self._refs):
            raise AssertionError(f"{self._num_shared} pages counted as shared")
        free = set(self._free)
        if len(free) != len(self._free) or free != {
            p for p in range(1, self.num_pages) if not self._refs[p]
        }:
            raise AssertionError("the free list and the reference counts disagree")
