"""`python -m proxy` is `kube-proxy-nft`."""

import sys

from proxy.cli import main

sys.exit(main())
