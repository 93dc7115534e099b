"""`python -m proxy` is `kube-proxy-nft`."""

import sys


def _import_structlog() -> None:
    """Without rich, which it loads if it is there, for tracebacks that nobody sees: 80 ms and 5 MB."""
    if "rich" in sys.modules:
        return
    sys.modules["rich"] = None  # type: ignore[assignment]
    try:
        import structlog  # noqa: F401
    finally:
        del sys.modules["rich"]


def main() -> int:
    """As proxy.cli.main; imports it, which takes long enough to be interrupted."""
    runs = sys.argv[1:2] == ["run"] or any(argument.startswith("-") for argument in sys.argv[1:2])
    try:
        from proxy import signals

        if runs:
            signals.end_at_once()  # first: as a container's first process we would not get them at all without a handler
            _import_structlog()
        from proxy import cli

        code = cli.main()
        if runs:
            signals.leave(code)
    except KeyboardInterrupt:
        return 0 if runs else 130
    return code


if __name__ == "__main__":
    sys.exit(main())
