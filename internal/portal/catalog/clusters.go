// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package catalog

import (
	"cmp"
	"context"
	"net/http"
	"slices"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/identity"
	"github.com/drover-dev/drover/internal/identity/refusal"
	"github.com/drover-dev/drover/internal/index"
)

// maxReviews is the maximum number of access reviews for one response. The reviews run one at a time.
const maxReviews = 100

// ClusterList holds the Clusters that a user can reach, ordered by name.
type ClusterList struct {
	Items []Cluster `json:"items"`
	// Incomplete is true if the user may be able to reach more Clusters, because some of the user's rights could not be
	// checked.
	Incomplete bool `json:"incomplete,omitempty"`
}

// Cluster describes a Cluster to users who can reach it.
type Cluster struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// Ready is the status of the Ready condition. Reason is the reason in that condition.
	Ready  metav1.ConditionStatus `json:"ready"`
	Reason string                 `json:"reason,omitempty"`
	// Version is the Kubernetes version.
	Version string `json:"version,omitempty"`
	// Direct is the address at which users can connect to the member directly. It is nil if there is no such address.
	Direct *Direct `json:"direct,omitempty"`
}

// Direct contains the settings that a kubeconfig needs for a direct connection to a member.
type Direct struct {
	Server string `json:"server"`
	// CABundle contains PEM-encoded CA certificates. If it is empty, the user's computer must already trust the
	// server's certificate.
	CABundle string `json:"caBundle,omitempty"`
	// Mode is APIServer if the address belongs to the member's API server. It is empty if the address belongs to the
	// member's agent.
	Mode v1.AuthorizedEndpointMode `json:"mode,omitempty"`
}

// query selects Clusters in a workspace by their labels. If workspace is empty, it selects Clusters in all workspaces.
type query struct {
	workspace string
	selector  labels.Selector
}

// queryOf parses the parameters namespace and labelSelector. They have the same meaning as in the Kubernetes API.
func queryOf(r *http.Request) (query, error) {
	values := r.URL.Query()
	selector, err := labels.Parse(values.Get("labelSelector"))
	if err != nil {
		return query{}, refusal.BadRequest("the labelSelector is invalid: " + err.Error())
	}
	return query{values.Get("namespace"), selector}, nil
}

// list returns the selected Clusters that a user can reach.
//
// For each Cluster, the decision is the same as for a request to that Cluster. Bindings are looked up in the cache, but
// only in workspaces where the user has a binding. The "get" right on clusters/proxy is reviewed once for all Clusters,
// and then once for each workspace. It is reviewed for individual Clusters only if the query names the workspace.
func (c *Catalog) list(ctx context.Context, id identity.Identity, q query) (any, error) {
	bound, err := c.Workspaces(index.Principals{User: id.User, Groups: id.Groups})
	if err != nil {
		return nil, refusal.Unavailable("the hub has not read all bindings yet; try again").Because(err)
	}
	var clusters v1.ClusterList
	if err := c.Clusters.List(ctx, &clusters, client.InNamespace(q.workspace),
		client.MatchingLabelsSelector{Selector: q.selector}, client.UnsafeDisableDeepCopy); err != nil {
		return nil, refusal.Unavailable("the hub could not list its Clusters; try again").Because(err)
	}
	a := &clusterListing{Catalog: c, id: id, bound: bound, named: q.workspace != "",
		known: map[types.NamespacedName]bool{}}
	a.Items = []Cluster{}
	for i := range clusters.Items {
		cluster := &clusters.Items[i]
		if a.reaches(ctx, client.ObjectKeyFromObject(cluster)) {
			a.Items = append(a.Items, Describe(cluster))
		}
		if err := ctx.Err(); err != nil {
			return nil, refusal.Unavailable("the hub could not check in time which Clusters you can reach; select a " +
				"workspace").Because(err)
		}
	}
	slices.SortFunc(a.Items, func(a, b Cluster) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	return a.ClusterList, nil
}

// Describe returns the description of a Cluster for users who can reach it.
func Describe(cluster *v1.Cluster) Cluster {
	out := Cluster{Namespace: cluster.Namespace, Name: cluster.Name, Ready: metav1.ConditionUnknown,
		Version: cluster.Status.Version}
	if ready := meta.FindStatusCondition(cluster.Status.Conditions, v1.ConditionReady); ready != nil {
		out.Ready, out.Reason = ready.Status, ready.Reason
	}
	switch endpoint := cluster.Spec.AuthorizedEndpoint; {
	case endpoint.ByAPIServer():
		out.Direct = &Direct{Server: endpoint.Server, CABundle: endpoint.CABundle, Mode: endpoint.Mode}
	case endpoint.On() && endpoint.TLSSecretName != "":
		out.Direct = &Direct{Server: endpoint.Server, CABundle: endpoint.CABundle}
	case endpoint.On() && cluster.Status.DirectAuthority != "": // the agent has created the endpoint's certificate
		out.Direct = &Direct{Server: endpoint.Server, CABundle: cluster.Status.DirectAuthority}
	}
	return out
}

// clusterListing builds a list of Clusters.
type clusterListing struct {
	*Catalog
	ClusterList

	id    identity.Identity
	bound map[string]index.Principals // by workspace
	named bool                        // whether the query names a workspace
	known map[types.NamespacedName]bool
}

// reaches reports whether the user can reach a Cluster. If a review fails, it returns false and the Cluster is not
// shown.
func (a *clusterListing) reaches(ctx context.Context, name types.NamespacedName) bool {
	if a.mayProxy(ctx, types.NamespacedName{}) {
		return true
	}
	if who, some := a.bound[name.Namespace]; some {
		id := a.id
		// Omit groups that have no binding in the workspace. A user may have thousands of groups.
		id.Groups = who.Groups
		open, err := a.Bound(ctx, id, name)
		if open && err == nil {
			return true
		}
		a.Incomplete = a.Incomplete || err != nil
	}
	return a.mayProxy(ctx, types.NamespacedName{Namespace: name.Namespace}) || a.named && a.mayProxy(ctx, name)
}

// mayProxy reports whether the user has the "get" right on clusters/proxy. For each response, it reviews a right only
// once, and reviews at most maxReviews rights.
func (a *clusterListing) mayProxy(ctx context.Context, what types.NamespacedName) bool {
	if may, known := a.known[what]; known {
		return may
	}
	if len(a.known) >= maxReviews {
		a.Incomplete = true
		return false
	}
	may, err := a.Proxy(ctx, a.id, what)
	a.known[what] = may && err == nil
	a.Incomplete = a.Incomplete || err != nil
	return a.known[what]
}
