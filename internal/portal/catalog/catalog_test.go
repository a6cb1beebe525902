// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package catalog

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"reflect"
	"slices"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/identity"
	"github.com/drover-dev/drover/internal/identity/refusal"
	"github.com/drover-dev/drover/internal/index"
)

// rights contains the rights of a user on a hub, and the reviews that were requested.
type rights struct {
	bound   []string // each is workspace/name
	proxy   []string // each is workspace/name, workspace/ or /
	failing bool     // reviews fail
	unknown bool     // bindings cannot be looked up
	groups  []string

	reviews []string
	asked   [][]string // the groups of each lookup
}

func clusters(names ...string) []client.Object {
	var objects []client.Object
	for _, name := range names {
		namespace, name, _ := strings.Cut(name, "/")
		objects = append(objects, &v1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}})
	}
	return objects
}

func (r *rights) catalog(t testing.TB, objects []client.Object) *Catalog {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := v1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	return New(Catalog{
		Authenticate: func(req *http.Request) (identity.Identity, error) {
			if req.Header.Get("Authorization") == "" {
				return identity.Identity{}, refusal.Unauthorized("no token")
			}
			return identity.Identity{User: "local:alice", Groups: r.groups,
				Hub: authenticationv1.UserInfo{Username: "local:alice"}}, nil
		},
		Ways: Ways{
			Workspaces: func(who index.Principals) (map[string]index.Principals, error) {
				found := map[string]index.Principals{}
				for _, name := range r.bound {
					namespace, _, _ := strings.Cut(name, "/")
					found[namespace] = index.Principals{User: who.User, Groups: who.Groups[:min(1, len(who.Groups))]}
				}
				return found, nil
			},
			Bound: func(_ context.Context, id identity.Identity, cluster types.NamespacedName) (bool, error) {
				r.asked = append(r.asked, id.Groups)
				if r.unknown {
					return true, errors.New("not known yet")
				}
				return slices.Contains(r.bound, cluster.String()), nil
			},
			Proxy: func(_ context.Context, _ identity.Identity, cluster types.NamespacedName) (bool, error) {
				r.reviews = append(r.reviews, cluster.String())
				if r.failing {
					return true, errors.New("the API server is away")
				}
				return slices.Contains(r.proxy, cluster.String()), nil
			},
		},
		Clusters: fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).Build(),
	})
}

// get requests a path, with or without a token.
func get(t testing.TB, c *Catalog, path, token string) (int, string) {
	t.Helper()
	mux := http.NewServeMux()
	c.Register(mux)
	req := httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, nil)
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	w := httptest.NewRecorder()
	mux.ServeHTTP(w, req)
	return w.Code, w.Body.String()
}

func listed(t testing.TB, c *Catalog, path string) (names []string, incomplete bool) {
	t.Helper()
	code, body := get(t, c, path, "token")
	var list ClusterList
	if err := json.Unmarshal([]byte(body), &list); err != nil || code != http.StatusOK {
		t.Fatalf("%d %s (%v)", code, body, err)
	}
	for _, item := range list.Items {
		names = append(names, item.Namespace+"/"+item.Name)
	}
	return names, list.Incomplete
}

