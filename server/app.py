"""The server of a federation, for Flower: `fedpriv.flower.server_app`.

flwr run . --stream --run-config 'corpus="/corpora/onstartups" out="/runs/first"'
"""

from fedpriv import flower

app = flower.server_app()
