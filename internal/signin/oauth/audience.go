// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package oauth

import (
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
)

// AudienceCluster is the prefix of an audience for one cluster. The rest of the audience is <namespace>/<name>.
const AudienceCluster = "cluster:"

// ClusterOf returns the cluster (<namespace>/<name>) in an audience, and reports whether the audience is valid for one
// cluster.
func ClusterOf(audience string) (cluster string, one bool) {
	cluster, one = strings.CutPrefix(audience, AudienceCluster)
	return cluster, one && IsCluster(cluster)
}

// IsCluster reports whether a string has the form <namespace>/<name> with a valid namespace and a valid Cluster name.
func IsCluster(s string) bool {
	namespace, name, _ := strings.Cut(s, "/")
	return len(validation.IsDNS1123Label(namespace)) == 0 && len(validation.IsDNS1123Subdomain(name)) == 0
}
