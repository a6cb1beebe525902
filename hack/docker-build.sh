#!/usr/bin/env bash
# Copyright The Drover Authors.
# SPDX-License-Identifier: Apache-2.0

# Builds the image that holds both programs. IMG names it; DOCKER says with what, docker by default.
set -euo pipefail
cd "$(dirname "$0")/.."

docker=${DOCKER:-docker}
if [[ -z ${IMG:-} ]]; then
	echo "docker-build: IMG is missing: name the image, for example IMG=registry.example.com/drover:v0.1.0" >&2
	exit 1
fi
if ! command -v "$docker" >/dev/null; then
	echo "docker-build: $docker is not installed; say DOCKER=podman (or nerdctl) if you have that" >&2
	exit 1
fi
"$docker" build --build-arg "VERSION=${VERSION:-v0.1.0-dev}" --tag "$IMG" .
