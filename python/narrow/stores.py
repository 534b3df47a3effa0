"""Checkpoints on other stores: paths are local, or URLs that fsspec knows (s3://, gs://, memory://, file://).

A remote input is mirrored as sparse local files: the headers of all tensor files at once, the bytes of one when its shard is made. A remote
output is written locally first and published file by file; the manifest goes last, and without it a directory is no checkpoint.
"""

from __future__ import annotations

import importlib.util
import os
import pathlib
import shutil
from typing import Any

from .errors import CorruptFile, InvalidArgument, IoError, Unsupported

_PIECE = 64 << 20  # bytes of one range that is pulled
_LARGEST_HEADER = 100_000_000
MANIFEST = "narrow_manifest.json"
# Weights in other forms: narrow leaves them where they are (src/io/checkpoint_directory.cc has the same list).
_OTHER_WEIGHTS = (".bin", ".pt", ".pth", ".gguf", ".ggml", ".onnx", ".onnx_data", ".h5", ".msgpack", ".ckpt", ".npz", ".npy", ".pkl",
                  ".tflite", ".bin.index.json", ".h5.index.json", ".msgpack.index.json")  # fmt: skip


def is_url(path: Any) -> bool:
    return "://" in os.fspath(path)


def _open(url: str) -> tuple[Any, str]:
    """fsspec's file system and the path in it."""
    if importlib.util.find_spec("fsspec") is None:
        raise Unsupported(f"{url} is no local path, and other stores need fsspec: pip install fsspec")
    import fsspec

    try:
        return fsspec.core.url_to_fs(url)
    except (ImportError, ValueError) as why:
        raise Unsupported(f"{url} cannot be opened: {why}") from None


class RemoteInput:
    """A remote directory as a local one whose tensor files are empty but for their headers, until they are filled."""

    def __init__(self, url: str, place: pathlib.Path):
        self.url, self.place = url, place
        self._fs, self._path = _open(url)
        self._filled: set[str] = set()
        try:
            entries = {os.path.basename(e["name"]): e["size"] for e in self._fs.ls(self._path, detail=True) if e["type"] == "file"}
        except OSError as why:
            raise IoError(f"{url} cannot be read: {why}") from None
        if not entries:
            raise IoError(f"{url} has no files")
        for name, size in sorted(entries.items()):
            if name.endswith(".safetensors"):
                self._make_sparse(name, size)
            elif not name.lower().endswith(_OTHER_WEIGHTS):
                self._fs.get_file(f"{self._path}/{name}", str(place / name))

    def _range(self, name: str, begin: int, end: int) -> bytes:
        data = self._fs.cat_file(f"{self._path}/{name}", start=begin, end=end)
        if len(data) != end - begin:
            raise IoError(f"{self.url}/{name}: {end - begin} bytes at {begin} were asked for, {len(data)} came")
        return data

    def _make_sparse(self, name: str, size: int) -> None:
        length = int.from_bytes(self._range(name, 0, 8), "little") if size >= 8 else -1
        if not 0 <= length <= min(size - 8, _LARGEST_HEADER):
            raise CorruptFile(f"{self.url}/{name}: it is no safetensors file")
        with open(self.place / name, "wb") as file:
            file.write(self._range(name, 0, 8 + length))
            file.truncate(size)

    def fill(self, name: str) -> None:
        """Pulls the tensors of one file, a range at a time."""
        if name in self._filled or not (self.place / name).exists():
            return
        with open(self.place / name, "r+b") as file:
            size = file.seek(0, os.SEEK_END)
            for begin in range(0, size, _PIECE):
                file.seek(begin)
                file.write(self._range(name, begin, min(size, begin + _PIECE)))
        self._filled.add(name)

    def drop(self, name: str) -> None:
        """Gives the disk back; the header stays."""
        self._filled.discard(name)
        self._make_sparse(name, (self.place / name).stat().st_size)


class LocalOutput:
    """A directory that is filled under a temporary name beside its place and renamed there when it is complete."""

    def __init__(self, path: Any):
        self.path = pathlib.Path(os.path.abspath(path))
        name = f".{self.path.name[:180]}.narrow-partial-{os.getpid()}-{os.urandom(4).hex()}"
        self.stage, self.attempts = self.path.parent / name, self.path.parent / f"{name}-attempts"
        self.stage.mkdir()
        self.attempts.mkdir()

    def attempt(self, number: int) -> str:
        """A place of its own for one try at a shard: two that run at once do not meet."""
        place = self.attempts / str(number)
        place.mkdir()
        return str(place)

    def accept(self, place: str, name: str) -> None:
        """Takes a shard that a worker has made."""
        os.rename(pathlib.Path(place) / name, self.stage / name)

    def commit(self) -> None:
        _sync(self.stage)
        os.rename(self.stage, self.path)
        _sync(self.path.parent)
        shutil.rmtree(self.attempts, ignore_errors=True)

    def discard(self) -> None:
        for place in (self.stage, self.attempts):
            shutil.rmtree(place, ignore_errors=True)


class RemoteOutput:
    """A remote directory: shards are published by the workers, the driver's own files from a local place, the manifest last."""

    def __init__(self, url: str, place: pathlib.Path):
        self.url, self.stage = url.rstrip("/"), place
        fs, path = _open(self.url)
        if fs.exists(path) and fs.ls(path):
            raise InvalidArgument(f"{url} exists and is not empty; name a new directory or remove it first")

    def attempt(self, number: int) -> str:
        return ""

    def accept(self, place: str, name: str) -> None:
        pass

    def commit(self) -> None:
        names = sorted(entry.name for entry in self.stage.iterdir())
        for name in [name for name in names if name != MANIFEST] + [MANIFEST]:
            publish(self.stage / name, self.url)

    def discard(self) -> None:
        fs, path = _open(self.url)
        if fs.exists(path) and not fs.exists(f"{path}/{MANIFEST}"):
            fs.rm(path, recursive=True)


def publish(file: pathlib.Path, url: str) -> None:
    """Puts a local file under its name in a remote directory; whole objects appear at once, local paths by a rename."""
    fs, path = _open(url)
    fs.makedirs(path, exist_ok=True)
    protocols = (fs.protocol,) if isinstance(fs.protocol, str) else fs.protocol
    if "file" in protocols or "local" in protocols:
        partial = f"{path}/.{file.name}.narrow-partial-{os.getpid()}-{os.urandom(4).hex()}"
        fs.put_file(str(file), partial)
        os.rename(partial, f"{path}/{file.name}")
    else:
        fs.put_file(str(file), f"{path}/{file.name}")


def _sync(directory: pathlib.Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