func TestListContainsTheClustersThatTheUserCanReach(t *testing.T) {
	all := []string{"a/one", "a/two", "b/one", "c/one"}
	for name, tt := range map[string]struct {
		rights     rights
		query      string
		want       []string
		incomplete bool
		reviews    int
	}{
		"without a right, no Clusters": {rights{}, "", nil, false, 4},
		"a binding shows its Cluster": {
			rights{bound: []string{"a/two"}}, "", []string{"a/two"}, false, 4,
		},
		"a right in a workspace shows its Clusters": {
			rights{proxy: []string{"a/"}}, "", []string{"a/one", "a/two"}, false, 4,
		},
		"a right everywhere shows all Clusters after one review": {
			rights{proxy: []string{"/"}}, "", all, false, 1,
		},
		"a binding and a right show the Clusters of both": {
			rights{bound: []string{"c/one"}, proxy: []string{"b/"}}, "", []string{"b/one", "c/one"}, false, 3,
		},
		"a right to one Cluster by name is not reviewed for all workspaces": {
			rights{proxy: []string{"a/two"}}, "", nil, false, 4,
		},
		"a right to one Cluster by name counts if the query names the workspace": {
			rights{proxy: []string{"a/two"}}, "?namespace=a", []string{"a/two"}, false, 4,
		},
		"a binding in another workspace shows nothing in the named workspace": {
			rights{bound: []string{"c/one"}}, "?namespace=a", nil, false, 4,
		},
		"a workspace that does not exist looks like one without rights": {rights{}, "?namespace=x", nil, false, 0},
		"Clusters with unknown bindings are not listed": {
			rights{bound: []string{"a/two"}, unknown: true}, "", nil, true, 4,
		},
		"failed reviews permit nothing, but bindings count": {
			rights{bound: []string{"a/two"}, failing: true}, "", []string{"a/two"}, true, 4,
		},
	} {
		t.Run(name, func(t *testing.T) {
			got, incomplete := listed(t, tt.rights.catalog(t, clusters(all...)), PathClusters+tt.query)
			if !slices.Equal(got, tt.want) || incomplete != tt.incomplete {
				t.Errorf("got %v (incomplete %v), want %v (incomplete %v)", got, incomplete, tt.want, tt.incomplete)
			}
			if len(tt.rights.reviews) != tt.reviews {
				t.Errorf("got the reviews %v, want %d reviews", tt.rights.reviews, tt.reviews)
			}
		})
	}
}

// TestListCanBeLimitedByLabels checks the label selector of a list.
func TestListCanBeLimitedByLabels(t *testing.T) {
	objects := clusters("a/one", "a/two", "b/one")
	objects[1].SetLabels(map[string]string{"env": "prod"})
	objects[2].SetLabels(map[string]string{"env": "prod"})
	r := &rights{proxy: []string{"a/"}}
	if got, _ := listed(t, r.catalog(t, objects), "/v1/clusters?labelSelector=env%3Dprod"); !slices.Equal(got,
		[]string{"a/two"}) {
		t.Errorf("got %v, want the reachable Clusters with the label", got)
	}
	if code, body := get(t, r.catalog(t, objects), "/v1/clusters?labelSelector=env%3D%3D%3Dx",
		"token"); code != http.StatusBadRequest || !strings.Contains(body, "labelSelector") {
		t.Errorf("%d %s, want 400", code, body)
	}
}

func TestNumberOfReviewsForAList(t *testing.T) {
	for name, tt := range map[string]struct {
		workspaces, clusters, reviews int
		query                         string
		incomplete                    bool
	}{
		"many Clusters in few workspaces":                    {20, 2000, 21, "", false},
		"many workspaces":                                    {300, 600, maxReviews, "", true},
		"many Clusters with rights by name in one workspace": {1, 500, maxReviews, "?namespace=w0", true},
	} {
		t.Run(name, func(t *testing.T) {
			var names []string
			for i := range tt.clusters {
				names = append(names, fmt.Sprintf("w%d/c%d", i%tt.workspaces, i))
			}
			r := rights{bound: []string{"w0/c0"}}
			got, incomplete := listed(t, r.catalog(t, clusters(names...)), PathClusters+tt.query)
			if len(r.reviews) != tt.reviews || incomplete != tt.incomplete || !slices.Equal(got, r.bound) {
				t.Errorf("got %d reviews, incomplete %v, %d listed; want %d, %v, 1", len(r.reviews), incomplete, len(got),
					tt.reviews, tt.incomplete)
			}
		})
	}
}

func TestGroupsWithoutABindingAreNotLookedUp(t *testing.T) {
	r := rights{bound: []string{"a/one"}}
	for i := range 1000 {
		r.groups = append(r.groups, fmt.Sprintf("ldap:g%d", i))
	}
	if _, incomplete := listed(t, r.catalog(t, clusters("a/one", "b/one")), PathClusters); incomplete ||
		!reflect.DeepEqual(r.asked, [][]string{{"ldap:g0"}}) {
		t.Errorf("bindings were looked up %d times, want once, for one group", len(r.asked))
	}
}

