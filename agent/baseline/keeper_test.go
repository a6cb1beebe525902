// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package baseline

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr/testr"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/drover-dev/drover/agent/kube"
	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/baseline"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/set"
	"github.com/drover-dev/drover/test/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

const patience = 20 * time.Second

// member is an API server with a namespace and a Baseline's user.
type member struct {
	*testkit.Env
	namespace, name, id string
	keeper              *Keeper
	line                line
	now                 func() time.Time
	secrets             *kube.Secrets
	stop                func() // ends the keeper; nil before the first one
}

// newMember returns a member in which the Baseline's user has all rights for the given resources.
func newMember(t *testing.T, groups []string, resources ...string) *member {
	t.Helper()
	m := &member{Env: testkit.Shared(t), now: time.Now}
	m.namespace = m.Workspace(t)
	m.name = m.namespace
	m.id = set.ID(set.Baseline, m.name)
	m.grant(t, groups, resources...)
	m.lead(t)
	return m
}

// grant gives all rights for resources to the Baseline's user.
func (m *member) grant(t *testing.T, groups []string, resources ...string) {
	t.Helper()
	rules := []rbacv1.PolicyRule{{APIGroups: groups, Resources: resources,
		Verbs: []string{"get", "list", "watch", "create", "patch", "delete"}}}
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: m.name}, Rules: rules}
	binding := &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: m.name},
		RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: m.name},
		Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: baseline.User(m.name)}}}
	for _, o := range []client.Object{role, binding} {
		if err := m.Client.Create(t.Context(), o); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = m.Client.Delete(context.WithoutCancel(t.Context()), o) })
	}
	m.AwaitRights(t, baseline.User(m.name), m.namespace, rules...)
}

// lead ends the keeper and starts one with empty memory, like an agent that has just been elected.
func (m *member) lead(t *testing.T) {
	t.Helper()
	if m.stop != nil {
		m.stop()
	}
	config := rest.CopyConfig(m.Config)
	config.QPS = -1
	config.Wrap(m.line.wrap)
	c, err := kube.New(config)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	m.secrets = c.Secrets(m.namespace)
	m.keeper = New(ctx, Options{Client: c, Secrets: m.secrets, Changed: func(string) {}, Log: testr.New(t),
		Now:   func() time.Time { return m.now() },
		Write: func(ctx context.Context, _, _ string, f func(context.Context) error) error { return f(ctx) }})
	keeper := m.keeper
	m.stop = func() { stop(); keeper.Wait() }
	t.Cleanup(m.stop)
}

// content returns the content of the Baseline with the given YAML documents, in which NS is the namespace.
func (m *member) content(t *testing.T, documents ...string) *set.BaselineContent {
	t.Helper()
	text := strings.ReplaceAll(strings.Join(documents, "\n---\n"), "NS", m.namespace)
	objects, err := baseline.Parse([]baseline.Source{{Name: "test", Text: []byte(text)}})
	if err != nil {
		t.Fatal(err)
	}
	return &set.BaselineContent{Name: m.name, Revision: "r1", Objects: objects, HealthSeconds: 60}
}

// await calls Keep until the result satisfies check.
func (m *member) await(t *testing.T, c *set.BaselineContent, check func(Result) error) Result {
	t.Helper()
	var r Result
	testkit.Eventually(t, patience, func(ctx context.Context) error {
		r = m.keeper.Keep(ctx, m.id, c, nil)
		return check(r)
	})
	return r
}

func healthy(r Result) error {
	if len(r.Problems) > 0 || r.State.Healthy != r.State.Objects {
		return fmt.Errorf("got %+v, want all objects applied and healthy", r)
	}
	return nil
}

// hasPhase returns a check that the only problem has a phase, and a message that contains a text.
func hasPhase(phase protocol.SetPhase, text string) func(Result) error {
	return func(r Result) error {
		if len(r.Problems) != 1 || r.Problems[0].Phase != phase || !strings.Contains(r.Problems[0].Message, text) {
			return fmt.Errorf("got %+v, want one problem with the phase %s and %q", r, phase, text)
		}
		return nil
	}
}

func (m *member) remove(t *testing.T) {
	t.Helper()
	testkit.Eventually(t, patience, func(ctx context.Context) error {
		if r := m.keeper.Remove(ctx, m.id); len(r.Problems) > 0 {
			return fmt.Errorf("got %+v, want nothing left", r)
		}
		return nil
	})
}

func (m *member) configMap(t *testing.T, name string) *corev1.ConfigMap {
	t.Helper()
	o := &corev1.ConfigMap{}
	err := m.Client.Get(t.Context(), client.ObjectKey{Namespace: m.namespace, Name: name}, o)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		t.Fatal(err)
	}
	return o
}

