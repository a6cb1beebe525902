#!/usr/bin/env bash
# Copyright The Drover Authors.
# SPDX-License-Identifier: Apache-2.0

# Tries an offline bundle as its first user does, and prints each command with its output and duration:
#
#   hack/release/trial.sh dist/drover-v0.1.0-offline.tar [COMMANDS]
#
# The commands are the commands of the bundle's README, or of a file. Then Alice signs in on her own computer, and runs
# a pod in the team's namespace. The user has the bundle, a shell, kubectl, a browser, a registry, and two clusters with
# real nodes, in network namespaces from which no other machine can be reached. It requires root on Linux and the
# packages of docs/lab/README.md.
#
# It fails if the first member takes longer than READY seconds from the start, or everything longer than LIMIT seconds.
set -euo pipefail

# The user's computer is in the network of the nodes, and the registry is at the bridge.
readonly registry=10.90.0.1:5443 hub=10.90.0.10:30443

die() {
	printf 'trial: %s\n' "$*" >&2
	exit 1
}

# prepare builds what the environment consists of, while the network is still there.
prepare() {
	[[ -f ${1:-} ]] || die "usage: hack/release/trial.sh BUNDLE [COMMANDS]"
	local self bundle commands=''
	self=$(realpath "$0") bundle=$(realpath "$1")
	[[ -z ${2:-} ]] || commands=$(realpath "$2")
	cd "$(dirname "$0")/../.."
	work=$(mktemp -d)
	trap 'rm -rf "$work"' EXIT
	mkdir -p "$work/user/tools" "$work/images"
	cp "$bundle" "$work/user/"
	go build -o "$work/labctl" ./hack/labctl
	go build -C test/registry -o "$work/registry" .
	"$work/labctl" check
	local programs name
	programs=$("$work/labctl" build etcd kube-apiserver kube-controller-manager kube-scheduler kubelet kube-proxy kubectl)
	ln -s "$(tail -n 1 <<<"$programs")" "$work/user/tools/kubectl"
	# What docs/operations/offline.md requires.
	for name in sh tar gzip awk cat chmod cp cut dirname grep ln mkdir mktemp mv rm sha256sum tr uname; do
		ln -s "$(command -v "$name")" "$work/user/tools/$name"
	done
	name=$(basename "$bundle" .tar)
	{
		printf 'tar -xf %s.tar\ncd %s\n' "$name" "$name"
		if [[ -n $commands ]]; then
			cat "$commands"
		else
			tar -xOf "$bundle" "$name/README.md" |
				awk '/^```/ { within = !done && /^```sh$/; done = done || within; next } within'
		fi
		name=${name#drover-}
		cat <<-END
			mkdir ../alice && cp kubectl-drover hub-ca.crt ../alice && cd ../alice && export HOME=\$PWD PATH=\$PWD:\$PATH
			kubectl drover login https://drover.example.com:30443 --ca hub-ca.crt
			kubectl drover use prod-eu
			kubectl auth whoami
			kubectl -n web run hello --image=registry.example.com/platform/drover:${name%-offline} --restart=Never \\
			  --command -- /manager --help
			kubectl -n web wait --for=jsonpath='{.status.phase}'=Succeeded pod/hello --timeout=2m
			kubectl -n web logs hello --tail=3
		END
	} >"$work/commands"
	unshare --net -- "$self" inside "$work"
}

# inside runs in a network namespace of its own.
inside() {
	work=$1
	ip link set lo up
	trap clean EXIT
	start_registry
	start_lab
	for node in hub-1 hub-2 member-1; do # the nodes trust the registry
		mkdir -p "$work/lab/nodes/$node/root/etc/ssl/certs"
		cp "$work/ca.pem" "$work/lab/nodes/$node/root/etc/ssl/certs/ca-certificates.crt"
	done
	write_browser
	write_kubeconfig
	user
}

clean() {
	"$work/labctl" down -f "$work/lab.yaml" --dir "$work/lab" >&2 || echo "trial: the lab was not removed" >&2
	[[ -z ${served:-} ]] || kill "$served"
}

start_registry() {
	openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 1 -subj "/CN=a private CA" \
		-addext "subjectAltName=IP:${registry%:*}" -keyout "$work/key.pem" -out "$work/ca.pem" 2>/dev/null
	cp "$work/ca.pem" "$work/user/"
	cat >"$work/registry.yaml" <<-END
		version: 0.1
		log: {level: error}
		storage: {filesystem: {rootdirectory: $work/images}}
		http: {addr: "127.0.0.1:5443", tls: {certificate: $work/ca.pem, key: $work/key.pem}}
	END
	"$work/registry" serve "$work/registry.yaml" >"$work/registry.log" 2>&1 &
	served=$!
}

start_lab() {
	cat >"$work/lab.yaml" <<-END
		apiVersion: lab.drover.dev/v1
		kind: Lab
		name: trial
		networking: {machinePorts: [5443], networkPolicies: true}
		clusters:
		- {name: hub, nodes: [{}, {}]}
		- {name: member, nodes: [{}]}
	END
	"$work/labctl" up -f "$work/lab.yaml" --dir "$work/lab" >&2
}

# write_kubeconfig gives the user two contexts with all rights, as README.md names them. The hub is the current one.
write_kubeconfig() {
	local kubectl=$work/user/tools/kubectl config=$work/user/.kube/config
	mkdir -p "$work/user/.kube"
	KUBECONFIG="$work/lab/hub.kubeconfig:$work/lab/member.kubeconfig" "$kubectl" config view --flatten |
		sed 's|https://127.0.0.1:|https://10.90.0.1:|' >"$config"
	"$kubectl" --kubeconfig "$config" config rename-context member prod-eu-admin >/dev/null
	"$kubectl" --kubeconfig "$config" config use-context hub >/dev/null
}

# write_browser writes a browser that trusts the hub and types the password that the screen shows.
write_browser() {
	cat >"$work/user/tools/xdg-open" <<-'END'
		#!/bin/bash
		cd "$(dirname "$0")/.."
		PATH=/usr/bin:/bin
		origin=$(sed -E 's|^(https://[^/]+).*|\1|' <<<"$1")
		ca=$(find . -name hub-ca.crt | head -n 1)
		browse() { curl -sS --cacert "$ca" --cookie jar --cookie-jar jar "$@"; }
		request=$(browse "$1" | sed -n 's/.*name="request" value="\([^"]*\)".*/\1/p')
		browse --location --header "Origin: $origin" --data-urlencode "request=$request" --data-urlencode user=alice \
			--data-urlencode "password=$(sed -n '/shown only once:$/{n;p;}' screen)" \
			--output page.html --write-out 'the browser ends at %{url_effective}: %{http_code}\n' "$origin/v1/auth/login" |
			sed 's/?.*:/:/' >>browser.log 2>&1
	END
	chmod +x "$work/user/tools/xdg-open"
}

# user types the commands at a computer in the network of the nodes.
user() {
	cp "$work/commands" "$work/user/.commands"
	sed -i -e ':a' -e '/\\$/{N;s/\\\n *//;ba' -e '}' \
		-e "s|registry\.example\.com|$registry|g" -e 's| ca\.pem| ../ca.pem|' \
		-e "s|drover\.example\.com:30443|$hub|g" "$work/user/.commands"
	cat >"$work/user/.type" <<-'END'
		cd "$HOME"
		exec > >(/usr/bin/tee -a "$HOME/screen") 2>&1
		began=${EPOCHREALTIME/./}
		failed=0
		while IFS= read -r command <&3; do
			[[ -n $command && $command != \#* ]] || continue
			printf '\n$ %s\n' "$command"
			start=${EPOCHREALTIME/./}
			eval "$command" 3<&- || failed=$?
			end=${EPOCHREALTIME/./}
			took=$(((end - start) / 100000)) at=$(((end - began) / 1000000))
			printf '# %d.%d s; %d:%02d since the start\n' $((took / 10)) $((took % 10)) $((at / 60)) $((at % 60))
			[[ $failed == 0 ]] || exit "$failed"
			limit=$LIMIT
			[[ $command != *"drover import"* ]] || limit=$READY
			[[ $at -le $limit ]] || { echo "too late: the limit is $limit s"; exit 1; }
		done 3<.commands
	END
	local relay
	relay=$(<"$work/lab/pids/relay.pid")
	(cd "$work/user" && nsenter --net="/proc/$relay/ns/net" env -i HOME="$work/user" PATH="$work/user/tools" TERM=dumb \
		LIMIT="${LIMIT:-600}" READY="${READY:-300}" /bin/bash .type) || {
		cat "$work/user/browser.log" >&2 2>/dev/null || true
		die "the user did not reach the end"
	}
}

case ${1:-} in
inside) inside "$2" ;;
*) prepare "$@" ;;
esac
