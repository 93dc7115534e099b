"""python -m integration.apiserver"""

from integration.apiserver.server import main

main()