func (m *member) inventory(t *testing.T) []entry {
	t.Helper()
	stored, err := m.secrets.Get(t.Context(), secretName(m.id))
	if apierrors.IsNotFound(err) {
		return nil
	}
	var r record
	if err == nil {
		var raw []byte
		if raw, err = kube.Unpack(stored.Data[keyInventory], maxUnpacked); err == nil {
			err = json.Unmarshal(raw, &r)
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	return r.Entries
}

const (
	first  = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: first, namespace: NS}\ndata: {a: b}"
	second = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: second, namespace: NS}\ndata: {a: b}"
)

func TestABaselineIsAppliedAsItsOwnUser(t *testing.T) {
	t.Parallel()
	m := newMember(t, []string{""}, "configmaps")
	r := m.await(t, m.content(t, first, second), healthy)
	if r.State.Revision != "r1" || r.State.Objects != 2 || r.State.Healthy != 2 {
		t.Errorf("got the state %+v, want two healthy objects of r1", r.State)
	}
	o := m.configMap(t, "first")
	if o == nil || len(o.ManagedFields) != 1 || o.ManagedFields[0].Manager != baseline.User(m.name) ||
		o.Labels[v1.LabelBaseline] != m.name {
		t.Fatalf("got %+v, want an object with the label, of the manager %s only", o, baseline.User(m.name))
	}
	if got := m.inventory(t); len(got) != 2 || got[0].UID != o.UID || got[0].Digest == "" || got[0].Mark == 0 {
		t.Errorf("got the inventory %+v, want both objects with UID, digest and mark", got)
	}
}

func TestNothingIsAppliedWithTheAgentsRights(t *testing.T) {
	t.Parallel()
	m := newMember(t, []string{""}, "services")
	m.now = func() time.Time { return time.Now().Add(time.Hour) }
	c := m.content(t, first)
	m.await(t, c, hasPhase(protocol.SetPending, "does not know the rights"))
	started := m.now()
	m.now = func() time.Time { return started.Add(2 * grantTime) }
	r := m.await(t, c, hasPhase(protocol.SetForbidden, `cannot list resource "configmaps"`))
	if m.configMap(t, "first") != nil || r.State.Healthy != 0 {
		t.Errorf("got %+v and the object, want no object: the agent has the right, and the Baseline's user does not", r)
	}
}

func TestAnUnchangedBaselineWritesNothing(t *testing.T) {
	t.Parallel()
	m := newMember(t, []string{""}, "configmaps")
	m.await(t, m.content(t, first, second), healthy)
	for name, restart := range map[string]bool{"in the same agent": false, "after a restart": true} {
		if restart {
			m.lead(t)
		}
		before := m.line.writes.Load()
		m.await(t, m.content(t, first, second), healthy)
		if n := m.line.writes.Load() - before; n != 0 {
			t.Errorf("%s: got %d writes of an unchanged Baseline, want none", name, n)
		}
	}
}

func TestAnObjectThatLeavesABaselineIsPruned(t *testing.T) {
	t.Parallel()
	m := newMember(t, []string{""}, "configmaps")
	m.await(t, m.content(t, first, second), healthy)
	m.lead(t)
	m.await(t, m.content(t, first), healthy)
	if m.configMap(t, "second") != nil || m.configMap(t, "first") == nil {
		t.Error("got the second object or not the first one, want only the first one")
	}
	if got := m.inventory(t); len(got) != 1 || got[0].Name != "first" {
		t.Errorf("got the inventory %+v, want only the first object", got)
	}
}

func TestAnObjectOfAnotherIsNeitherChangedNorPruned(t *testing.T) {
	t.Parallel()
	m := newMember(t, []string{""}, "configmaps")
	other := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: m.namespace, Name: "first"},
		Data: map[string]string{"c": "d"}}
	if err := m.Client.Create(t.Context(), other, client.FieldOwner("helm")); err != nil {
		t.Fatal(err)
	}
	m.await(t, m.content(t, first, second), hasPhase(protocol.SetConflict, `(made by "helm")`))
	m.await(t, m.content(t, second), healthy)
	m.remove(t)
	if o := m.configMap(t, "first"); o == nil || o.ResourceVersion != other.ResourceVersion {
		t.Errorf("got %+v, want the object of the other unchanged", o)
	}
	if m.configMap(t, "second") != nil || m.inventory(t) != nil {
		t.Error("got the second object or an inventory, want neither after the removal")
	}
}

func TestAnObjectIsHandedOverWithTheLabel(t *testing.T) {
	t.Parallel()
	m := newMember(t, []string{""}, "configmaps")
	other := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: m.namespace, Name: "first",
		Labels: map[string]string{v1.LabelBaseline: m.name}}, Data: map[string]string{"a": "b", "c": "d"}}
	if err := m.Client.Create(t.Context(), other); err != nil {
		t.Fatal(err)
	}
	m.await(t, m.content(t, first), healthy)
	if o := m.configMap(t, "first"); o == nil || o.UID != other.UID || o.Data["c"] != "d" {
		t.Errorf("got %+v, want the same object with its other field", o)
	}
	m.remove(t)
	if m.configMap(t, "first") != nil {
		t.Error("got the object, want it deleted with its Baseline")
	}
}

