#!/usr/bin/env bash
# Copyright The Drover Authors.
# SPDX-License-Identifier: Apache-2.0

# Installs Drover into kubectl's current cluster, or removes it.
#
#   hack/deploy.sh deploy | undeploy | install | uninstall | render | installer
#
# IMG       image of manager and agent (deploy, render, installer)
# URL       https address of the hub, or several separated by commas (deploy, render; it can be added to dist/install.yaml later)
# PROVISION additional folder of config/ with the provisioner: provision, clusterapi or clusterapi-inplace (deploy, render, undeploy)
# SIGN_IN=1 lets users sign in at the first URL (deploy, render, installer)
# EXPOSE    folder of config/expose to apply instead of config/default: loadbalancer, ingress or gateway (deploy, render, undeploy)
# FORCE=1   makes undeploy and uninstall first delete the objects that they refuse to strand: Clusters, Hosts, the provisioner's
# KUBECTL   the kubectl to use, with or without flags: KUBECTL="kubectl --context hub"
set -euo pipefail
cd "$(dirname "$0")/.."

readonly overlay=${EXPOSE:+expose/}${EXPOSE:-default}
# Kinds that undeploy and uninstall refuse to strand. With FORCE=1 their objects are deleted in this order: the
# provisioner's finalizers keep Hosts and machines until these are clean.
readonly crds=(
	etcdrestores.provision.cluster.drover.dev etcdsnapshots.provision.cluster.drover.dev
	clusterinstallations.provision.cluster.drover.dev drovermachines.infrastructure.cluster.drover.dev
	droverclusters.infrastructure.cluster.drover.dev clusters.cluster.drover.dev hosts.cluster.drover.dev
)
# Bindings that gave these rights to the manager, before there was a provisioner.
readonly former=(drover-manager-provision drover-manager-cluster-api drover-manager-cluster-import)
read -ra kubectl <<<"${KUBECTL:-kubectl}"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

die() {
	printf 'deploy: %s\n' "$*" >&2
	exit 1
}

warn() { printf 'deploy: warning: %s\n' "$*" >&2; }

# With -n, "go tool" prints the path of the program that it has built.
kustomize_build() {
	kustomize=${kustomize:-$(go tool -modfile=hack/tools/kustomize.mod -n kustomize)}
	"$kustomize" build "$1"
}

