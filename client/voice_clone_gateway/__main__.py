"""`python -m voice_clone_gateway` is `voice-clone-gateway`."""

from .app import main

main()
