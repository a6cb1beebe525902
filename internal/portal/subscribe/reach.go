// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package subscribe

import (
	"cmp"
	"context"
	"encoding/json"
	"maps"
	"slices"

	"github.com/gorilla/websocket"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/index"
	"github.com/drover-dev/drover/internal/portal/catalog"
)

// resourceClusters is the only resource whose objects are partly visible to users who are not allowed to watch it.
const resourceClusters = "clusters"

// reach describes which Clusters a user can reach through the hub. Some fields of these Clusters are visible to the
// user even if the user is not allowed to watch them. The zero value contains no Clusters.
type reach struct {
	scope // through the "get" right on clusters/proxy
	// bound contains the principals with bindings, by workspace. names contains the names and UIDs of the Clusters that
	// these bindings let the user reach.
	bound map[string]index.Principals
	names map[types.NamespacedName]types.UID
}

// compare finds the Clusters that the user could not reach at the previous review, and the Clusters that they can no
// longer reach. Until these Clusters are checked again, the stream treats them as before.
func (k *watched) compare(before map[types.NamespacedName]types.UID) {
	now, names := k.reach.names, maps.Clone(before)
	if names == nil {
		names = map[types.NamespacedName]types.UID{}
	}
	k.reach.names, k.recheck = names, nil
	all := maps.Clone(names)
	maps.Copy(all, now)
	for name := range all {
		uid, reached := now[name]
		switch {
		case before[name] == uid:
		case !k.workspaces[name.Namespace] && !k.reach.workspaces[name.Namespace]:
			k.recheck = append(k.recheck, name)
		case reached: // the Cluster was sent because of a right
			names[name] = uid
		default:
			delete(names, name)
		}
	}
	slices.SortFunc(k.recheck, func(a, b types.NamespacedName) int { return cmp.Compare(a.String(), b.String()) })
}

// asReview reviews the "get" right on clusters/proxy in a workspace. If the workspace is empty, it reviews the right in
// all workspaces.
func (st *stream) asReview(ctx context.Context, _, workspace string) (bool, error) {
	return st.Reach.Proxy(ctx, st.id, types.NamespacedName{Namespace: workspace})
}

// reviewReach determines which Clusters the user can reach. It does nothing if the user may watch all Clusters. It
// looks up each Cluster in the workspaces where the user has a binding. If a review fails, it uses the previous result.
func (st *stream) reviewReach(ctx context.Context, k *watched) reach {
	if k.feed.Resource != resourceClusters || k.all {
		return reach{}
	}
	before := k.reach
	now := reach{scope: k.feed.ask(ctx, st.asReview, st.workspaces(k), before.scope)}
	if now.all {
		return now
	}
	bound, err := st.Reach.Workspaces(index.Principals{User: st.id.User, Groups: st.id.Groups})
	if err != nil { // this replica has not read all bindings yet
		now.bound, now.names, now.incomplete, now.unknown = before.bound, before.names, true, true
		return now
	}
	now.bound, now.names = bound, map[types.NamespacedName]types.UID{}
	if len(bound) == 0 {
		return now
	}
	for name, uid := range k.feed.names(func(workspace string) bool {
		_, some := bound[workspace]
		return some && st.query.asks(workspace)
	}) {
		if st.isBound(ctx, &now, name, before.names[name] == uid) {
			now.names[name] = uid
		}
	}
	return now
}

// isBound reports whether a binding lets the user reach a Cluster. If the lookup fails, it returns the known parameter,
// which is the previous result.
func (st *stream) isBound(ctx context.Context, r *reach, name types.NamespacedName, known bool) bool {
	who, some := r.bound[name.Namespace]
	if !some {
		return false
	}
	id := st.id
	// Omit groups that have no binding in the workspace. A user may have thousands of groups.
	id.Groups = who.Groups
	open, err := st.Reach.Bound(ctx, id, name)
	if err != nil {
		r.unknown, r.incomplete = true, r.incomplete || !known
		return known
	}
	return open
}

// view determines how much of an object is visible to a user.
type view int

// Views of an object. viewGone means that the user can no longer reach a Cluster, so the stream reports it as gone.
const (
	viewNothing view = iota
	viewGone
	viewPart
	viewAll
)

// view returns how much of a changed object is visible to the user. It checks bindings for a Cluster again, because the
// Cluster's labels may have changed.
func (st *stream) view(ctx context.Context, k *watched, o object) view {
	if k.look(ctx, k.feed.kind, st.may, o.Namespace, scope{}) {
		return viewAll
	}
	if k.feed.Resource != resourceClusters {
		return viewNothing
	}
	if k.reach.look(ctx, k.feed.kind, st.asReview, o.Namespace, scope{}) {
		return viewPart
	}
	if !k.feed.current(o) {
		// A message about the current Cluster with this name follows. The user might not have been able to reach the
		// previous Cluster.
		return viewNothing
	}
	shown, was := k.reach.names[o.NamespacedName]
	if o.content != nil && st.isBound(ctx, &k.reach, o.NamespacedName, shown == o.uid) {
		k.reach.names[o.NamespacedName] = o.uid
		return viewPart
	}
	delete(k.reach.names, o.NamespacedName)
	if was {
		return viewGone
	}
	return viewNothing
}

// seen adds the reachable Clusters to the objects that are visible to the user, for the digest in a resume token.
func (r reach) seen(st *stream, k *watched, seen map[string][]string) {
	if k.feed.Resource != resourceClusters || k.all {
		return
	}
	const proxy, bound = "clusters/proxy", "clusters by binding"
	if r.all {
		seen[proxy] = []string{"*"}
		return
	}
	seen[proxy] = r.scope.seen(st.workspaces(k))
	for name, uid := range r.names {
		seen[bound] = append(seen[bound], name.String()+" "+string(uid))
	}
	slices.Sort(seen[bound])
}

// part contains the fields of a Cluster that are sent to users who can reach the Cluster but are not allowed to watch
// it. It has the same structure as a Cluster, and the same fields as the catalog's list.
type part struct {
	metav1.TypeMeta `json:",inline"`
	Metadata        nameAndUID `json:"metadata"`
	Spec            struct {
		Endpoint *catalog.Direct `json:"authorizedEndpoint,omitempty"`
	} `json:"spec"`
	Status struct {
		Version    string          `json:"version,omitempty"`
		Conditions []partCondition `json:"conditions"`
	} `json:"status"`
}

// partCondition is a Ready condition without its message, because the message may describe the hub.
type partCondition struct {
	Type   string                 `json:"type"`
	Status metav1.ConditionStatus `json:"status"`
	Reason string                 `json:"reason,omitempty"`
}

// part returns the message with the visible part of a Cluster. If keep is set, it caches the message for other streams.
func (f *feed) part(o object, keep bool) (*websocket.PreparedMessage, error) {
	return f.parts.made(o, keep, func() ([]byte, error) { return f.partOf(o) })
}

func (f *feed) partOf(o object) ([]byte, error) {
	cluster, ok := o.content.(*v1.Cluster)
	if !ok {
		return json.Marshal(f.gone(o))
	}
	item := catalog.Describe(cluster)
	p := part{Metadata: nameAndUID{item.Namespace, item.Name, string(o.uid)}}
	p.APIVersion, p.Kind = v1.GroupVersion.String(), f.Name
	p.Spec.Endpoint, p.Status.Version = item.Direct, item.Version
	p.Status.Conditions = []partCondition{{v1.ConditionReady, item.Ready, item.Reason}}
	return json.Marshal(message{Type: typeChanged, Kind: f.Resource, Object: p, Partial: true})
}
