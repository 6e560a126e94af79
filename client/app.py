"""A node of a federation, for Flower: it hosts users, and answers with one bounded sum.

flower-supernode --insecure --superlink HOST:8000 --node-config 'corpus="/corpora/own"'
"""

from fedpriv.backends.flower.settings import client_app

app = client_app()