func TestOrphanLeavesTheObjects(t *testing.T) {
	t.Parallel()
	m := newMember(t, []string{""}, "configmaps")
	c := m.content(t, first)
	c.DeletionPolicy = v1.DeletionOrphan
	m.await(t, c, healthy)
	m.lead(t)
	m.remove(t)
	if m.configMap(t, "first") == nil || m.inventory(t) != nil {
		t.Error("got no object, or an inventory, want the object only")
	}
	c = m.content(t, strings.Replace(first, "first", "second", 1)) // another Baseline with the same name
	m.await(t, c, healthy)
	m.remove(t)
	if m.configMap(t, "first") == nil || m.configMap(t, "second") != nil {
		t.Error("the orphan was deleted, or the object of the second Baseline was not: want only the latter deleted")
	}
}

func TestAKilledAgentPrunesWhatItCreated(t *testing.T) {
	t.Parallel()
	m := newMember(t, []string{""}, "configmaps")
	ctx, kill := context.WithCancel(t.Context())
	m.keeper.options.Write = func(ctx context.Context, _, _ string, f func(context.Context) error) error {
		err := f(ctx)
		kill() // the object exists, and its UID is not in the inventory
		return errors.Join(err, ctx.Err())
	}
	m.keeper.Keep(ctx, m.id, m.content(t, first), nil)
	if got := m.inventory(t); m.configMap(t, "first") == nil || len(got) != 1 || got[0].UID != "" {
		t.Fatalf("got the inventory %+v, want an object whose UID is not recorded", got)
	}
	m.lead(t)
	m.await(t, m.content(t, second), healthy)
	if m.configMap(t, "first") != nil {
		t.Error("got the object of the killed agent, want it pruned")
	}
}

func TestDroversNamespacesAreRefusedAfterSubstitution(t *testing.T) {
	t.Parallel()
	m := newMember(t, []string{""}, "configmaps")
	c := m.content(t, strings.Replace(first, "namespace: NS", "namespace: $(CLUSTER_NAME)", 1))
	m.await(t, c, hasPhase(protocol.SetPending, "waits for the values"))
	r := m.keeper.Keep(t.Context(), m.id, c, baseline.Values("drover-agent", nil))
	if err := hasPhase(protocol.SetFailed, "belong to Drover")(r); err != nil {
		t.Error(err)
	}
	r = m.keeper.Keep(t.Context(), m.id, c, baseline.Values(m.namespace, nil))
	if err := healthy(r); err != nil || m.configMap(t, "first") == nil {
		t.Errorf("%v, want the object in the namespace that is named like the Cluster", err)
	}
}

// definition is a CustomResourceDefinition, and an object of its kind.
func (m *member) definition() (definition, object string) {
	group := m.name + ".example.com"
	return fmt.Sprintf(`apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: gadgets.%[1]s}
spec:
  group: %[1]s
  scope: Namespaced
  names: {kind: Gadget, plural: gadgets, singular: gadget}
  versions:
  - name: v1
    served: true
    storage: true
    schema: {openAPIV3Schema: {type: object, properties: {size: {type: integer}}}}`, group),
		"apiVersion: " + group + "/v1\nkind: Gadget\nmetadata: {name: first, namespace: NS}\nsize: 3"
}

func TestACustomResourceWaitsForItsDefinition(t *testing.T) {
	t.Parallel()
	m := newMember(t, []string{"*"}, "configmaps", "customresourcedefinitions", "gadgets")
	definition, object := m.definition()
	m.await(t, m.content(t, object, first, definition), healthy)
	o := &unstructured.Unstructured{}
	o.SetAPIVersion(m.name + ".example.com/v1")
	o.SetKind("Gadget")
	if err := m.Client.Get(t.Context(), client.ObjectKey{Namespace: m.namespace, Name: "first"}, o); err != nil {
		t.Fatalf("got %v, want the custom resource", err)
	}
	m.remove(t)
	if m.configMap(t, "first") != nil || m.inventory(t) != nil {
		t.Error("got an object or the inventory, want neither after the removal")
	}
}

func TestDriftWithoutAnAgentIsRepaired(t *testing.T) {
	t.Parallel()
	m := newMember(t, []string{""}, "configmaps")
	m.await(t, m.content(t, first), healthy)
	m.lead(t)
	m.change(t, "helm")
	m.await(t, m.content(t, first), healthy)
	if got := m.configMap(t, "first").Data["a"]; got != "b" {
		t.Errorf("got the value %q, want it repaired", got)
	}
}

