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

// maxReviews is the maximum number of access reviews by the hub's API server for one response. They run one after
// another.
const maxReviews = 100

// ClusterList holds the Clusters that a user can reach, ordered by name.
type ClusterList struct {
	Items []Cluster `json:"items"`
	// Incomplete reports whether the user may be able to reach more Clusters, because not all of the user's rights could
	// be checked.
	Incomplete bool `json:"incomplete,omitempty"`
}

// Cluster is the description of a Cluster for users who can reach it.
type Cluster struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// Ready is the status of the Ready condition, and Reason is its reason.
	Ready  metav1.ConditionStatus `json:"ready"`
	Reason string                 `json:"reason,omitempty"`
	// Version is the Kubernetes version.
	Version string `json:"version,omitempty"`
	// Direct is the address at which users reach the member without the hub, or nil.
	Direct *Direct `json:"direct,omitempty"`
}

// Direct is a member's own address for users, in the format used in kubeconfigs.
type Direct struct {
	Server string `json:"server"`
	// CABundle contains the CA certificates in PEM. If it is empty, the user's computer must already trust the server's
	// certificate.
	CABundle string `json:"caBundle,omitempty"`
	// Mode is APIServer if the address belongs to the member's API server, and empty if it belongs to its agent.
	Mode v1.AuthorizedEndpointMode `json:"mode,omitempty"`
}

// query selects the Clusters of a workspace, or of all workspaces if it is empty, whose labels match.
type query struct {
	workspace string
	selector  labels.Selector
}

// queryOf parses the parameters namespace and labelSelector, which also exist in the Kubernetes API.
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
// The decision for each Cluster is the same as for a request to it. Bindings are looked up in the cache, in workspaces
// where the user has a binding. The "get" right on clusters/proxy is reviewed once for all Clusters, then once for each
// workspace, and for individual Clusters only if the query names the workspace.
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

// Describe returns the information about a Cluster that users who can reach it may see.
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

// clusterListing is a list under construction.
type clusterListing struct {
	*Catalog
	ClusterList

	id    identity.Identity
	bound map[string]index.Principals // by workspace
	named bool                        // the query names a workspace
	known map[types.NamespacedName]bool
}

// reaches reports whether the user can reach a Cluster. If that is unknown, the Cluster is not shown.
func (a *clusterListing) reaches(ctx context.Context, name types.NamespacedName) bool {
	if a.mayProxy(ctx, types.NamespacedName{}) {
		return true
	}
	if who, some := a.bound[name.Namespace]; some {
		id := a.id
		// a user may have thousands of groups, and groups without a binding in the workspace change nothing
		id.Groups = who.Groups
		open, err := a.Bound(ctx, id, name)
		if open && err == nil {
			return true
		}
		a.Incomplete = a.Incomplete || err != nil
	}
	return a.mayProxy(ctx, types.NamespacedName{Namespace: name.Namespace}) || a.named && a.mayProxy(ctx, name)
}

// mayProxy reviews each right once for a response, and reviews at most maxReviews rights.
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
