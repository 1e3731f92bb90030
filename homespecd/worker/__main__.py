"""`python -m homespecd.worker FD`: started by the supervisor, never by hand."""

import sys

from homespecd.worker.process import main

if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
