// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package direct delivers the issuer's keys and the list of ended sessions to members.
//
// The agents use this data to verify the tokens of users who do not connect through the hub.
package direct

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/delivery"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/set"
	"github.com/drover-dev/drover/internal/signin"
)

// keepLimit is the time limit for restoring a deleted session Secret.
const keepLimit = 10 * time.Second

// Deliverer delivers sets to members. The delivery store implements it.
type Deliverer interface {
	Replace(delivery.Key, map[types.NamespacedName]*set.Set)
}

// Reconciler delivers the data for direct access to each member whose Cluster enables direct access.
type Reconciler struct {
	// Client reads from a cache.
	Client     client.Reader
	Deliveries Deliverer
	// Issuer signs users' tokens. It is nil if users do not sign in to the hub. Direct access is not available in that
	// case.
	Issuer *signin.Server
	Now    func() time.Time

	denials denials
}

// Reconcile delivers the data to one Cluster's member. It does so after each change, and before the data in the member
// expires.
func (r *Reconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	key := delivery.Key{Kind: set.Direct, Namespace: req.Namespace, Name: req.Name}
	cluster := &v1.Cluster{}
	err := r.Client.Get(ctx, req.NamespacedName, cluster)
	if client.IgnoreNotFound(err) != nil {
		return ctrl.Result{}, fmt.Errorf("read cluster %s: %w", req.NamespacedName, err)
	}
	if err != nil || !cluster.DeletionTimestamp.IsZero() || !cluster.Spec.AuthorizedEndpoint.On() || r.Issuer == nil {
		r.Deliveries.Replace(key, nil)
		return ctrl.Result{}, nil
	}
	access, again, err := r.access(ctx, cluster)
	// without keys, no token is valid; the creation of the Secret with the keys triggers a reconcile
	if errors.Is(err, errNoURL) || apierrors.IsNotFound(err) {
		r.Deliveries.Replace(key, nil)
		return ctrl.Result{}, nil
	} else if err != nil {
		return ctrl.Result{}, err
	}
	given, err := content(access)
	if err != nil {
		return ctrl.Result{}, err
	}
	r.Deliveries.Replace(key, map[types.NamespacedName]*set.Set{req.NamespacedName: given})
	return ctrl.Result{RequeueAfter: max(again.Sub(r.Now()), time.Second)}, nil
}

// errNoURL is returned for a Cluster if the server in spec.authorizedEndpoint is not a valid URL. The schema rejects
// such values, but the Cluster may be older than the schema.
var errNoURL = errors.New("spec.authorizedEndpoint.server is not a URL")

// access returns the data that a member should currently have, and the time when the member needs newer data.
func (r *Reconciler) access(ctx context.Context, cluster *v1.Cluster) (protocol.DirectAccess, time.Time, error) {
	endpoint := cluster.Spec.AuthorizedEndpoint
	server, err := url.Parse(endpoint.Server)
	if err != nil {
		return protocol.DirectAccess{}, time.Time{}, errNoURL
	}
	keys, err := r.Issuer.PublishedKeys(ctx)
	if err != nil {
		return protocol.DirectAccess{}, time.Time{}, err
	}
	denied, changes, err := r.denied(ctx)
	if err != nil {
		return protocol.DirectAccess{}, time.Time{}, err
	}
	until, again := validity(r.Now(), endpoint.OfflineTime())
	if !changes.IsZero() && changes.Before(again) {
		again = changes
	}
	access := protocol.DirectAccess{
		Issuer: r.Issuer.Issuer(), Audience: r.Issuer.Audience(client.ObjectKeyFromObject(cluster)), Keys: keys, Lifetime: int64(endpoint.OfflineTime() / time.Second),
		Denied: denied, ValidUntil: until, Host: server.Hostname(), TLSSecret: endpoint.TLSSecretName,
	}
	if endpoint.ByAPIServer() {
		access.Mode = string(endpoint.Mode)
	}
	if len(denied) > protocol.MaxDenied {
		access.Denied, access.DenyAll = nil, true
	}
	return access, again, nil
}

