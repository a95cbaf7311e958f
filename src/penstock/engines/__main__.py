"""A worker process that was not forked begins here."""

import sys

from penstock.engines.worker import main

main(sys.argv[1:])
