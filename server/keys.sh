#!/bin/sh
# Makes the keys of a deployment, and the folders that its containers mount.
#
#   sh server/keys.sh FOLDER NODES [NAME...]
#
# FOLDER/parts/users.json says already who is on which node: `fedpriv data part` wrote it, or, where
# nodes have files of their own, `fedpriv data roster --users`. NAMEs are further names or addresses
# of the machine that nodes connect to. What is there is left as it is; what is half made, because
# this was interrupted, is made again. Every container gets a folder of its own and sees no other:
#
#   keys/ca.key                  signs certificates; keep it away from every machine that runs
#   keys/superlink  keys/gate    server and gate: certificate and key; the nodes' public keys
#   keys/serverapp               what the server app shows the SuperLink
#   keys/node-K                  of SuperNode K: the private key by which it is known
#   keys/client-K                what client app K shows its SuperNode; no key of the node
#   data/node-K                  for a node's own files, if it has any
#   operator/                    Flower's configuration of whoever starts runs
#   node-users.json              which node may speak for which users
#   runs/  anchor/               run folders, and how far their ledgers are: put them on two volumes
set -eu
umask 077
[ $# -ge 2 ] || { echo "usage: sh server/keys.sh FOLDER NODES [NAME...]" >&2; exit 2; }
folder=$1 nodes=$2
shift 2
fail() {
    echo "$*" >&2
    exit 1
}
case $nodes in *[!0-9]* | 0* | "") fail "NODES $nodes is no number of nodes; give 1 or more" ;; esac
for name in "$@"; do
    case $name in
        *[!A-Za-z0-9.:_-]* | "") fail "NAME '$name' is no name or address of a machine" ;;
    esac
done
[ -f "$folder/parts/users.json" ] || fail "$folder/parts/users.json is not there; cut a corpus" \
    "first: fedpriv data part CORPUS --nodes $nodes --out $folder/parts; or, for nodes with files of" \
    "their own, put their lists of ids together: fedpriv data roster node-1.ids ..." \
    "--out $folder/parts/server/roster.txt --users $folder/parts/users.json"
python3 - "$folder/parts/users.json" "$nodes" <<'COUNT'
import json, sys
names = sorted(json.load(open(sys.argv[1], encoding="utf-8")))
expected = sorted(f"node-{number + 1}" for number in range(int(sys.argv[2])))
if names != expected:
    sys.exit(f"{sys.argv[1]} has users of {len(names)} nodes ({', '.join(names)[:80]}), not of "
             f"node-1 to node-{sys.argv[2]}; give as many NODES as there are parts")
COUNT
keys=$folder/keys
mkdir -p "$keys/superlink/nodes" "$keys/gate" "$keys/serverapp" "$folder/operator" \
    "$folder/runs" "$folder/anchor"

# quietly COMMAND...: what it says is only of interest where it fails.
quietly() {
    said=$("$@" 2>&1) || fail "$1 $2: $said"
}

if [ ! -f "$keys/ca.crt" ]; then
    quietly openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -sha256 \
        -days 3650 -subj "/CN=fedpriv deployment" -keyout "$keys/ca.key" -out "$keys/ca.new" \
        -addext "basicConstraints=critical,CA:TRUE" \
        -addext "keyUsage=critical,keyCertSign,cRLSign"
    mv "$keys/ca.new" "$keys/ca.crt"
fi

