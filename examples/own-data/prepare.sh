#!/bin/sh
# Each node lists the keyed ids of its own people, and keeps the key beside its client app's keys;
# the server puts the lists together, once: the roster is frozen in the plan.
set -eu
umask 077
[ -f people.key ] || fedpriv data key people.key
for node in 1 2 3; do
    fedpriv data ids "deploy/data/node-$node/visits.csv" --key people.key \
        --experiment visits.py:experiment --out "node-$node.ids"
    mkdir -p "deploy/keys/client-$node"
    cp people.key "deploy/keys/client-$node/people.key"
done
mkdir -p deploy/parts/server
fedpriv data roster node-1.ids node-2.ids node-3.ids --out deploy/parts/server/roster.txt \
    --users deploy/parts/users.json
