"""`python -m proxy` is `kube-proxy-nft`."""

import sys


def main() -> int:
    """As proxy.cli.main; imports it, which takes long enough to be interrupted."""
    from proxy import signals

    runs = sys.argv[1:2] == ["run"] or any(argument.startswith("-") for argument in sys.argv[1:2])
    if runs:
        signals.end_at_once()  # first: as a container's first process we would not get them at all without a handler
    try:
        from proxy import cli

        code = cli.main()
    except KeyboardInterrupt:
        return 130
    if runs:
        signals.leave(code)
    return code


if __name__ == "__main__":
    sys.exit(main())
