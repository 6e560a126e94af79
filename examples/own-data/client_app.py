"""The ClientApp of the bundle."""

from fedpriv import flower

app = flower.client_app()