# certificate FOLDER FILE NAME...: of a server that is called by these names.
certificate() {
    at=$1 file=$2
    shift 2
    if [ -f "$at/$file.pem" ]; then
        for name in "$@"; do
            case $name in
                *:*) kind=-checkip ;;
                *[!0-9.]*) kind=-checkhost ;;
                *) kind=-checkip ;;
            esac
            openssl x509 -noout -in "$at/$file.pem" "$kind" "$name" | grep -q "does match" || fail \
                "$at/$file.pem is of a machine that is not called $name; to have it made again" \
                "with that name, remove it and start this again with all names"
        done
        return 0
    fi
    [ -f "$keys/ca.key" ] || fail "$keys/ca.key is elsewhere; bring it here for as long as this" \
        "makes $at/$file.pem"
    names=
    for name in "$@"; do
        case $name in
            *:*) names="$names,IP:$name" ;;
            *[!0-9.]*) names="$names,DNS:$name" ;;
            *) names="$names,IP:$name" ;;
        esac
    done
    quietly openssl req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -sha256 \
        -subj "/CN=$1" -keyout "$at/$file.key" -out "$at/$file.csr"
    printf 'subjectAltName=%s\nextendedKeyUsage=serverAuth\n' "${names#,}" > "$at/$file.ext"
    quietly openssl x509 -req -sha256 -days 825 -in "$at/$file.csr" -CA "$keys/ca.crt" \
        -CAkey "$keys/ca.key" -CAcreateserial -extfile "$at/$file.ext" -out "$at/$file.new"
    rm "$at/$file.csr" "$at/$file.ext"
    mv "$at/$file.new" "$at/$file.pem"
}

# secret FOLDER FOLDER: what a program shows the API that it fetches its work from.
secret() {
    if [ ! -s "$1/superexec.secret" ]; then
        made=$(openssl rand -hex 32)
        printf %s "$made" > "$1/superexec.secret"
    fi
    cp "$1/superexec.secret" "$2/superexec.secret"
}

certificate "$keys/superlink" superlink superlink localhost 127.0.0.1
certificate "$keys/gate" gate gate localhost 127.0.0.1 "$@"
secret "$keys/superlink" "$keys/serverapp"
number=1
while [ "$number" -le "$nodes" ]; do
    node=$keys/node-$number client=$keys/client-$number
    public=$keys/superlink/nodes/node-$number.pub
    mkdir -p "$node" "$client" "$folder/data/node-$number"
    if [ ! -f "$public" ]; then
        # A key that is known nowhere yet is no loss.
        rm -f "$node/node.key" "$node/node.key.pub"
        quietly ssh-keygen -q -t ecdsa -b 384 -N "" -C "node-$number" -f "$node/node.key"
        mv "$node/node.key.pub" "$public"
    fi
    certificate "$node" runtime "supernode-$number" localhost 127.0.0.1
    secret "$node" "$client"
    cp "$keys/ca.crt" "$node/ca.crt"
    cp "$keys/ca.crt" "$client/ca.crt"
    number=$((number + 1))
done
for one in superlink gate serverapp; do cp "$keys/ca.crt" "$keys/$one/ca.crt"; done
cp "$keys/ca.crt" "$folder/operator/ca.crt"
[ -f "$folder/operator/config.toml" ] || cat > "$folder/operator/config.toml" <<CONFIG
[superlink]
default = "here"

[superlink.here]
address = "superlink:8000"
root-certificates = "/flwr/ca.crt"
CONFIG

# Which key may speak for which users; no other node's word on them counts.
python3 - "$folder" <<'JOIN'
import json, pathlib, sys
folder = pathlib.Path(sys.argv[1])
users = json.loads((folder / "parts" / "users.json").read_text("utf-8"))
keys = folder / "keys" / "superlink" / "nodes"
bound = {(keys / f"{name}.pub").read_text("utf-8").strip(): ids for name, ids in users.items()}
(folder / "node-users.json").write_text(json.dumps(bound, indent=1), "utf-8")
JOIN

# What was put there before, such as nodes' own files, may have come with other modes.
for one in data keys operator parts; do
    [ ! -d "$folder/$one" ] || chmod -R go= "$folder/$one"
done

if [ "$(id -u)" -eq 0 ]; then
    owner=${FEDPRIV_USER:-10001:10001}
    chown -R "$owner" "$folder"
    [ ! -f "$keys/ca.key" ] || chown 0:0 "$keys/ca.key"
    echo "$folder belongs to $owner now, as the containers do; keep $keys/ca.key elsewhere"
else
    echo "start the containers as $(id -u):$(id -g) (export FEDPRIV_USER=$(id -u):$(id -g));" \
         "keep $keys/ca.key elsewhere"
fi
