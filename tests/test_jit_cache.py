"""The tests' own builds are those of today's sources, though they are kept from run to run."""

import os

import jit_cache
import pytest


@pytest.fixture
def source(tmp_path):
    """A source file, in a folder that was prepared and used for a build."""
    path = tmp_path / "sources" / "a.cpp"
    path.parent.mkdir()
    path.write_text("old")
    jit_cache.prepare(tmp_path / "cache", jit_cache.digests(path.parent))
    (tmp_path / "cache" / "add2.so").touch()
    jit_cache.finish(tmp_path / "cache")
    return path


def is_kept(source):
    """Whether the next run finds the build."""
    cache = source.parents[1] / "cache"
    jit_cache.prepare(cache, jit_cache.digests(source.parent))
    return (cache / "add2.so").exists()


def test_nothing_changed(source):
    assert is_kept(source)


def test_edit_with_a_new_time(source):
    """ninja sees it, and compiles only that file."""
    source.write_text("new")
    later = os.stat(source).st_mtime + 10
    os.utime(source, (later, later))
    assert is_kept(source)


def test_edit_with_an_old_time(source):
    """As by `cp -p`; or made while the tests of the last run were being compiled."""
    old = os.stat(source).st_mtime - 10
    source.write_text("new")
    os.utime(source, (old, old))
    assert not is_kept(source)


def test_new_header(source):
    """It may be found before the one that was included until now."""
    source.with_name("b.h").touch()
    assert not is_kept(source)


def test_folder_that_another_run_has_emptied(tmp_path):
    jit_cache.finish(tmp_path / "cache")


def test_emulator_is_kept_while_it_is_the_same(tmp_path, monkeypatch):
    """An edited emulator does not find the libraries of the old one, and a folder that has grown is emptied."""
    emulator, cache = tmp_path / "emulator", tmp_path / "cache"
    emulator.mkdir()
    cache.mkdir()
    monkeypatch.setattr(jit_cache, "EMULATOR", emulator)
    (emulator / "build.py").write_text("old")
    first = jit_cache.keep_emulator(cache)
    (first / "kernels.so").write_text("1234")
    assert jit_cache.keep_emulator(cache) == first
    assert (first / "kernels.so").exists()
    monkeypatch.setattr(jit_cache, "LARGEST", 3)
    assert jit_cache.keep_emulator(cache) == first
    assert list(first.iterdir()) == []
    (emulator / "build.py").write_text("new")
    second = jit_cache.keep_emulator(cache)
    assert second != first
    assert not first.exists()
    assert list(second.iterdir()) == []
