"""What every test stands on."""

import signal

# A suite started in the background of a shell inherits an ignored SIGINT, and so would every command it starts.
signal.signal(signal.SIGINT, signal.default_int_handler)
