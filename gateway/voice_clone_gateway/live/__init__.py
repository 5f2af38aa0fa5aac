"""A WebSocket session: text comes in while its speech goes out."""
