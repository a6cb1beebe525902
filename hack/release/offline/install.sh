#!/bin/sh
# Copyright The Drover Authors.
# SPDX-License-Identifier: Apache-2.0

# Installs Drover from this bundle on a machine without access to the internet. It requires a POSIX shell with the usual
# tools, and kubectl. You can safely run it again.
set -eu

version='@VERSION@'
image='@IMAGE@'
here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)

usage() {
	cat <<END
Usage: ./install.sh --registry REGISTRY --url URL [flags]

Pushes the image of Drover $version to a registry, and installs the hub into kubectl's current cluster.

  --registry HOST[:PORT][/PATH]  where to push the image, and where the nodes pull it from
  --registry-ca FILE             CA certificates (PEM) of the registry
  --plain-http                   allow a registry without TLS
  --url URL[,URL...]             https addresses at which agents and users reach the hub
  --node-port PORT               expose the hub at this port of each node (30000-32767, unless the cluster differs)
  --load-balancer                expose the hub by a load balancer of the cluster
  --sign-in                      let users sign in at the first URL
  --context NAME                 context of kubectl to install into
  --output FILE                  write the manifests to FILE instead of applying them
  --push-only                    only push the image
  --no-wait                      do not wait until the manager runs
  --plugin-dir DIR               install the kubectl plugin into DIR, a folder of your PATH

The registry's user and password come from \$DOCKER_CONFIG/config.json or ~/.docker/config.json.
END
}

say() { printf 'drover: %s\n' "$*"; }

die() {
	printf 'drover: error: %s\n' "$*" >&2
	exit 1
}

kube() { kubectl ${context:+--context="$context"} "$@"; }

# sha256 runs the checksum program of this system.
sha256() {
	if command -v sha256sum >/dev/null 2>&1; then sha256sum "$@"; else shasum -a 256 "$@"; fi
}

platform() {
	os=$(uname -s | tr '[:upper:]' '[:lower:]')
	case $(uname -m) in
	x86_64 | amd64) arch=amd64 ;;
	aarch64 | arm64) arch=arm64 ;;
	*) die "there is no program for $(uname -m) in this bundle" ;;
	esac
}

read_flags() {
	registry='' ca='' plain='' url='' node_port='' balancer='' sign_in='' context=''
	output='' push_only='' wait=yes plugin_dir=''
	while [ $# -gt 0 ]; do
		case $1 in
		--plain-http) plain=yes ;;
		--sign-in) sign_in=yes ;;
		--load-balancer) balancer=yes ;;
		--push-only) push_only=yes ;;
		--no-wait) wait='' ;;
		-h | --help)
			usage
			exit 0
			;;
		--registry | --registry-ca | --url | --node-port | --context | --output | --plugin-dir)
			[ $# -ge 2 ] && [ -n "$2" ] || die "$1 needs a value: see ./install.sh --help"
			case $1 in
			--registry) registry=$2 ;;
			--registry-ca) ca=$2 ;;
			--url) url=$2 ;;
			--node-port) node_port=$2 ;;
			--context) context=$2 ;;
			--output) output=$2 ;;
			--plugin-dir) plugin_dir=$2 ;;
			esac
			shift
			;;
		*) die "unknown argument $1: see ./install.sh --help" ;;
		esac
		shift
	done
}

