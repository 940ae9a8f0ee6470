"""Patches as mail, in and out: what ``git format-patch`` writes and ``git am`` reads.

Fields of a header travel as trailer lines of the message, so that a patch comes back with all it had.
"""

from __future__ import annotations

import email
import email.header
import email.message
import email.policy
import re
from dataclasses import dataclass

from synctool.errors import ConfigError
from synctool.patches.difftext import split_header
from synctool.patches.header import Header, parse_header, render_header

#: Fields that become trailers, and come back from them. ``Author`` and ``Description`` have their own places in a mail.
TRAILERS = (
    "Origin", "Forwarded", "Bug", "Upstream-Status", "Removal-Condition", "Regression-Test", "Context-Waiver", "Applied-Upstream", "Last-Update",
    "Reviewed-By", "Drop-At-Next-Pin",
)  # fmt: skip
_FROM = re.compile(rb"^From [0-9a-f]{40,64} \w{3} \w{3} [ \d]\d \d\d:\d\d:\d\d \d{4}$", re.M)
_TAG = re.compile(r"^\s*(?:\[[^\]]*\]\s*)+")
_TRAILER = re.compile(r"^(" + "|".join(TRAILERS) + r"): (.+)$", re.I)


@dataclass(frozen=True, slots=True)
class Incoming:
    """One patch from outside: the header's fields in order, and the diff."""

    fields: tuple[tuple[str, str], ...]
    body: bytes

    @property
    def subject(self) -> str:
        """First line of the description."""
        return dict(self.fields).get("Description", "").partition("\n")[0]


def is_mail(data: bytes) -> bool:
    """Whether a file is a mail or a mailbox, and not a plain diff with or without a header."""
    if _FROM.match(data):
        return True
    head = data[:4096].split(b"\n\n", 1)[0].lower()
    return b"\nsubject: " in b"\n" + head and b"\nfrom: " in b"\n" + head


def read_patches(data: bytes, where: str) -> list[Incoming]:
    """All patches of a file: a mailbox, one mail, or a plain diff with whatever stands before it.

    Raises:
        ConfigError: a mail has no diff, or its text cannot be decoded.
    """
    if not is_mail(data):
        header, body = split_header(data)
        if not body:
            raise ConfigError("there is no diff in it", where=where)
        return [Incoming(_plain_fields(parse_header(header)), body)]
    starts = [found.start() for found in _FROM.finditer(data)] or [0]
    found = []
    for number, (start, end) in enumerate(zip(starts, [*starts[1:], len(data)], strict=True), 1):
        found.append(_read_mail(data[start:end], f"{where}, mail {number}"))
    # A cover letter has a number of 0 and no diff.
    patches = [mail for mail in found if mail is not None]
    if not patches:
        raise ConfigError("there is no diff in it", where=where)
    return patches


def _plain_fields(header: Header) -> tuple[tuple[str, str], ...]:
    fields = [(field.name, field.value) for field in header.fields]
    loose = "\n".join(text for _, text in header.loose).strip()
    if loose and header.get("Description", "Subject") is None:
        fields.insert(0, ("Description", loose))
    return tuple(("Description", value) if name.lower() == "subject" else (name, value) for name, value in fields)


def _read_mail(raw: bytes, where: str) -> Incoming | None:
    first, _, rest = raw.partition(b"\n")
    message = email.message_from_bytes(rest if _FROM.match(first) else raw, policy=email.policy.compat32)
    if message.is_multipart():
        raise ConfigError("the mail has several parts", where=where, hint="save the patch as plain text")
    payload = message.get_payload(decode=True)
    assert isinstance(payload, bytes)
    if b"\r\n" in raw and payload.count(b"\r\n") == payload.count(b"\n"):
        payload = payload.replace(b"\r\n", b"\n")  # the transport's line ends, not the patch's
    text, body = split_header(payload)
    if not body:
        return None
    described, _, _ = text.decode("utf-8", "replace").partition("\n---\n")
    paragraphs = described.strip("\n").split("\n")
    fields: list[tuple[str, str]] = []
    kept: list[str] = []
    for line in paragraphs:
        trailer = _TRAILER.match(line)
        if trailer:
            fields.append((next(t for t in TRAILERS if t.lower() == trailer[1].lower()), trailer[2].strip()))
        else:
            kept.append(line)
    subject = _TAG.sub("", " ".join(_decoded(message["Subject"] or "").split()))
    description = "\n".join([subject, *"\n".join(kept).strip("\n").split("\n")]).strip("\n")
    author = " ".join(_decoded(message["From"] or "").split())
    head = [("Description", description)] + ([("Author", author)] if author else [])
    if message["Date"]:
        head.append(("Date", str(message["Date"]).strip()))
    return Incoming((*head, *fields), body)


def _decoded(value: str) -> str:
    try:
        return str(email.header.make_header(email.header.decode_header(value)))
    except (UnicodeDecodeError, LookupError):
        return value


def render_mail(header: Header, body: bytes, number: int, total: int) -> bytes:
    """A patch as ``git am`` takes it. No signature, no version, a fixed first line: the same patch gives the same bytes."""
    lines = (header.get("Description", "Subject") or "patch").split("\n")
    message = email.message.Message(policy=email.policy.compat32)
    author = (header.get("Author", "From") or "unknown").strip()
    if not re.search(r"<[^<>\s]+>$", author):
        author = f"{author} <unknown@localhost>"  # git am insists on an address
    message["From"] = email.header.Header(author, "ascii" if author.isascii() else "utf-8", maxlinelen=998).encode()
    message["Date"] = header.get("Date") or "Thu, 1 Jan 1970 00:00:00 +0000"
    tag = "[PATCH]" if total == 1 else f"[PATCH {number}/{total}]"
    subject = f"{tag} {lines[0]}"
    message["Subject"] = email.header.Header(
        subject, "ascii" if subject.isascii() else "utf-8", maxlinelen=998
    ).encode()
    message["MIME-Version"] = "1.0"
    message["Content-Type"] = "text/plain; charset=UTF-8"
    message["Content-Transfer-Encoding"] = "8bit"
    head = "".join(f"{name}: {value}\n" for name, value in message.items())
    described = "\n".join(
        " " + line if line.startswith(("---", "diff ", "Index: ", "From ")) else line for line in lines[1:]
    ).strip("\n")
    trailers = [
        (f.name, " ".join(f.value.split())) for f in header.fields if f.name.lower() in {t.lower() for t in TRAILERS}
    ]
    text = "\n\n".join(part for part in (described, "\n".join(f"{name}: {value}" for name, value in trailers)) if part)
    first = f"From {'0' * 40} Mon Sep 17 00:00:00 2001\n"
    return (first + head + "\n" + (text + "\n" if text else "") + "---\n\n").encode("utf-8", "surrogateescape") + body


def file_name(subject: str, taken: set[str]) -> str:
    """A patch's file name from its subject; numbered when taken."""
    stem = re.sub(r"[^A-Za-z0-9]+", "-", subject).strip("-").lower()[:52].rstrip("-") or "patch"
    name, count = f"{stem}.patch", 1
    while name in taken:
        count += 1
        name = f"{stem}-{count}.patch"
    return name


def render_incoming(incoming: Incoming) -> bytes:
    """The header of an imported patch in DEP-3 form."""
    return render_header(incoming.fields)
