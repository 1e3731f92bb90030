"""`python -m homespecd.worker FD`: started by the supervisor, never by hand."""

import signal
import sys

if __name__ == "__main__":
    # Until the process can end in order it ends without a word, also while it imports the rest.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    from homespecd.worker.process import main

    sys.exit(main(int(sys.argv[1])))
