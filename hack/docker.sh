#!/usr/bin/env bash
# Copyright The Drover Authors.
# SPDX-License-Identifier: Apache-2.0

# Builds or pushes the image, which has all programs, with a container engine. "make images" does not need one.
#
#   hack/docker.sh build | push | buildx
#
# IMG            name of the image
# CONTAINER_TOOL docker by default; podman and nerdctl take the same commands
# PLATFORMS      platforms for which buildx builds and pushes
set -euo pipefail
cd "$(dirname "$0")/.."

tool=${CONTAINER_TOOL:-${DOCKER:-docker}}
die() {
	printf 'docker: %s\n' "$*" >&2
	exit 1
}
[[ -n ${IMG:-} ]] || die "IMG is missing: name the image, for example IMG=registry.example.com/drover:v0.1.0"
command -v "$tool" >/dev/null || die "$tool is not installed: set CONTAINER_TOOL=podman (or nerdctl) if you have it, or run make images"
version=(--build-arg "VERSION=${VERSION:-v0.1.0-dev}")

case ${1:-} in
build) "$tool" build "${version[@]}" --tag "$IMG" . ;;
push) "$tool" push "$IMG" ;;
buildx) "$tool" buildx build "${version[@]}" --platform "${PLATFORMS:-linux/amd64,linux/arm64}" --push --tag "$IMG" . ;;
*) die "usage: hack/docker.sh build | push | buildx" ;;
esac