# check_settings finds mistakes before anything is changed.
check_settings() {
	[ -n "$registry" ] || die "--registry is missing: see ./install.sh --help"
	case $registry in
	[!A-Za-z0-9]* | *[!A-Za-z0-9._:/-]* | */) die "--registry $registry is not of the form HOST[:PORT][/PATH]" ;;
	esac
	[ -z "$ca" ] || [ -r "$ca" ] || die "--registry-ca $ca cannot be read"
	[ -z "$plugin_dir" ] || [ -d "$plugin_dir" ] || die "--plugin-dir $plugin_dir is not a folder"
	[ -z "$push_only" ] || return 0
	[ -n "$url" ] || die "--url is missing: set the address at which agents and users reach the hub"
	printf '%s\n' "$url" | tr ',' '\n' >"$work/urls"
	if bad=$(grep -Evx 'https://([A-Za-z0-9.-]+|\[[0-9A-Fa-f:]+\])(:[0-9]+)?/?' "$work/urls"); then
		die "--url: '$bad' is not an https address such as https://drover.example.com:8443"
	fi
	[ -z "$sign_in" ] || ! printf '%s\n' "${url%%,*}" | grep -qE '[A-Z]|:443/?$' ||
		die "--sign-in: the first address of --url must be in lower case and without :443, because tokens name it"
	case $node_port in
	*[!0-9]* | ??????*) die "--node-port $node_port is not a port" ;;
	esac
	[ -z "$node_port" ] || [ -z "$balancer" ] || die "--node-port and --load-balancer exclude each other"
	[ -z "$output" ] || return 0
	command -v kubectl >/dev/null 2>&1 || die "kubectl is not in the PATH"
	kube get --raw /version >/dev/null ||
		die "kubectl does not reach the cluster${context:+ of context $context}: check its kubeconfig"
}

check_files() {
	say "checking the files of the bundle"
	(cd "$here" && sha256 -c checksums.txt) >"$work/checked" 2>&1 || {
		grep -v ': OK$' "$work/checked" >&2 || true
		die "files of the bundle are damaged or missing, and nothing was changed: unpack the archive again"
	}
}

push_image() {
	say "pushing the image to $registry/drover:$version"
	mkdir "$work/layout"
	tar -xf "$here/images/drover.tar" -C "$work/layout"
	[ "$os" = linux ] || die "the program that pushes the image runs on Linux only"
	set -- -layout "$work/layout"
	[ -z "$ca" ] || set -- "$@" -ca "$ca"
	[ -z "$plain" ] || set -- "$@" -plain-http
	pushed=$("$here/bin/push-image-$os-$arch" "$@" "$registry/drover:$version") ||
		die "the image was not pushed, and the cluster was not changed"
	say "the registry has $pushed"
}

# render writes the manifests with the image in the registry, the hub's address and exposed port and, if sign-in is
# enabled, the issuer. The name of the ConfigMap contains a hash of these settings, so that changed settings restart the
# manager.
render() {
	issuer=''
	[ -z "$sign_in" ] || issuer=${url%%,*}
	hash=$(printf '%s\n' "$issuer" | cat "$work/urls" - | sha256 | cut -c 1-8)
	type=''
	[ -z "$node_port" ] || type=NodePort
	[ -z "$balancer" ] || type=LoadBalancer
	from="$image" to="$pushed" url="$url" issuer="$issuer" hash="$hash" type="$type" port="$node_port" awk '
		/^---/ { service = hub = 0 }
		/^kind: Service$/ { service = 1 }
		service && /^  name: drover$/ { hub = 1 }
		hub && ENVIRON["type"] != "" && /^spec:$/ {
			print
			print "  type: " ENVIRON["type"]
			if (ENVIRON["type"] == "LoadBalancer") print "  externalTrafficPolicy: Local"
			next
		}
		hub && ENVIRON["port"] != "" && /^  - name: https$/ { $0 = $0 "\n    nodePort: " ENVIRON["port"] }
		/^    kind: ManagerConfig$/ && ENVIRON["issuer"] != "" {
			print
			print "    signIn: {issuer: \"" ENVIRON["issuer"] "\"}"
			next
		}
		{
			at = index($0, "image: " ENVIRON["from"])
			if (at && substr($0, at) == "image: " ENVIRON["from"]) $0 = substr($0, 1, at - 1) "image: " ENVIRON["to"]
			at = index($0, "\"https://drover.example.com\"")
			if (at && $0 !~ /^#/) {
				list = ENVIRON["url"]
				gsub(/,/, "\", \"", list)
				$0 = substr($0, 1, at - 1) "\"" list "\"" substr($0, at + length("\"https://drover.example.com\""))
			}
			gsub(/drover-config-[a-z0-9]+/, "&-" ENVIRON["hash"])
			print
		}' "$here/install.yaml" >"$work/install.yaml"
	[ -z "$sign_in" ] || grep -qF 'signIn: {issuer: ' "$work/install.yaml" || die "install.yaml of this bundle has no configuration of the manager"
	[ -z "$type" ] || grep -qxF "  type: $type" "$work/install.yaml" ||
		die "install.yaml of this bundle has no Service drover"
	[ -z "$node_port" ] || grep -qxF "    nodePort: $node_port" "$work/install.yaml" ||
		die "install.yaml of this bundle has no port https to expose"
	grep -qF "image: $pushed" "$work/install.yaml" || die "install.yaml of this bundle does not have the image $image"
}