// validity returns the time until which a member may use its current data, and the time when the member receives newer
// data. The data is valid for at least a quarter longer than users should be able to work without the hub. Both times
// are rounded to whole quarters of that period, so that a new leader does not deliver the same data again.
func validity(now time.Time, offline time.Duration) (until, again time.Time) {
	quarter := offline / 4
	begun := now.UTC().Truncate(quarter)
	return begun.Add(offline + quarter), begun.Add(quarter)
}

// content returns the set that contains a member's data.
func content(access protocol.DirectAccess) (*set.Set, error) {
	raw, err := json.Marshal(access)
	if err != nil {
		return nil, fmt.Errorf("encode what direct access is verified by: %w", err)
	}
	object, err := set.Object(&corev1.Secret{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Secret"},
		ObjectMeta: metav1.ObjectMeta{Namespace: protocol.AgentNamespace, Name: protocol.DirectSecret},
		Type:       corev1.SecretTypeOpaque,
		Data:       map[string][]byte{protocol.DirectKey: raw},
	})
	if err != nil {
		return nil, err
	}
	set.AddLabels(object, set.Labels(set.Direct))
	return set.New(set.Direct, nil, set.Content{Objects: []*unstructured.Unstructured{object}})
}

// denials is the list of ended sessions. All Clusters have the same list. The zero value is an empty list.
type denials struct {
	changes atomic.Int64 // number of changes that may affect the list
	waking  atomic.Bool  // whether all Clusters will be queued soon

	mu    sync.Mutex // guards the fields below and ensures that only one caller builds the list
	made  int64      // value of changes when the list was built, plus 1; 0 if it has not been built
	list  []string
	again time.Time // time when the next session leaves the list; zero if none does
}

// denied returns the list of ended sessions. Only the first call after a change builds the list, so that the sessions
// are not read again for each Cluster.
func (r *Reconciler) denied(ctx context.Context) ([]string, time.Time, error) {
	d := &r.denials
	d.mu.Lock()
	defer d.mu.Unlock()
	now := d.changes.Load() + 1 // after a later change, the next call builds the list again
	if d.made == now && (d.again.IsZero() || r.Now().Before(d.again)) {
		return d.list, d.again, nil
	}
	list, again, err := r.Issuer.Denied(ctx)
	if err != nil {
		return nil, again, err
	}
	d.made, d.list, d.again = now, list, again
	return list, again, nil
}

// wake marks the list as outdated and, after a short delay, enqueues all Clusters with direct access. The delay
// combines many changes into one update.
func (r *Reconciler) wake(ctx context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request], later time.Duration) {
	r.denials.changes.Add(1)
	if !r.denials.waking.CompareAndSwap(false, true) {
		return
	}
	ctx = context.WithoutCancel(ctx)
	time.AfterFunc(later, func() {
		r.denials.waking.Store(false)
		var clusters v1.ClusterList
		if err := r.Client.List(ctx, &clusters, client.UnsafeDisableDeepCopy); err != nil {
			ctrl.LoggerFrom(ctx).Error(err, "members are not told of sessions that were ended")
			return
		}
		for i := range clusters.Items {
			if clusters.Items[i].Spec.AuthorizedEndpoint.On() {
				queue.Add(reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&clusters.Items[i])})
			}
		}
	})
}

// Handler enqueues all Clusters with direct access when an event may change their members' data.
func (r *Reconciler) Handler(later time.Duration) handler.EventHandler {
	type queue = workqueue.TypedRateLimitingInterface[reconcile.Request]
	on := func(ctx context.Context, q queue, before, after client.Object) {
		if r.Issuer.Changes(ctx, before, after) {
			r.wake(ctx, q, later)
		}
	}
	return handler.Funcs{
		CreateFunc: func(ctx context.Context, e event.CreateEvent, q queue) { on(ctx, q, nil, e.Object) },
		UpdateFunc: func(ctx context.Context, e event.UpdateEvent, q queue) { on(ctx, q, e.ObjectOld, e.ObjectNew) },
		DeleteFunc: func(ctx context.Context, e event.DeleteEvent, q queue) {
			keep, cancel := context.WithTimeout(ctx, keepLimit)
			defer cancel()
			if err := r.Issuer.KeepDeleted(keep, e.Object); err != nil {
				ctrl.LoggerFrom(ctx).Error(err, "revoke the tokens of that session by deleting the Secret with the keys")
			}
			on(ctx, q, e.Object, nil)
		},
	}
}