// CVE-2024-37152, CVE-2025-62714, CVE-2026-73843: an API is served to anonymous users.
func TestCatalogRefusesAnonymousRequests(t *testing.T) {
	r := rights{proxy: []string{"/"}}
	c := r.catalog(t, clusters("a/one"))
	for _, path := range []string{PathWhoAmI, PathClusters} {
		if code, body := get(t, c, path, ""); code != http.StatusUnauthorized || strings.Contains(body, "one") {
			t.Errorf("%s without a token got %d %s, want 401", path, code, body)
		}
	}
	if len(r.reviews) > 0 {
		t.Errorf("an unknown user caused the reviews %v, want none", r.reviews)
	}
	if code, body := get(t, c, PathWhoAmI, "token"); code != http.StatusOK ||
		!strings.Contains(body, `"username":"local:alice"`) || !strings.Contains(body, "SelfSubjectReview") {
		t.Errorf("the user got %d %s", code, body)
	}
}

// BenchmarkList reports the cost of a list of 10,000 Clusters for a user with bindings to one in a hundred.
func BenchmarkList(b *testing.B) {
	list := &v1.ClusterList{}
	for i := range 10_000 {
		list.Items = append(list.Items,
			v1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: fmt.Sprintf("w%d", i/100), Name: fmt.Sprintf("c%d", i)}})
	}
	bound := map[string]index.Principals{}
	for i := range 100 {
		bound[fmt.Sprintf("w%d", i)] = index.Principals{User: "local:alice"}
	}
	c := New(Catalog{
		Authenticate: func(*http.Request) (identity.Identity, error) {
			return identity.Identity{User: "local:alice", Hub: authenticationv1.UserInfo{Username: "local:alice"}}, nil
		},
		Ways: Ways{
			Workspaces: func(index.Principals) (map[string]index.Principals, error) { return bound, nil },
			Bound: func(_ context.Context, _ identity.Identity, cluster types.NamespacedName) (bool, error) {
				return strings.HasSuffix(cluster.Name, "00"), nil
			},
			Proxy: func(context.Context, identity.Identity, types.NamespacedName) (bool, error) { return false, nil },
		},
		Clusters: listing{list: list},
	})
	for b.Loop() {
		if names, _ := listed(b, c, PathClusters); len(names) != 99 { // c0 is not one of them
			b.Fatalf("%d are listed", len(names))
		}
	}
}

// listing is a cache with one list.
type listing struct {
	client.Reader
	list *v1.ClusterList
}

func (l listing) List(_ context.Context, into client.ObjectList, _ ...client.ListOption) error {
	into.(*v1.ClusterList).Items = l.list.Items
	return nil
}

// In the mode APIServer, the address belongs to the API server, whose certificate was not signed by the agent's CA.
func TestDirectAddressHasTheRightCA(t *testing.T) {
	for name, tt := range map[string]struct {
		endpoint v1.AuthorizedEndpoint
		want     *Direct
	}{
		"none":                    {v1.AuthorizedEndpoint{}, nil},
		"no address, with a mode": {v1.AuthorizedEndpoint{Mode: v1.AuthorizedEndpointAPIServer}, nil},
		"the agent": {
			v1.AuthorizedEndpoint{Server: "https://a", Mode: v1.AuthorizedEndpointAgent},
			&Direct{Server: "https://a", CABundle: "agent"},
		},
		"the agent, as the default mode": {
			v1.AuthorizedEndpoint{Server: "https://a", CABundle: "given"}, &Direct{Server: "https://a", CABundle: "agent"},
		},
		"the agent, with a given certificate": {
			v1.AuthorizedEndpoint{Server: "https://a", CABundle: "given", TLSSecretName: "tls"},
			&Direct{Server: "https://a", CABundle: "given"},
		},
		"the API server": {
			v1.AuthorizedEndpoint{Server: "https://a", CABundle: "given", Mode: v1.AuthorizedEndpointAPIServer},
			&Direct{Server: "https://a", CABundle: "given", Mode: "APIServer"},
		},
		"the API server, with no CA": {
			v1.AuthorizedEndpoint{Server: "https://a", Mode: v1.AuthorizedEndpointAPIServer},
			&Direct{Server: "https://a", Mode: "APIServer"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			got := Describe(&v1.Cluster{Spec: v1.ClusterSpec{AuthorizedEndpoint: tt.endpoint},
				Status: v1.ClusterStatus{DirectAuthority: "agent"}}).Direct
			if !reflect.DeepEqual(got, tt.want) {
				t.Errorf("got %+v, want %+v", got, tt.want)
			}
		})
	}
}