// change changes a field of the first object as another field manager.
func (m *member) change(t *testing.T, manager string) {
	t.Helper()
	o := m.configMap(t, "first")
	o.Data["a"] = "changed"
	if err := m.Client.Update(t.Context(), o, client.FieldOwner(manager)); err != nil {
		t.Fatal(err)
	}
}

func TestAFightIsReportedWithItsManager(t *testing.T) {
	t.Parallel()
	m := newMember(t, []string{""}, "configmaps")
	started := time.Now()
	m.now = func() time.Time { return started }
	c := m.content(t, first)
	m.await(t, c, healthy)
	var last Result
	for range 3 {
		m.change(t, "helm")
		last = m.await(t, c, func(Result) error {
			if got := m.configMap(t, "first").Data["a"]; got != "b" {
				return fmt.Errorf("got the value %q, want it repaired", got)
			}
			return nil
		})
	}
	if err := hasPhase(protocol.SetFighting, `"helm"`)(last); err != nil || last.Again <= 0 {
		t.Errorf("after three repairs: %v, and another pass in %s, want the fight to be looked at again", err, last.Again)
	}
}

func TestReportOnlyReports(t *testing.T) {
	t.Parallel()
	m := newMember(t, []string{""}, "configmaps")
	c := m.content(t, first)
	c.Drift = v1.DriftReport
	m.await(t, c, healthy)
	m.change(t, "helm")
	m.await(t, c, hasPhase(protocol.SetDrifted, `"helm"`))
	if err := m.Client.Delete(t.Context(), m.configMap(t, "first")); err != nil {
		t.Fatal(err)
	}
	m.await(t, c, hasPhase(protocol.SetDrifted, "deletes it"))
	if m.configMap(t, "first") != nil {
		t.Error("got the object, want its deletion only reported")
	}
}

func TestAConflictIsReportedWithItsManager(t *testing.T) {
	t.Parallel()
	m := newMember(t, []string{""}, "configmaps")
	m.await(t, m.content(t, strings.Replace(first, "data: {a: b}", "data: {c: d}", 1)), healthy)
	m.change(t, "helm")
	c := m.content(t, first)
	m.await(t, c, hasPhase(protocol.SetConflict, `"helm"`))
	if got := m.configMap(t, "first").Data["a"]; got != "changed" {
		t.Errorf("got the value %q, want it unchanged", got)
	}
	take := *c
	take.Conflicts = v1.ConflictsTake
	m.await(t, &take, healthy)
	if got := m.configMap(t, "first").Data["a"]; got != "b" {
		t.Errorf("got the value %q, want it taken over", got)
	}
}

func TestALateDeploymentIsUnhealthy(t *testing.T) {
	t.Parallel()
	m := newMember(t, []string{"apps"}, "deployments")
	started := time.Now()
	m.now = func() time.Time { return started }
	c := m.content(t, `apiVersion: apps/v1
kind: Deployment
metadata: {name: first, namespace: NS}
spec:
  selector: {matchLabels: {a: b}}
  template:
    metadata: {labels: {a: b}}
    spec: {containers: [{name: a, image: a}]}`)
	r := m.await(t, c, func(r Result) error {
		if len(r.Problems) != 1 || r.Problems[0].Phase != protocol.SetProgressing || r.Again <= 0 {
			return fmt.Errorf("got %+v, want the Deployment progressing, and another pass when it is late", r)
		}
		return nil
	})
	m.now = func() time.Time { return started.Add(r.Again) }
	m.await(t, c, hasPhase(protocol.SetUnhealthy, "not healthy within 1m0s"))
}

func TestAFailureDelaysLaterStagesAndPruning(t *testing.T) {
	t.Parallel()
	m := newMember(t, []string{"", "admissionregistration.k8s.io"}, "configmaps", "validatingwebhookconfigurations")
	m.await(t, m.content(t, first), healthy)
	invalid := strings.Replace(second, "data: {a: b}", "data: {' ': b}", 1)
	webhook := "apiVersion: admissionregistration.k8s.io/v1\nkind: ValidatingWebhookConfiguration\n" +
		"metadata: {name: NS}\nwebhooks: []"
	r := m.await(t, m.content(t, invalid, webhook), hasPhase(protocol.SetFailed, "invalid"))
	if m.configMap(t, "first") == nil {
		t.Errorf("got %+v and the first object pruned, want it to stay until all others are applied", r)
	}
	names := func(all []entry) (names []string) {
		for _, e := range all {
			if e.UID != "" {
				names = append(names, e.Name)
			}
		}
		return names
	}
	if got := names(m.inventory(t)); !slices.Equal(got, []string{"first"}) {
		t.Errorf("got the objects %q, want no webhook before the objects that serve it", got)
	}
}
