"""What the packages ship beside their code, and whether their docstrings lead to all of it."""

from __future__ import annotations

import importlib
import pkgutil
from pathlib import Path

import pytest

import pkvchat


def test_type_checkers_are_told_of_the_hints():
    """The subpackages, which lie in the same folder once installed, need no marker of their own."""
    assert (Path(pkvchat.__file__).parent / "py.typed").is_file()


@pytest.mark.parametrize(
    "name",
    ["pkvchat.engine", "pkvchat.kernels", "pkvchat.kernels.policy", "pkvchat.kernels.products"],
)
def test_a_package_names_its_modules(name):
    """A CUDA form goes without saying where its namesake is named."""
    package = importlib.import_module(name)
    modules = [module.name for module in pkgutil.iter_modules(package.__path__)]
    named = [f"``{module}``" in package.__doc__ for module in modules]
    namesakes = [f"``{module.removesuffix('_triton')}``" in package.__doc__ for module in modules]
    assert [m for m, *found in zip(modules, named, namesakes, strict=True) if not any(found)] == []
