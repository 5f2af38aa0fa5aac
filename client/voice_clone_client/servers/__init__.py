"""One server or several: connections, the choice among them, and calls that another one may take over."""
