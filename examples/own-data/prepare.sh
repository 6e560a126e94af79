#!/bin/sh
# Each node lists the keyed ids of its own people; the server puts the lists together.
set -eu
[ -f people.key ] || fedpriv data key people.key
for node in 1 2 3; do
    fedpriv data ids "deploy/data/node-$node/visits.csv" --key people.key \
        --experiment visits.py:experiment --out "node-$node.ids"
done
mkdir -p deploy/parts/server
fedpriv data roster node-1.ids node-2.ids node-3.ids --out deploy/parts/server/roster.txt \
    --users deploy/parts/users.json
