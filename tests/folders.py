"""Folders of files for tests."""


def touch(folder, *names):
    """Empty files of these names, folders made as needed; returns the folder."""
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"")
    return folder
