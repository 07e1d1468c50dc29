"""`python -m tests.packaging.audit PIP_AUDIT`: reports known vulnerabilities of the packages in requirements.txt.

Packages that could not be looked up are listed; with --strict they are an error, as vulnerabilities are.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

from tests.docs.pages import ROOT

__all__ = ["verdict"]


def verdict(packages: list[dict[str, Any]], *, strict: bool) -> tuple[int, str]:
    """Return the exit code and the text for the `dependencies` of a report of pip-audit."""
    found = [
        f"{package['name']} {package['version']}: {fault['id']}, corrected in {', '.join(fault['fix_versions']) or '-'}"
        for package in packages
        for fault in package.get("vulns", ())
    ]
    skipped = [package["name"] for package in packages if "skip_reason" in package]
    lines = [f"{len(packages) - len(skipped)} packages audited, {len(found)} known vulnerabilities.", *found]
    if skipped:
        lines.append(f"NOT AUDITED, because the package index does not have their versions: {', '.join(skipped)}")
    return int(bool(found) or (strict and bool(skipped))), "\n".join(lines)


def main(program: str, *options: str) -> int:
    """Run pip-audit and print the verdict; an unreachable index counts as packages that could not be looked up."""
    strict = "--strict" in options
    command = [program, "--progress-spinner", "off", "--format", "json", "--requirement", "requirements.txt"]
    done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
    if not done.stdout.startswith("{"):
        reason = (done.stderr.strip().splitlines() or ["no output"])[-1]
        sys.stdout.write(
            f"NOT AUDITED: pip-audit failed. Repeat it where the package index can be reached.\n{reason}\n"
        )
        return int(strict)
    code, text = verdict(json.loads(done.stdout)["dependencies"], strict=strict)
    sys.stdout.write(f"{text}\n")
    return code


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
