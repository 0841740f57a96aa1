"""Power loss of a simulated disk: what may remain under the journals of ext4 and XFS.

- An unsynced write survives, is lost, survives up to some byte, or becomes zeros.
- Name changes are lost from the last one backwards, never one before another that survives; a rename is one change.
  Syncing a folder keeps all changes up to the last in that folder; syncing a file keeps its bytes, not its name.
- If a truncation is lost, later writes to the file are lost, too.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ottla.world.disk_memory import Contents, Folder, MemoryDisk

if TYPE_CHECKING:
    from ottla.world.clock import Clock
    from ottla.world.random import Random

Assignment = tuple[Folder, str, "Folder | Contents | None"]

# Bound the unsynced changes per file, as kernel writeback does.
_WRITEBACK = 4096


@dataclass(slots=True)
class Change:
    """An unsynced write, or (data is None) a truncation to `position`."""

    number: int
    position: int
    data: bytes | None


@dataclass(slots=True)
class Inode:
    """Durable contents of a file and its unsynced changes."""

    durable: Contents
    changes: list[Change] = field(default_factory=list)
    failed: OSError | None = None

    def keep(self, number: int) -> None:
        """Make changes up to a number durable."""
        count = 0
        for change in self.changes:
            if change.number > number:
                break
            _apply(self.durable, change)
            count += 1
        del self.changes[:count]

    def fail(self, error: OSError, random: Random) -> None:
        """Record a failed sync: the kernel marks the pages clean, and unwritten ones are lost."""
        self.failed = error
        for change in self.changes:
            if change.data is None or random.below(2):
                _apply(self.durable, change)
        self.changes.clear()


class Platter:
    """Visible files and their durable state, which survive the process."""

    def __init__(self, cap_bytes: int | None, clock: Clock | None) -> None:
        self.visible = MemoryDisk(cap_bytes, clock)
        self.inodes: dict[Contents, Inode] = {}
        self.names: dict[Folder, dict[str, Folder | Contents]] = {self.visible.root: {}}
        self.name_changes: list[list[Assignment]] = []
        self.number = 0

    def inode(self, contents: Contents) -> Inode:
        """Return the durable state of a file."""
        inode = self.inodes.get(contents)
        if inode is None:
            inode = self.inodes[contents] = Inode(Contents())
        return inode

    def note(self, contents: Contents, position: int, data: bytes | None) -> None:
        """Record an unsynced write or truncation."""
        self.number += 1
        inode = self.inode(contents)
        inode.changes.append(Change(self.number, position, data))
        if len(inode.changes) > _WRITEBACK and inode.failed is None:
            inode.keep(inode.changes[_WRITEBACK // 2].number)

    def keep_names(self, count: int) -> None:
        """Make the first `count` name changes durable."""
        for change in self.name_changes[:count]:
            moved = [entry for _, _, entry in change]
            for folder, name, entry in change:
                nameless = _assign(self.names, folder, name, entry)
                if nameless in moved:
                    continue
                if isinstance(nameless, Contents):
                    self.inodes.pop(nameless, None)
                elif nameless is not None:
                    self.names.pop(nameless, None)
        del self.name_changes[:count]

    def lose_power(self, random: Random) -> None:
        """Lose power: keep durable data and a random part of the rest."""
        mode = random.choice(("all lost", "all kept", "in order", "any", "any"))
        names = {folder: dict(entries) for folder, entries in self.names.items()}
        surviving = {"all lost": 0, "all kept": len(self.name_changes)}.get(mode)
        for change in self.name_changes[: random.below(len(self.name_changes) + 1) if surviving is None else surviving]:
            for folder, name, entry in change:
                _assign(names, folder, name, entry)

        before = self.visible
        self.visible = MemoryDisk(before.cap_bytes, before._clock)
        survivors = self.inodes
        self.inodes, self.names, self.name_changes = {}, {}, []

        def rebuild(old: Folder, new: Folder) -> None:
            new.modified_ms = old.modified_ms
            for name, entry in names.get(old, {}).items():
                if isinstance(entry, Folder):
                    made = new.entries[name] = Folder()
                    rebuild(entry, made)
                else:
                    contents = new.entries[name] = _survivor(survivors.get(entry), mode, random)
                    contents.modified_ms = entry.modified_ms
                    self.visible.used_bytes += contents.length
                    self.inodes[contents] = Inode(contents.copy())
            self.names[new] = dict(new.entries)

        rebuild(before.root, self.visible.root)


def _assign(
    names: dict[Folder, dict[str, Folder | Contents]],
    folder: Folder,
    name: str,
    entry: Folder | Contents | None,
) -> Folder | Contents | None:
    """Assign or remove a name; return the entry that had it before."""
    entries = names.setdefault(folder, {})
    before = entries.pop(name, None)
    if entry is not None:
        entries[name] = entry
    return before


def _apply(contents: Contents, change: Change) -> None:
    if change.data is None:
        contents.resize(change.position)
    else:
        contents.write(change.position, change.data)


def _survivor(inode: Inode | None, mode: str, random: Random) -> Contents:
    """Return what a power loss leaves of a file."""
    if inode is None:
        return Contents()
    contents = inode.durable
    changes = inode.changes
    if mode == "all lost":
        changes = []
    elif mode == "in order":
        changes = changes[: random.below(len(changes) + 1)]
    for index, change in enumerate(changes):
        fate = "kept"
        if mode == "any":
            fate = random.choice(("kept", "kept", "lost", "torn", "zeros"))
        elif mode == "in order" and index == len(changes) - 1:
            fate = random.choice(("kept", "torn"))
        if change.data is None:
            if fate != "kept":
                break
            contents.resize(change.position)
        elif fate == "kept":
            contents.write(change.position, change.data)
        elif fate == "torn":
            contents.write(change.position, change.data[: random.below(len(change.data) + 1)])
        elif fate == "zeros" and contents.length < change.position + len(change.data):
            contents.resize(change.position + len(change.data))
    return contents
