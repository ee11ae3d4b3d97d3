"""What a killed compiler leaves in torch.compile's cache."""

import fcntl
from pathlib import Path

import pytest

from hotlap.levers.compiler import _compile_cache


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """As torch 2.13 leaves it: a build that ended, and one of two files that was killed."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(_compile_cache, "_of_torch", lambda: tmp_path / "none")
    for name in ("locks", "aa", "bb/cbb.main_CxxBuild", "cc/ccc.optimized_CxxBuild"):
        (tmp_path / name).mkdir(parents=True)
    for name in ("aa/caa.main.so", "bb/cbb.main.so", "bb/cbb.main.cpp", "cc/ccc.optimized.o", "bb/cbbx.main.so"):
        (tmp_path / name).write_bytes(b"")
    for key in ("caa", "cbb"):
        (tmp_path / "locks" / f"{key}.lock").touch()
    return tmp_path


def built(cache: Path) -> list[str]:
    return sorted(str(path.relative_to(cache)) for path in cache.rglob("*") if path.suffix in _compile_cache.BUILT)


def test_half_written_files_go_and_whole_ones_stay(cache: Path) -> None:
    assert built(cache) == ["aa/caa.main.so", "bb/cbb.main.so", "bb/cbbx.main.so", "cc/ccc.optimized.o"]
    _compile_cache.mend()
    assert built(cache) == ["aa/caa.main.so", "bb/cbbx.main.so"]
    assert (cache / "bb/cbb.main.cpp").exists() and not list(cache.glob("*/*_CxxBuild"))


def test_what_another_process_builds_now_is_left_alone(cache: Path) -> None:
    with (cache / "locks" / "cbb.lock").open("r+b") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        _compile_cache.mend()
        assert len(built(cache)) == 4
    _compile_cache.mend()
    assert len(built(cache)) == 2


def test_without_a_cache_there_is_nothing_to_mend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "none"))
    monkeypatch.setattr(_compile_cache, "_of_torch", lambda: tmp_path / "none either")
    _compile_cache.mend()
    assert not list(tmp_path.iterdir())


def test_the_default_is_torchs(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._inductor.runtime.cache_dir_utils import default_cache_dir

    assert str(_compile_cache._of_torch()) == default_cache_dir()


def test_an_error_of_the_system_while_a_lock_is_held_is_that_error(tmp_path: Path) -> None:
    lock = tmp_path / "a.lock"
    for exists in (False, True):
        if exists:
            lock.touch()
        with pytest.raises(OSError, match="full"), _compile_cache._free(lock) as free:
            assert free is exists
            raise OSError("full")
