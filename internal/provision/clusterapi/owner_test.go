// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package clusterapi_test

import (
	"context"
	"errors"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/drover-dev/drover/api/infrastructure/v1"
	"github.com/drover-dev/drover/internal/provision/clusterapi"
)

// world contains one Cluster API object, team-a/prod of some kind, whose infrastructure is team-a/mine.
type world struct {
	client.Reader
	kind string
	uid  types.UID
	// infrastructure is spec.infrastructureRef.
	infrastructure map[string]any
	// fails is the error of every read.
	fails error
}

// Get implements client.Reader.
func (w *world) Get(_ context.Context, key client.ObjectKey, into client.Object, _ ...client.GetOption) error {
	if w.fails != nil {
		return w.fails
	}
	kind := into.GetObjectKind().GroupVersionKind()
	if key != (client.ObjectKey{Namespace: "team-a", Name: "prod"}) || kind != clusterapi.GroupVersion.WithKind(w.kind) {
		return apierrors.NewNotFound(schema.GroupResource{Group: kind.Group, Resource: kind.Kind}, key.Name)
	}
	found := into.(*unstructured.Unstructured)
	found.Object["spec"] = map[string]any{"infrastructureRef": w.infrastructure}
	found.SetNamespace(key.Namespace)
	found.SetName(key.Name)
	found.SetUID(w.uid)
	return nil
}

// claim is the provider's object that claims to belong to team-a/prod, and the world in which it makes this claim.
type claim struct {
	object metav1.ObjectMeta
	world  world
}

// forgeries returns ways to claim a foreign Cluster API object, and other reasons why an object belongs to none.
func forgeries() map[string]func(*claim) {
	owner := func(change func(*metav1.OwnerReference)) func(*claim) {
		return func(c *claim) { change(&c.object.OwnerReferences[0]) }
	}
	infrastructure := func(field string, value any) func(*claim) {
		return func(c *claim) { c.world.infrastructure[field] = value }
	}
	return map[string]func(*claim){
		"no owner":                              func(c *claim) { c.object.OwnerReferences = nil },
		"an owner of another name":              owner(func(o *metav1.OwnerReference) { o.Name = "other" }),
		"an owner of another kind":              owner(func(o *metav1.OwnerReference) { o.Kind = "MachineSet" }),
		"an owner of another group":             owner(func(o *metav1.OwnerReference) { o.APIVersion = "evil.dev/v1beta2" }),
		"an owner without a group":              owner(func(o *metav1.OwnerReference) { o.APIVersion = "v1" }),
		"an owner whose version does not parse": owner(func(o *metav1.OwnerReference) { o.APIVersion = "a/b/c" }),
		"a former owner of the name":            owner(func(o *metav1.OwnerReference) { o.UID = "former" }),
		"an owner without a UID":                owner(func(o *metav1.OwnerReference) { o.UID = "" }),
		"an owner in another namespace":         func(c *claim) { c.object.Namespace = "team-b" },
		"a second object for one owner":         func(c *claim) { c.object.Name = "second" },
		"infrastructure of another name":        infrastructure("name", "other"),
		"infrastructure of another kind":        infrastructure("kind", "DockerThing"),
		"infrastructure of another group":       infrastructure("apiGroup", "infrastructure.cluster.x-k8s.io"),
		"infrastructure without a group":        infrastructure("apiGroup", ""),
		"no infrastructure":                     func(c *claim) { c.world.infrastructure = map[string]any{} },
	}
}

// valid returns a claim that is true.
func valid(kind string) *claim {
	return &claim{
		object: metav1.ObjectMeta{Namespace: "team-a", Name: "mine", OwnerReferences: []metav1.OwnerReference{
			// any version of the group
			{APIVersion: "cluster.x-k8s.io/v1beta1", Kind: kind, Name: "prod", UID: "prod-uid"},
		}},
		world: world{kind: kind, uid: "prod-uid", infrastructure: map[string]any{
			"apiGroup": infrav1.Group, "kind": "Drover" + kind, "name": "mine",
		}},
	}
}

func TestOnlyTheObjectThatClusterAPINamesBelongsToItsOwner(t *testing.T) {
	t.Parallel()
	// belongs returns whether the object belongs to the owner that it claims, and why not, if the kind has a reason.
	for kind, belongs := range map[string]func(context.Context, *claim) (bool, string, error){
		"Cluster": func(ctx context.Context, c *claim) (bool, string, error) {
			found, problem, err := clusterapi.ClusterOf(ctx, &c.world, &infrav1.DroverCluster{ObjectMeta: c.object})
			return found != nil, problem, err
		},
		"Machine": func(ctx context.Context, c *claim) (bool, string, error) {
			found, err := clusterapi.MachineOf(ctx, &c.world, &infrav1.DroverMachine{ObjectMeta: c.object})
			return found != nil, "not said for machines", err
		},
	} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			if got, problem, err := belongs(t.Context(), valid(kind)); !got || err != nil {
				t.Fatalf("a true claim is refused: %s (%v)", problem, err)
			}
			for name, forge := range forgeries() {
				c := valid(kind)
				forge(c)
				if got, problem, err := belongs(t.Context(), c); got || problem == "" || err != nil {
					t.Errorf("%s: belongs %t, problem %q (%v), want a refusal with a reason", name, got, problem, err)
				}
			}
			c := valid(kind)
			c.world.fails = errors.New("no connection")
			if got, _, err := belongs(t.Context(), c); got || !errors.Is(err, c.world.fails) {
				t.Errorf("without a connection: belongs %t (%v), want the error", got, err)
			}
		})
	}
}