require_settings() {
	[[ -n ${IMG:-} ]] || die "IMG is missing: set it to the image to run, for example IMG=registry.example.com/drover:v0.1.0"
	[[ -n ${URL:-} ]] || die "URL is missing: set it to the address at which agents and users reach the hub, for example URL=https://drover.example.com"
	[[ $IMG =~ ^[A-Za-z0-9][A-Za-z0-9._/:@-]*$ ]] || die "IMG=$IMG is not an image reference"
	[[ -f config/$overlay/kustomization.yaml ]] || die "EXPOSE=${EXPOSE:-}: config/expose has no such folder: name one of $(ls -x config/expose)"
	case ${PROVISION:-} in
	'' | provision | clusterapi | clusterapi-inplace) ;;
	*) die "PROVISION=$PROVISION: name one of provision, clusterapi, clusterapi-inplace" ;;
	esac
	local url
	while read -r url; do
		[[ $url =~ ^https://([A-Za-z0-9.-]+|\[[0-9A-Fa-f:]+\])(:[0-9]+)?/?$ ]] ||
			die "URL: '$url' is not an https address such as https://drover.example.com:8443"
	done <<<"${URL//,/$'\n'}"
	[[ -z ${SIGN_IN:-} || ! ${URL%%,*} =~ [A-Z]|:443/?$ ]] ||
		die "SIGN_IN: the first URL, ${URL%%,*}, must be in lower case and without :443, because tokens name it"
}

# render prints the manifests that deploy applies. It works on a copy, so that the tree stays clean.
render() {
	require_settings
	cp -r config "$work/config"
	local urls config deployment
	urls="\"${URL//,/\", \"}\""
	config=$(<config/manager/config.yaml)
	config=${config//'"https://drover.example.com"'/"$urls"}
	[[ -z ${SIGN_IN:-} ]] || config+=$'\nsignIn:\n  issuer: "'"${URL%%,*}"'"'
	printf '%s\n' "$config" >"$work/config/manager/config.yaml"
	deployment=$(<config/manager/deployment.yaml)
	printf '%s\n' "${deployment//'image: drover:latest'/"image: $IMG"}" >"$work/config/manager/deployment.yaml"
	deployment=$(<config/provision/deployment.yaml)
	printf '%s\n' "${deployment//'image: drover:latest'/"image: $IMG"}" >"$work/config/provision/deployment.yaml"
	local host=${URL%%,*}
	host=${host#https://}
	if [[ $overlay != default ]]; then
		[[ $host != \[* || $overlay == expose/loadbalancer ]] || die "EXPOSE=$EXPOSE routes by host name: URL=https://$host is an IP address"
		sed -i "s/drover\.example\.com/${host%%[:/]*}/" "$work/config/$overlay"/*.yaml
	fi
	kustomize_build "$work/config/$overlay"
	if [[ -n ${PROVISION:-} ]]; then
		echo ---
		kustomize_build "$work/config/$PROVISION"
	fi
}

# definitions prints the CRDs that deploy applies.
definitions() {
	kustomize_build config/crd
	[[ -z ${PROVISION:-} ]] || cat config/provision/bases/*.yaml
	[[ ${PROVISION:-} != clusterapi* ]] || cat config/clusterapi/bases/*.yaml
}

# installer writes the manifests that deploy applies to one file, for users without Go.
installer() {
	URL=${URL:-https://drover.example.com}
	mkdir -p dist
	{
		echo "# Drover. Set server.urls in the ConfigMap drover-config to the addresses at which agents and users reach the hub, then: kubectl apply --server-side -f install.yaml"
		render
	} >"$work/install.yaml"
	mv "$work/install.yaml" dist/install.yaml
	echo "deploy: wrote dist/install.yaml" >&2
}

deploy() {
	refuse_less_than_installed
	render >"$work/all.yaml"
	definitions >"$work/crds.yaml"
	# The CRDs come first, because the API server takes a moment to learn of them.
	"${kubectl[@]}" apply --server-side --force-conflicts -f "$work/crds.yaml"
	"${kubectl[@]}" wait --for=condition=Established --timeout=60s -f "$work/crds.yaml"
	"${kubectl[@]}" apply --server-side --force-conflicts -f "$work/all.yaml"
	"${kubectl[@]}" --namespace drover-system rollout status deployment/drover-manager --timeout=5m
	if [[ -n ${PROVISION:-} ]]; then
		"${kubectl[@]}" --namespace drover-system rollout status deployment/drover-provisioner --timeout=5m
		warn_about_workspaces
	else
		warn_about_provisioner
	fi
	"${kubectl[@]}" delete clusterrolebinding "${former[@]}" --ignore-not-found
}

# objects_of prints the names of all objects of a CRD, nothing if the hub does not have the CRD.
objects_of() { # CRD
	local found
	found=$("${kubectl[@]}" get "crd/$1" --ignore-not-found --output name) || return
	[[ -z $found ]] || "${kubectl[@]}" get "$1" --all-namespaces --output name
}

# provisioner prints the name of the provisioner's Deployment, nothing if the hub has none.
provisioner() {
	"${kubectl[@]}" --namespace drover-system get deployment drover-provisioner --ignore-not-found --output name
}

# warn_about_provisioner says what happens to clusters of Hosts on a hub that is deployed without PROVISION.
warn_about_provisioner() {
	local found crd objects
	found=$(provisioner)
	if [[ -n $found ]]; then
		warn "the hub's provisioner keeps its version: to update it with the manager, set PROVISION as when it was installed"
		return
	fi
	for crd in "${crds[@]:0:5}"; do
		objects=$(objects_of "$crd")
		[[ -z $objects ]] || warn "there are $(wc -l <<<"$objects") ${crd%%.*}, and the hub has no provisioner that \
reconciles them: deploy it with PROVISION=provision, or clusterapi for Cluster API"
	done
}

# warn_about_workspaces names the workspaces with clusters of Hosts that have not let the provisioner work.
warn_about_workspaces() {
	local crd workspace used="" bound
	local namespaces='{range .items[*]}{.metadata.namespace}{"\n"}{end}'
	for crd in "${crds[@]:0:5}"; do
		[[ -z $(objects_of "$crd") ]] || used+=$("${kubectl[@]}" get "$crd" --all-namespaces --output "jsonpath=$namespaces")$'\n'
	done
	bound=$("${kubectl[@]}" get rolebindings --all-namespaces --output \
		"jsonpath=${namespaces/\*/?(@.roleRef.name==\"drover-provisioner-workspace\")}")
	for workspace in $(sort -u <<<"$used"); do
		grep -qxF "$workspace" <<<"$bound" || warn "the provisioner does nothing in workspace $workspace until you run: \
kubectl create rolebinding drover-provisioner -n $workspace --clusterrole=drover-provisioner-workspace \
--serviceaccount=drover-system:drover-provisioner"
	done
}

# refuse_less_than_installed keeps a provisioner that serves Cluster API from losing that part of its configuration, and
# keeps its policies from staying behind.
refuse_less_than_installed() {
	[[ ${PROVISION:-} == provision ]] || return 0
	local found
	found=$("${kubectl[@]}" get clusterrolebinding drover-provisioner-cluster-api --ignore-not-found --output name)
	[[ -z $found ]] || die "the hub's provisioner serves Cluster API: set PROVISION=clusterapi or clusterapi-inplace, as when it \
was installed"
}

# refuse_while_used keeps users from stranding agents and machines. Without the manager and its CA, the remaining agents can
# neither be asked to uninstall themselves, nor trust a hub that is installed later. Without the provisioner, no controller
# removes the finalizers of its objects.
refuse_while_used() { # the name of the program that is being removed
	local crd objects
	for crd in "${crds[@]}"; do
		objects=$(objects_of "$crd")
		[[ -n $objects ]] || continue
		[[ ${FORCE:-} == 1 ]] || die "there are $(wc -l <<<"$objects") ${crd%%.*}, which would be stranded without $1.
Delete them first (kubectl delete $crd --all --all-namespaces), or let this do it: FORCE=1"
		"${kubectl[@]}" delete "$crd" --all --all-namespaces --timeout=5m
	done
}

undeploy() {
	local found
	found=$(provisioner)
	[[ -z $found || -n ${PROVISION:-} ]] || die "the hub has a provisioner, which would stay: set PROVISION as when it was \
installed (provision, clusterapi or clusterapi-inplace), or remove its overlay first"
	refuse_less_than_installed
	refuse_while_used "the hub"
	[[ -z ${PROVISION:-} ]] || kustomize_build "config/$PROVISION" | "${kubectl[@]}" delete --ignore-not-found -f -
	kustomize_build "config/$overlay" | "${kubectl[@]}" delete --ignore-not-found -f -
}

case ${1:-} in
render) render ;;
installer) installer ;;
deploy) deploy ;;
install) kustomize_build config/crd | "${kubectl[@]}" apply --server-side --force-conflicts -f - ;;
uninstall)
	refuse_while_used "the CRDs"
	kustomize_build config/crd | "${kubectl[@]}" delete --ignore-not-found -f -
	;;
undeploy) undeploy ;;
*) die "usage: hack/deploy.sh deploy | undeploy | install | uninstall | render | installer" ;;
esac
