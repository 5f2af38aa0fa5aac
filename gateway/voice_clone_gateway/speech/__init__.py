"""Speech over HTTP and on sockets: what is asked for, who speaks it, and how it is answered."""