# definitions prints the CRDs. They are applied first, because the API server needs a moment before it serves them.
definitions() {
	awk '
		function flush() {
			if (crd) printf "---\n%s", text
			text = ""
			crd = 0
		}
		/^---/ { flush(); next }
		/^kind: CustomResourceDefinition$/ { crd = 1 }
		{ text = text $0 "\n" }
		END { flush() }' "$work/install.yaml"
}

# apply applies a file, and prints only warnings and errors. A list of a hundred objects would hide them.
apply() { kube apply --server-side --force-conflicts -f "$1" >"$work/applied"; }

install_hub() {
	render
	if [ -n "$output" ]; then
		cp "$work/install.yaml" "$output.new" || die "$output was not written"
		mv -f "$output.new" "$output"
		say "wrote $output: apply it with kubectl apply --server-side"
		return
	fi
	say "installing Drover $version"
	definitions >"$work/crds.yaml"
	apply "$work/crds.yaml" || die "the CRDs were not installed"
	kube wait --for=condition=Established --timeout=60s -f "$work/crds.yaml" >/dev/null || die "the API server does not serve the CRDs"
	apply "$work/install.yaml" || die "Drover was not installed completely: repeat the command when the cause is gone"
	say "applied $(grep -c . "$work/applied") objects"
	[ -n "$wait" ] || return 0
	say "waiting until the manager runs"
	kube --namespace drover-system rollout status deployment/drover-manager --timeout=5m || die "the manager does not run.
Look for the cause with: kubectl --namespace drover-system describe pods"
}

install_plugin() {
	archive="plugin/kubectl-drover_${version}_${os}_${arch}.tar.gz"
	if [ -z "$plugin_dir" ]; then
		say "the kubectl plugin is in $archive: --plugin-dir DIR installs it"
		return
	fi
	[ -f "$here/$archive" ] || die "the bundle has no plugin for $os/$arch"
	# A program that runs cannot be overwritten, but replaced.
	mkdir "$work/plugin"
	tar -xzf "$here/$archive" -C "$work/plugin" kubectl-drover
	cp "$work/plugin/kubectl-drover" "$plugin_dir/.kubectl-drover.new"
	mv -f "$plugin_dir/.kubectl-drover.new" "$plugin_dir/kubectl-drover"
	ln -sf kubectl-drover "$plugin_dir/kubectl_complete-drover"
	say "installed the kubectl plugin into $plugin_dir"
	folder=$(CDPATH='' cd -- "$plugin_dir" && pwd)
	case :$PATH: in
	*":$folder:"*) ;;
	*) say "kubectl finds it after: export PATH=$folder:\$PATH" ;;
	esac
}

# next_steps prints the steps that follow an installation.
next_steps() {
	[ -n "$type" ] || say "make ${url%%,*} lead to port 443 of the Service drover in drover-system:
  docs/operations/exposing.md has several ways"
	say "next: import a cluster with these commands, and continue with README.md
  kubectl${context:+ --context=$context} create namespace team-a
  kubectl drover${context:+ --context=$context} import NAME -w team-a --to-context CONTEXT"
}

read_flags "$@"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 1' HUP INT TERM
platform
check_settings
check_files
push_image
[ -n "$push_only" ] || install_hub
install_plugin
say "done"
[ -n "$push_only$output" ] || next_steps
