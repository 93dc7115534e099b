"""`python -m proxy` is `kube-proxy-nft`."""

import sys


def main() -> int:
    """As proxy.cli.main; imports it, which takes long enough to be interrupted."""
    try:
        from proxy import cli

        return cli.main()
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
