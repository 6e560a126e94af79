#!/bin/sh
# Makes the keys of a deployment, and the folders that its containers mount.
#
#   sh server/keys.sh FOLDER NODES [NAME...]
#
# FOLDER holds the parts of a corpus already (`fedpriv data part CORPUS --nodes NODES --out
# FOLDER/parts`). NAMEs are further names or addresses of the machine that nodes connect to. What is
# there is left as it is. Every container gets a folder of its own and sees no other one:
#
#   keys/ca.key                  signs certificates; keep it away from every machine that runs
#   keys/superlink  keys/gate    server and gate: certificate and key; the nodes' public keys
#   keys/serverapp               what the server app shows the SuperLink
#   keys/node-K                  of SuperNode K: the private key by which it is known
#   keys/client-K                what client app K shows its SuperNode; no key of the node
#   operator/                    Flower's configuration of whoever starts runs
#   node-users.json              which node may speak for which users
#   runs/  anchor/               run folders, and how far their ledgers are: put them on two volumes
set -eu
umask 077
[ $# -ge 2 ] || { echo "usage: sh server/keys.sh FOLDER NODES [NAME...]" >&2; exit 2; }
folder=$1 nodes=$2
shift 2
[ -f "$folder/parts/users.json" ] || {
    echo "$folder/parts/users.json is not there; cut a corpus first: fedpriv data part CORPUS" \
         "--nodes $nodes --out $folder/parts" >&2
    exit 1
}
keys=$folder/keys
mkdir -p "$keys/superlink/nodes" "$keys/gate" "$keys/serverapp" "$folder/operator" \
    "$folder/runs" "$folder/anchor"

if [ ! -f "$keys/ca.key" ]; then
    openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -sha256 \
        -days 3650 -subj "/CN=fedpriv deployment" -keyout "$keys/ca.key" -out "$keys/ca.crt" \
        -addext "basicConstraints=critical,CA:TRUE" \
        -addext "keyUsage=critical,keyCertSign,cRLSign" 2>/dev/null
fi

# certificate FOLDER FILE NAME...: of a server that is called by these names.
certificate() {
    at=$1 file=$2
    shift 2
    [ -f "$at/$file.key" ] && return 0
    names=
    for name in "$@"; do
        case $name in
            *[!0-9.]*) names="$names,DNS:$name" ;;
            *) names="$names,IP:$name" ;;
        esac
    done
    openssl req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -sha256 \
        -subj "/CN=$1" -keyout "$at/$file.key" -out "$at/$file.csr" 2>/dev/null
    printf 'subjectAltName=%s\nextendedKeyUsage=serverAuth\n' "${names#,}" > "$at/$file.ext"
    openssl x509 -req -sha256 -days 825 -in "$at/$file.csr" -CA "$keys/ca.crt" \
        -CAkey "$keys/ca.key" -CAcreateserial -extfile "$at/$file.ext" -out "$at/$file.pem" \
        2>/dev/null
    rm "$at/$file.csr" "$at/$file.ext"
}

# secret FOLDER FOLDER: what a program shows the API that it fetches its work from.
secret() {
    [ -f "$1/superexec.secret" ] || openssl rand -hex 32 | tr -d '\n' > "$1/superexec.secret"
    cp "$1/superexec.secret" "$2/superexec.secret"
}

certificate "$keys/superlink" superlink superlink localhost 127.0.0.1
certificate "$keys/gate" gate gate localhost 127.0.0.1 "$@"
secret "$keys/superlink" "$keys/serverapp"
number=1
while [ "$number" -le "$nodes" ]; do
    node=$keys/node-$number client=$keys/client-$number
    mkdir -p "$node" "$client"
    if [ ! -f "$node/node.key" ]; then
        ssh-keygen -q -t ecdsa -b 384 -N "" -C "node-$number" -f "$node/node.key"
        mv "$node/node.key.pub" "$keys/superlink/nodes/node-$number.pub"
    fi
    certificate "$node" runtime "supernode-$number" localhost 127.0.0.1
    secret "$node" "$client"
    cp "$keys/ca.crt" "$node/ca.crt"
    cp "$keys/ca.crt" "$client/ca.crt"
    number=$((number + 1))
done
for one in superlink gate serverapp; do cp "$keys/ca.crt" "$keys/$one/ca.crt"; done
cp "$keys/ca.crt" "$folder/operator/ca.crt"
cat > "$folder/operator/config.toml" <<CONFIG
[superlink]
default = "here"

[superlink.here]
address = "superlink:8000"
root-certificates = "/flwr/ca.crt"
CONFIG

# Which key may speak for which users: nobody else's word counts.
python3 - "$folder" <<'JOIN'
import json, pathlib, sys
folder = pathlib.Path(sys.argv[1])
users = json.loads((folder / "parts" / "users.json").read_text("utf-8"))
keys = folder / "keys" / "superlink" / "nodes"
bound = {(keys / f"{name}.pub").read_text("utf-8").strip(): ids for name, ids in users.items()}
(folder / "node-users.json").write_text(json.dumps(bound, indent=1), "utf-8")
JOIN

if [ "$(id -u)" -eq 0 ]; then
    owner=${FEDPRIV_USER:-10001:10001}
    chown -R "$owner" "$folder"
    chown 0:0 "$keys/ca.key"
    echo "$folder belongs to $owner now, as the containers do; keep $keys/ca.key elsewhere"
else
    echo "start the containers as $(id -u):$(id -g) (export FEDPRIV_USER=$(id -u):$(id -g));" \
         "keep $keys/ca.key elsewhere"
fi
