"""The ServerApp of the bundle."""

from fedpriv import flower

app = flower.server_app()
