#!/usr/bin/env bash
# Copyright The Drover Authors.
# SPDX-License-Identifier: Apache-2.0

# Generates deep copies, CRDs and the ClusterRoles from the Go sources, and the PrometheusRule from the rules.
set -euo pipefail
cd "$(dirname "$0")/.."

controller_gen() { go tool -modfile=hack/tools/controller-gen.mod controller-gen "$@"; }

controller_gen object:headerFile=hack/boilerplate.go.txt paths=./api/... paths=./internal/clusterprofile/...
controller_gen crd paths=./api/v1/... output:crd:artifacts:config=config/crd/bases
# These kinds exist only on hubs with Cluster API.
controller_gen crd paths=./api/infrastructure/... output:crd:artifacts:config=config/clusterapi/bases
# This kind exists only on hubs that create clusters of Hosts.
controller_gen crd paths=./api/provision/... output:crd:artifacts:config=config/provision/bases
# A Quantity such as 1e-2147483648 takes hours to parse, whenever its object is read. No marker can restrict the schema
# of a Quantity.
sed -i -E 's/^( +)pattern: \^\(\\\+\|-\)\?.*numkMGTPE.*$/\1maxLength: 32\n\1pattern: ^-?[0-9]+(\\.[0-9]+)?([KMGTPE]i|[numkMGTPE])?$/' config/crd/bases/*.yaml

# Every field of a spec has a limit.
go run ./hack/bounds config/*/bases/*.yaml

# Rights come from +kubebuilder:rbac markers next to the code that needs them. The provisioner has its own rights.
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

# Wraps the rules of plain Prometheus for the operator.
{
	echo '# Made from rules.yaml by "make generate". Do not edit.'
	printf '%s\n' 'apiVersion: monitoring.coreos.com/v1' 'kind: PrometheusRule' 'metadata:' '  name: drover' '  namespace: drover-system' 'spec:'
	grep -v '^#' config/prometheus/rules.yaml | sed 's/^/  /'
} >config/prometheus/prometheusrule.yaml
