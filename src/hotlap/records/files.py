"""Reading and writing record files. Everything read is untrusted: bounded, typed, and named in the error."""

import contextlib
import os
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec
import tomli_w

from .errors import RecipeError, RecordError, unable
from .tune import Recipe

T = TypeVar("T")
MAX_DOCUMENT: Final = 64 << 20
MAX_RECIPE: Final = 1 << 20
MAX_LINE: Final = 1 << 20
RECIPE_FORMAT: Final = 1
RECIPE: Final = "recipe.toml"
"""In the folder of a tune."""


def to_json(record: Any) -> bytes:
    """A record as JSON. Bytes that are no UTF-8 (in a command or a path, where Python keeps them) become `?`."""
    try:
        return msgspec.json.encode(record)
    except UnicodeEncodeError:
        return msgspec.json.encode(_utf8(msgspec.to_builtins(record)))


def _utf8(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, dict):
        return {_utf8(key): _utf8(item) for key, item in value.items()}
    return [_utf8(item) for item in value] if isinstance(value, (list, tuple)) else value


def encode(record: Any) -> bytes:
    """A record as indented JSON."""
    return msgspec.json.format(to_json(record), indent=2) + b"\n"


def cache_folder(part: str) -> Path:
    """Where a part of the cache lies: in `$HOTLAP_CACHE`, else `$XDG_CACHE_HOME/hotlap`, else `~/.cache/hotlap`."""
    own, user = os.environ.get("HOTLAP_CACHE"), os.environ.get("XDG_CACHE_HOME")
    return (Path(own) if own else (Path(user) if user else Path.home() / ".cache") / "hotlap") / part


def write_atomic(path: Path, data: bytes) -> None:
    """Write so that a reader sees the old file or the new one, never a part. Raises RecordError."""
    with unable(f"write {path}"):
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
            Path(name).chmod(0o644)
            Path(name).replace(path)
        except OSError:
            Path(name).unlink(missing_ok=True)
            raise


def write_record(path: Path, record: Any) -> None:
    """Write a record as a JSON document. Raises RecordError."""
    write_atomic(path, encode(record))


def read_bytes(path: Path, limit: int = MAX_DOCUMENT) -> bytes:
    """A whole file of bounded size. Raises RecordError."""
    with unable(f"read {path}"):
        size = path.stat().st_size
        if size > limit:
            raise RecordError(f"{path} is {size / 2**20:.0f} MiB; more than {limit / 2**20:.0f} MiB is not read")
        with path.open("rb") as file:
            data = file.read(limit + 1)
    if len(data) > limit:  # a device or a pipe, whose size is not known before
        raise RecordError(f"{path} has no end; more than {limit / 2**20:.0f} MiB is not read")
    return data


def read_words(path: Path, limit: int = 500) -> str:
    """The beginning of a text that anything may have written. Raises RecordError."""
    with unable(f"read {path}"), path.open("rb") as file:
        return file.read(limit).decode("utf-8", "replace").strip()


def read_record(path: Path, kind: type[T]) -> T:
    """A JSON document of the given type. Raises RecordError that names the file and the field."""
    try:
        return msgspec.json.decode(read_bytes(path), type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RecordError(f"{path} is not a {kind.__name__.lower()} record: {error}") from error


def read_lines(path: Path, kind: type[T]) -> Iterator[T]:
    """The records of a JSON-lines file; broken lines are passed over (a killed writer leaves one at most)."""
    decoder = msgspec.json.Decoder(kind)
    with unable(f"read {path}"), contextlib.suppress(FileNotFoundError), path.open("rb") as file:
        while line := file.readline(MAX_LINE):
            try:
                yield decoder.decode(line)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                continue


def new_folder(path: Path) -> Path:
    """Make a folder that must not exist yet. Raises RecordError: nothing is ever overwritten."""
    with unable(f"make {path}"):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.mkdir()
        except FileExistsError:
            if not path.parent.is_dir():
                raise RecordError(
                    f"cannot make {path}: {path.parent} is not a folder. Give --out another one"
                ) from None
            if not path.is_dir() or any(path.iterdir()):
                raise RecordError(f"{path} exists and was not overwritten. Give --out another folder") from None
    return path


def _without_none(value: Any) -> Any:
    """TOML has no null."""
    if isinstance(value, dict):
        return {key: _without_none(item) for key, item in value.items() if item is not None}
    if isinstance(value, (list, tuple)):
        return [_without_none(item) for item in value if item is not None]
    return value


def write_recipe(path: Path, recipe: Recipe) -> None:
    """Write a recipe as TOML. Raises RecordError."""
    head = "# hotlap recipe. Use it:  hotlap run --recipe THIS-FILE COMMAND...\n"
    write_atomic(path, (head + tomli_w.dumps(_without_none(msgspec.to_builtins(recipe)))).encode())


def read_recipe(path: Path) -> Recipe:
    """Read a recipe, or that of a tune's folder. Raises RecipeError for anything that is not one of this format."""
    if path.is_dir():
        path = path / RECIPE
        if not path.exists():
            raise RecipeError(f"{path.parent} holds no {RECIPE}: `hotlap tune` writes one where it kept a lever")
    try:
        raw = tomllib.loads(read_bytes(path, MAX_RECIPE).decode())
    except RecordError as error:
        raise RecipeError(str(error)) from error
    except (ValueError, RecursionError) as error:  # ValueError: not UTF-8, not TOML, an integer of 5000 digits
        raise RecipeError(f"{path} is not valid TOML: {error}") from error
    version = raw.get("format")
    if version != RECIPE_FORMAT:
        raise RecipeError(
            f"{path} is a recipe of format {version!r} (written by hotlap {raw.get('hotlap', '?')}); "
            f"this hotlap reads format {RECIPE_FORMAT}. Run `hotlap tune` again"
        )
    try:
        return msgspec.convert(raw, Recipe)
    except msgspec.ValidationError as error:
        raise RecipeError(f"{path}: {error}") from error
