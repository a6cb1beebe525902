#!/usr/bin/env bash
# Copyright The Drover Authors.
# SPDX-License-Identifier: Apache-2.0

# Runs the stories of a cluster of Hosts, each in its own network namespace, so that no traffic leaves the machine. The
# arguments are the Kubernetes programs that it needs. DROVER_E2E_CLUSTERAPI=measure creates only the first control
# plane, with a hub that keeps running, and logs how long that takes. With =versions, the rollout starts from the
# previous minor version, and another story makes the same change in place, which requires another build of Kubernetes.
set -euo pipefail

go run ./hack/labctl check
go run ./hack/labctl build "$@"
export DROVER_E2E_CLUSTERAPI=${DROVER_E2E_CLUSTERAPI:-1}
previous=()
[[ $DROVER_E2E_CLUSTERAPI != versions ]] || previous=(--previous)
go run ./hack/labctl clusterapi "${previous[@]}"
stories=(TestClusterAPIMakesAClusterByKubeadm)
case $DROVER_E2E_CLUSTERAPI in
1) stories+=(TestEtcdOfAClusterByKubeadmIsRestored TestABaselineInstallsTheNetwork) ;;
versions) stories+=(TestClusterAPIUpdatesAClusterByKubeadmInPlace) ;;
esac
for story in "${stories[@]}"; do
	go test -vet=off -ldflags='-s -w' -timeout 60m -count=1 -exec 'unshare --net --' ./test/e2e -run "^$story\$" -v
done
