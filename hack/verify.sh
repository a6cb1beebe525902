#!/usr/bin/env bash
# Copyright The Drover Authors.
# SPDX-License-Identifier: Apache-2.0

# Checks that generated files, go.mod, config/ and the architecture are correct. It runs every check, then names the
# failed ones. It also works with uncommitted changes, because it compares generated files with their previous content.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=()

check() { # name, command…
	printf -- '--- %s\n' "$1"
	"${@:2}" || failed+=("$1")
}

generated_files() {
	find api internal -name 'zz_generated.*.go'
	find config/crd/bases config/clusterapi/bases config/provision/bases -name '*.yaml'
	find config/rbac config/provision config/clusterapi -name role.yaml
	find config/prometheus -name prometheusrule.yaml
}

copy_generated() { # destination
	mkdir -p "$1"
	generated_files | sort | xargs -r cp --parents -t "$1"
}

generated_is_current() {
	copy_generated "$work/before"
	hack/generate.sh || return 1
	copy_generated "$work/after"
	(cd "$work" && diff -ruN before after) && return 0
	echo "generated files were out of date; they are regenerated now: commit them" >&2
	return 1
}

module_files() { find . -name go.mod -not -path './.*' -not -path '*/testdata/*' -printf '%P\n' | sort; }

modules_are_tidy() {
	local rc=0 mod
	while read -r mod; do
		(cd "$(dirname "$mod")" && go mod tidy -diff) || {
			echo "$mod is not tidy: run 'go mod tidy' in its folder" >&2
			rc=1
		}
	done < <(module_files)
	return $rc
}

# Nested modules, such as the benchmarks, are outside of ./... and would otherwise break unnoticed.
nested_modules_build() {
	local rc=0 mod
	while read -r mod; do
		[[ $mod == go.mod ]] && continue
		(cd "$(dirname "$mod")" && go vet ./...) || rc=1
	done < <(module_files)
	return $rc
}

overlays_build() {
	local rc=0 file dir kustomize
	kustomize=$(go tool -modfile=hack/tools/kustomize.mod -n kustomize) || return 1
	while read -r file; do
		dir=$(dirname "$file")
		if ! "$kustomize" build "$dir" >"$work/out.yaml"; then
			rc=1
		elif [[ ! -s $work/out.yaml ]]; then
			echo "kustomize build $dir: the output is empty" >&2
			rc=1
		fi
	done < <(find config -name kustomization.yaml | sort)
	return $rc
}

# If the manifests of "make deploy" still had placeholders, no agent could reach the hub.
deployment_is_complete() {
	local out
	out=$(IMG=registry.test/drover:v9 URL=https://hub.test,https://hub2.test:8443 hack/deploy.sh render) || return 1
	local want
	for want in 'image: registry.test/drover:v9' 'urls: ["https://hub.test", "https://hub2.test:8443"]'; do
		if ! grep -qF -- "$want" <<<"$out"; then
			echo "hack/deploy.sh render: no line has '$want'" >&2
			return 1
		fi
	done
	local exposed
	for exposed in $(ls config/expose); do
		if ! IMG=x/y:v1 URL=https://hub.test:8443 EXPOSE=$exposed hack/deploy.sh render >"$work/exposed.yaml" ||
			! grep -qE '(host: |- )hub\.test$|type: LoadBalancer' "$work/exposed.yaml"; then
			echo "hack/deploy.sh render with EXPOSE=$exposed: the host or the load balancer is missing" >&2
			return 1
		fi
		out+=$(<"$work/exposed.yaml")
	done
	local provision
	for provision in provision clusterapi clusterapi-inplace; do
		if ! IMG=registry.test/drover:v9 URL=https://hub.test PROVISION=$provision hack/deploy.sh render >"$work/provision.yaml" ||
			[[ $(grep -c 'image: registry.test/drover:v9' "$work/provision.yaml") != 2 ]]; then
			echo "hack/deploy.sh render with PROVISION=$provision: the manager or the provisioner does not have the image" >&2
			return 1
		fi
		out+=$(<"$work/provision.yaml")
	done
	if grep -nE 'drover:latest|drover\.example\.com' <<<"$out"; then
		echo "hack/deploy.sh render: the lines above still have a placeholder" >&2
		return 1
	fi
}

# A program that "go build" leaves in the root would be committed by "git add -A", and then stay in every clone.
no_large_files() {
	local large
	large=$(git ls-files -z | xargs -0 sh -c 'find "$@" -maxdepth 0 -size +1024k' sh)
	[[ -z $large ]] && return 0
	echo "do not commit files of more than 1 MiB: $large" >&2
	return 1
}

check "no large file is committed" no_large_files
check "generated files are current" generated_is_current
check "go.mod is tidy" modules_are_tidy
check "nested modules build" nested_modules_build
check "kustomize builds every overlay" overlays_build
check "make deploy sets image and address" deployment_is_complete
# "make test-long" runs the rest. "make test" has the same flags, and reuses the result.
check "architecture tests pass" go test -vet=off -ldflags='-s -w' -timeout 30m -skip '^TestLong_' ./internal/arch/...

if ((${#failed[@]})); then
	printf 'verify: %s: FAILED\n' "${failed[@]}" >&2
	exit 1
fi
echo "verify: all checks passed"
