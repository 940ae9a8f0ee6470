"""Shell commands in scripts, CI files and Dockerfiles, parsed: broken quoting, and redirections that were meant as version requirements."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

from synctool.audit.context import Audit
from synctool.audit.embedded import ShellText, shell_texts
from synctool.audit.finding import Edit, Hit, Rule
from synctool.audit.shelltext import Command, Redirect, commands, nested_script
from synctool.git.runner import scrubbed_environment

SYNTAX = Rule("shell-syntax", "a shell command does not parse", "the step fails, or runs something else than was meant")
QUOTING = Rule(
    "shell-quoting",
    "a version requirement stands outside of quotes",
    "the shell reads > and < as redirections: the bound is dropped and a file of that name appears",
)
RULES = (SYNTAX, QUOTING)


def check(audit: Audit) -> Iterator[Hit]:
    """``bash -n`` reads a script without running it."""
    found = shell_texts(audit)
    yield from _syntax(found)
    for shell in found:
        for command in commands(shell.text, shell.line):
            yield from _redirects(audit, shell, command)


def _syntax(found: list[ShellText]) -> Iterator[Hit]:
    bash = shutil.which("bash")
    if bash is None:
        return
    texts = [(shell, shell.text, shell.line) for shell in found]
    for shell in found:
        if shell.path.endswith((".sh", ".bash")):
            continue
        for command in commands(shell.text, shell.line):
            script = nested_script(command)
            if script is not None:
                texts.append((shell, script.text, script.line))

    def parse(text: str) -> str:
        finished = subprocess.run(
            [bash, "--norc", "-n"],
            input=text.encode("utf-8", "surrogateescape"),
            capture_output=True,
            env=scrubbed_environment(),
        )
        return finished.stderr.decode(errors="replace") if finished.returncode else ""

    with ThreadPoolExecutor(2) as pool:
        for (shell, _, line), told in zip(texts, pool.map(parse, [text for _, text, _ in texts]), strict=True):
            if told:
                first = told.splitlines()[0]
                number = re.search(r"line (\d+)", first)
                message = re.sub(r"^.*?line \d+: ", "", first)
                yield Hit(
                    SYNTAX,
                    shell.path,
                    shell.path,
                    line + int(number[1]) - 1 if number else line,
                    message,
                    "mend the quoting",
                )


def _redirects(audit: Audit, shell: ShellText, command: Command) -> Iterator[Hit]:
    words = command.texts()
    installs = "install" in words and any(
        word.rpartition("/")[2] in ("pip", "pip3", "uv", "conda", "mamba") or word == "pip" for word in words
    )
    for redirect in command.redirects:
        odd = redirect.target.text.startswith("=") and redirect.operator in (">", "<", ">>")
        versioned = (
            redirect.attached
            and redirect.operator in (">", "<")
            and re.fullmatch(r"\d[\w.*,!=<>-]*", redirect.target.text)
        )
        if odd or (installs and versioned):
            yield _hit(audit, shell, command, redirect)


def _hit(audit: Audit, shell: ShellText, command: Command, redirect: Redirect) -> Hit:
    asked = redirect.operator + redirect.target.text
    line = redirect.target.line
    lines = audit.tree.lines(shell.path)
    written = lines[line - 1] if line <= len(lines) else ""
    whole = re.search(rf"(?<![\"'\w])([\w.\[\],-]+{re.escape(asked)})(?=\s|$|\\|;)", written)
    edit = None
    if whole is not None and "'" not in written and '"' not in written and not _inside_quotes(shell, written):
        edit = Edit(shell.path, line, whole[1], f'"{whole[1]}"')
    subject = f"{shell.path} {whole[1] if whole else asked}"
    return Hit(
        QUOTING,
        subject,
        shell.path,
        line,
        f"'{asked}' is read as a redirection to '{redirect.target.text}'",
        "quote the requirement",
        edit,
    )


def _inside_quotes(shell: ShellText, written: str) -> bool:
    """A line inside ``bash -c '...'`` may not simply be given double quotes when the outer ones are double."""
    return not shell.path.endswith(".sh") and 'bash -c "' in shell.text and written.strip() in shell.text
