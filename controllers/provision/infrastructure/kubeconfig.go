// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package infrastructure

import (
	"fmt"

	clientcmdv1 "k8s.io/client-go/tools/clientcmd/api/v1"
	"sigs.k8s.io/yaml"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/protocol"
)

// kubeconfigKey is the key in the Secret under which Cluster API expects the kubeconfig.
const kubeconfigKey = "value"

// tokenFile is the file that contains the ServiceAccount token of Cluster API's controllers for the hub's URL
// (config/clusterapi/samples/token-patch.yaml). These controllers run in pods on the hub, so the Secret need not
// contain credentials. A server that receives the token can use it only with the hub's proxy, not with the hub's API
// server. A pod's default token would be valid for the API server.
const tokenFile = "/var/run/secrets/drover/token"

// kubeconfig returns the kubeconfig that Cluster API's controllers use to reach a cluster through the hub's proxy. The
// controllers use their own identity. kubeconfig has no side effects.
func kubeconfig(cluster *v1.Cluster, settings protocol.Settings) ([]byte, error) {
	if len(settings.Servers) == 0 {
		return nil, fmt.Errorf("the hub has no address")
	}
	member := clientcmdv1.Cluster{Server: settings.Servers[0] + protocol.PathClusters + cluster.Namespace + "/" + cluster.Name}
	if settings.CABundle != "" {
		member.CertificateAuthorityData = []byte(settings.CABundle)
	}
	return yaml.Marshal(clientcmdv1.Config{
		APIVersion: "v1", Kind: "Config", CurrentContext: cluster.Name,
		Clusters:  []clientcmdv1.NamedCluster{{Name: cluster.Name, Cluster: member}},
		AuthInfos: []clientcmdv1.NamedAuthInfo{{Name: "cluster-api", AuthInfo: clientcmdv1.AuthInfo{TokenFile: tokenFile}}},
		Contexts:  []clientcmdv1.NamedContext{{Name: cluster.Name, Context: clientcmdv1.Context{Cluster: cluster.Name, AuthInfo: "cluster-api"}}},
	})
}
