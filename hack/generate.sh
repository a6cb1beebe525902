#!/usr/bin/env bash
# Copyright The Drover Authors.
# SPDX-License-Identifier: Apache-2.0

# Generates deep copies, CRDs and the ClusterRoles from the Go sources, and the PrometheusRule from the rules.
set -euo pipefail
cd "$(dirname "$0")/.."

controller_gen() { go tool -modfile=hack/tools/controller-gen.mod controller-gen "$@"; }

controller_gen object:headerFile=hack/boilerplate.go.txt paths=./api/... paths=./internal/clusterprofile/...
controller_gen crd paths=./api/v1/... output:crd:artifacts:config=config/crd/bases
# These kinds are for hubs with Cluster API only.
controller_gen crd paths=./api/infrastructure/... output:crd:artifacts:config=config/clusterapi/bases
# This kind is for hubs that make clusters of Hosts only.
controller_gen crd paths=./api/provision/... output:crd:artifacts:config=config/provision/bases
# A Quantity like 1e-2147483648 takes hours to read, wherever an object that has it is read. No marker reaches the schema of a Quantity.
sed -i -E 's/^( +)pattern: \^\(\\\+\|-\)\?.*numkMGTPE.*$/\1maxLength: 32\n\1pattern: ^-?[0-9]+(\\.[0-9]+)?([KMGTPE]i|[numkMGTPE])?$/' config/crd/bases/*.yaml

# No spec has a field without a bound.
go run ./hack/bounds config/*/bases/*.yaml

# Rights are +kubebuilder:rbac markers beside the code that needs them. The provisioner has rights of its own.
rights() { # role, folder of role.yaml, paths…
	controller_gen rbac:roleName="$1" "${@:3}" output:rbac:artifacts:config="$2"
}
core=(paths=./controllers)
for dir in controllers/*/ internal/*/; do
	[[ $(basename "$dir") == provision ]] || core+=("paths=./${dir}...")
done
rights drover-manager config/rbac "${core[@]}"
rights drover-provisioner config/provision paths=./controllers/provision paths=./internal/provision/config
rights drover-provisioner-cluster-api config/clusterapi \
	paths=./controllers/provision/{infrastructure,machine} paths=./internal/provision/{clusterapi,inplace}
rights drover-provisioner-cluster-import config/clusterapi/import paths=./controllers/provision/clusterimport

# The operator takes the rules that plain Prometheus takes, wrapped.
{
	echo '# Made of rules.yaml by "make generate". Change that.'
	printf '%s\n' 'apiVersion: monitoring.coreos.com/v1' 'kind: PrometheusRule' 'metadata:' '  name: drover' '  namespace: drover-system' 'spec:'
	grep -v '^#' config/prometheus/rules.yaml | sed 's/^/  /'
} >config/prometheus/prometheusrule.yaml
