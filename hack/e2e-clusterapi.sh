#!/usr/bin/env bash
# Copyright The Drover Authors.
# SPDX-License-Identifier: Apache-2.0

# Runs the stories of a cluster of Hosts, each in a network namespace of its own: nothing that it sends leaves the machine. The arguments are the programs of Kubernetes that it takes.
# DROVER_E2E_CLUSTERAPI=measure makes the first control plane alone, with a hub that lives, and logs how long that takes. With =versions the rollout is one from the minor
# version before, and another story makes that change in place, which takes a further build of Kubernetes.
set -euo pipefail

go run ./hack/labctl check
go run ./hack/labctl build "$@"
export DROVER_E2E_CLUSTERAPI=${DROVER_E2E_CLUSTERAPI:-1}
previous=()
[[ $DROVER_E2E_CLUSTERAPI != versions ]] || previous=(--previous)
go run ./hack/labctl clusterapi "${previous[@]}"
stories=(TestClusterAPIMakesAClusterByKubeadm)
case $DROVER_E2E_CLUSTERAPI in
1) stories+=(TestEtcdOfAClusterByKubeadmIsRestored) ;;
versions) stories+=(TestClusterAPIUpdatesAClusterByKubeadmInPlace) ;;
esac
for story in "${stories[@]}"; do
	go test -vet=off -ldflags='-s -w' -timeout 60m -count=1 -exec 'unshare --net --' ./test/e2e -run "^$story\$" -v
done
