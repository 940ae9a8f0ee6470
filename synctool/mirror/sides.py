"""Upstream's files in downstream's words, read when they are needed and kept for a while."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from synctool.git.objects import MAX_OBJECT_BYTES, ObjectStore
from synctool.git.tree import SUBMODULE, SYMLINK, Entry
from synctool.translate.translator import Translator

#: Translated and raw contents kept in memory, in bytes. Beyond it the oldest are forgotten and made again when asked for.
_KEPT_BYTES = 96 << 20


@dataclass(frozen=True, slots=True)
class Version:
    """One upstream version of a file: mode and object id as upstream has them, and the downstream path that decides about its translation."""

    mode: str
    oid: str
    path: str


class Sides:
    """Contents of both sides. ``content`` is None for what can't be read as bytes here: a submodule, or a blob over the size bound."""

    def __init__(self, store: ObjectStore, translator: Translator) -> None:
        self.store = store
        self._translator = translator
        self._kept: OrderedDict[tuple[str, str], bytes] = OrderedDict()
        self._size = 0
        self._ids: dict[tuple[str, str], str] = {}
        policy = translator.policy
        self._has_rules = bool(policy.terms or policy.flags)
        self._families = Translator.from_policy(policy.model_copy(update={"terms": (), "flags": ()}))

    def raw(self, entry: Entry) -> bytes | None:
        """Content as it is stored."""
        if entry.mode == SUBMODULE:
            return None
        return self._keep((entry.oid, ""), lambda: self._read(entry.oid))

    def content(self, version: Version) -> bytes | None:
        """Upstream's content, translated."""
        if version.mode == SUBMODULE:
            return None

        def make() -> bytes | None:
            data = self.raw(Entry(version.mode, version.oid))
            if data is None:
                return None
            if version.mode == SYMLINK:
                return self._translator.link(data)
            return self._translator.content(data, version.path)

        kind = "\0link" if version.mode == SYMLINK else version.path
        return self._keep((version.oid, kind), make)

    def plain(self, version: Version) -> bytes | None:
        """Upstream's content through the word families alone, as a simpler policy would have translated it; None where that is the same."""
        data = self.raw(Entry(version.mode, version.oid)) if version.mode not in (SUBMODULE, SYMLINK) else None
        if data is None or not self._has_rules:
            return None
        plain = self._families.content(data, version.path)
        return None if plain == self.content(version) else plain

    def oid(self, version: Version) -> str:
        """The id of the translated content; nothing is written."""
        key = (version.oid, "\0link" if version.mode == SYMLINK else version.path)
        known = self._ids.get(key)
        if known is None:
            content = self.content(version)
            raw = self.raw(Entry(version.mode, version.oid))
            known = version.oid if content is None or content == raw else self.store.hash("blob", content)
            self._ids[key] = known
        return known

    def entry(self, version: Version) -> Entry:
        """The translated file as a tree entry; its blob is written if it is new."""
        oid = self.oid(version)
        if oid != version.oid:
            content = self.content(version)
            assert content is not None
            self.store.write_blob(content)
        return Entry(version.mode, oid)

    def _read(self, oid: str) -> bytes | None:
        known = self.store.info(oid)
        if known is not None and known[2] > MAX_OBJECT_BYTES:
            return None
        return self.store.read(oid, "blob")

    def _keep(self, key: tuple[str, str], make: object) -> bytes | None:
        found = self._kept.get(key)
        if found is not None:
            self._kept.move_to_end(key)
            return found
        assert callable(make)
        data: bytes | None = make()
        if data is not None:
            self._kept[key] = data
            self._size += len(data)
            while self._size > _KEPT_BYTES and len(self._kept) > 1:
                self._size -= len(self._kept.popitem(last=False)[1])
        return data

    def preload(self, oids: list[str]) -> None:
        """Read many raw blobs in a few round trips."""
        wanted = [oid for oid in dict.fromkeys(oids) if (oid, "") not in self._kept]
        for oid, data in self.store.read_many(wanted).items():
            self._keep((oid, ""), lambda data=data: data)
