"""Findings as SARIF 2.1.0 (OASIS, 27 March 2020), for code hosts and editors."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from urllib.parse import quote

from synctool import __version__
from synctool.audit.finding import Finding
from synctool.audit.run import Result

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/os/schemas/sarif-schema-2.1.0.json"
#: GitHub keeps that many locations of one result.
_LOCATIONS = 100


def sarif(result: Result) -> dict[str, Any]:
    """One run. Accepted findings are in it, marked as suppressed."""
    rules = sorted(result.rules, key=lambda rule: rule.id)
    index = {rule.id: number for number, rule in enumerate(rules)}
    return {
        "$schema": SCHEMA,
        "version": "2.1.0",
        "runs": [
            {
                "tool": {
                    "driver": {
                        "name": "vime-sync audit",
                        "version": __version__,
                        "rules": [
                            {
                                "id": rule.id,
                                "shortDescription": {"text": rule.title},
                                "fullDescription": {"text": f"{rule.title}: {rule.why}"},
                                "defaultConfiguration": {"level": "error"},
                            }
                            for rule in rules
                        ],
                    }
                },
                "columnKind": "unicodeCodePoints",
                "results": [*_results(result.findings, index, False), *_results(result.accepted, index, True)],
            }
        ],
    }


def _results(findings: Iterable[Finding], index: dict[str, int], suppressed: bool) -> Iterable[dict[str, Any]]:
    for finding in findings:
        found: dict[str, Any] = {
            "ruleId": finding.rule.id,
            "ruleIndex": index[finding.rule.id],
            "level": "error",
            "message": {"text": f"{finding.message}. {finding.mend}"},
            "locations": [_location(hit.path, hit.line) for hit in finding.hits if hit.path][:_LOCATIONS],
            "partialFingerprints": {"vimeSync/v1": finding.fingerprint},
        }
        if suppressed:
            found["suppressions"] = [{"kind": "external", "status": "accepted"}]
        yield found


def _location(path: str, line: int) -> dict[str, Any]:
    place: dict[str, Any] = {"artifactLocation": {"uri": quote(path.encode("utf-8", "surrogateescape"))}}
    if line:
        place["region"] = {"startLine": line}
    return {"physicalLocation": place}
