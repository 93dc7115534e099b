"""Errors that end a command: each names the object, the cause and what to do, and has an exit code.

Exit codes are part of the command line's contract; README.md lists them from EXIT_CODES.
"""

from __future__ import annotations

from typing import Final

EXIT_CODES: Final = {
    0: "done",
    1: "unexpected failure: see the log; --exit-code: detect found something, status is not well",
    2: "the command line is wrong",
    3: "the configuration is wrong or cannot be read",
    4: "the source of objects cannot be used (directory, kubeconfig); no agent answers (status)",
    5: "no permission to program nftables (CAP_NET_ADMIN)",
    6: "this kernel lacks something that is needed",
    7: "the kernel refused the rules",
    8: "the configuration file changed: start again to use it",
    9: "another agent programs this network namespace already, or kube-proxy (cleanup)",
    10: "the node is ready to migrate when something has been done or decided (migrate)",
    11: "the node is not ready to migrate, or that is not known (migrate)",
    12: "something of kube-proxy's could not be removed, or looked for (cleanup)",
    130: "interrupted",
}


class UserError(Exception):
    """A failure that a user can mend. `str()` is the one line that is shown."""

    exit_code = 1

    def __init__(self, what: str, cause: str, remedy: str = "") -> None:
        self.what, self.cause, self.remedy = what, cause, remedy
        super().__init__(f"{what}: {cause}" + (f" ({remedy})" if remedy else ""))


class UsageError(UserError):
    exit_code = 2


class ConfigError(UserError):
    exit_code = 3


class SourceError(UserError):
    exit_code = 4


class NoPermission(UserError):
    exit_code = 5


class KernelTooOld(UserError):
    exit_code = 6


class RulesRefused(UserError):
    exit_code = 7


class ConfigChanged(UserError):
    exit_code = 8


class AlreadyRunning(UserError):
    exit_code = 9


class CleanupIncomplete(UserError):
    exit_code = 12
