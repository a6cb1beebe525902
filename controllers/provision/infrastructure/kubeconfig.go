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

// kubeconfigKey is the key that Cluster API reads.
const kubeconfigKey = "value"

// tokenFile is the file in which Cluster API's controllers, which are pods of the hub, have a token of their
// ServiceAccount for the hub's URL (config/clusterapi/samples/token-patch.yaml). So the Secret holds no credential, and
// a server that receives the token can use it only at the hub's proxy, and not at the hub's API server. A pod's default
// token would be valid at the API server.
const tokenFile = "/var/run/secrets/drover/token"

// kubeconfig returns the kubeconfig with which Cluster API's controllers reach a cluster: through the hub's proxy, as
// themselves. It is pure.
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
