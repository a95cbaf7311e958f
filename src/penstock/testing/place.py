"""The contract of a place: what is created is complete, is listed, and gives exactly the bytes of any range."""

from penstock.errors import SourceChanged
from penstock.places.place import Place
from penstock.testing.same import raises, same, sent

_DATA = bytes(range(256)) * 40
_END = len(_DATA)


def check_place(place: Place, folder: str) -> None:
    """Write small files to a folder of the place, which must be empty or missing, and read them in every way.

    folder: its name, as the methods of the place take it.
    """
    name = f"{folder}/part-1.bin"
    other = f"{folder}/below/part-2.bin"
    raises(FileNotFoundError, lambda: place.stat(name), "a missing file")
    same(place.create(name, lambda file: file.write(_DATA)), _END, "create returns the size")
    place.create(other, lambda file: file.write(b"other"))
    same(
        [place.kind(each) for each in (name, folder, f"{folder}/no")],
        ["file", "folder", ""],
        "kinds of names",
    )
    same(
        sorted(place.entries(folder)),
        [("below", True), ("part-1.bin", False)],
        "what is in a folder",
    )
    files = sorted([place.stat(name), place.stat(other)], key=lambda file: file.path)
    same(sorted(place.scan(folder), key=lambda file: file.path), files, "all files below a folder")
    same(place.glob(f"{folder}/**/*-2.bin"), [place.absolute(other)], "files that match a pattern")
    _check_reads(place, name)
    _check_versions(place, name)
    for _ in range(2):  # the second time there is nothing to remove
        place.remove(name)
    raises(FileNotFoundError, lambda: place.read(name), "a file that was removed")


def _check_reads(place: Place, name: str) -> None:
    version = place.stat(name)
    same((version.path, version.size), (place.absolute(name), _END), "path and size of a file")
    same((place.read(name), place.read(name, version)), (_DATA, _DATA), "all bytes")
    file = place.open(name, version)
    for opened in (file, sent(file)[0]):
        for start, stop in ((0, 0), (0, 1), (5, 900), (_END - 3, _END), (0, _END)):
            same(opened.read(start, stop), _DATA[start:stop], f"bytes {start}..{stop}")
        same(bytes(opened.map()), _DATA, "the map of a file")
        room = bytearray(100)
        same(
            (opened.readinto(room, 7), bytes(room)),
            (100, _DATA[7:107]),
            "bytes that are read into a buffer",
        )
        same(opened.readinto(room, _END - 10), 10, "bytes up to the end")
        opened.check()
    raises(SourceChanged, lambda: file.read(0, _END + 1), "bytes behind the end")


def _check_versions(place: Place, name: str) -> None:
    """A name keeps its content unless it is replaced, and a file that was opened before notices that."""
    version = place.stat(name)
    file = place.open(name, version)
    place.create(name, lambda out: out.write(_DATA))
    raises(
        FileExistsError,
        lambda: place.create(name, lambda out: out.write(b"new")),
        "other bytes under a name",
    )
    same(place.stat(name), version, "a file whose name is taken stays as it is")
    place.create(name, lambda out: out.write(b"new"), replace=True)
    same(place.read(name), b"new", "replaced content")
    raises(SourceChanged, file.check, "a file that was replaced")
    raises(SourceChanged, lambda: place.read(name, version), "a version that was replaced")
    raises(
        SourceChanged,
        lambda: place.open(name, version),
        "a version that was replaced, opened again",
    )
