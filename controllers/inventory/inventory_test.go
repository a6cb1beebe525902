// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/clusterprofile"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/test/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

var (
	created = metav1.NewTime(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC))
	changed = metav1.NewTime(created.Add(time.Hour))
	hub     = protocol.Settings{Servers: []string{"https://hub.example.com", "https://10.0.0.1"}, CABundle: "a CA"}
)

func connected() *v1.Cluster {
	c := &v1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "web", UID: "uid", CreationTimestamp: created, Labels: map[string]string{
		"env": "prod", v1.LabelDistribution: "k3s", "app.kubernetes.io/instance": "fleet", "argocd.argoproj.io/instance": "fleet",
		"kustomize.toolkit.fluxcd.io/name": "fleet", "x-k8s.io/cluster-manager": "other"}}}
	c.Status = v1.ClusterStatus{Version: "v1.36.3+k3s1", Distribution: "k3s", ClusterUID: "member-uid", Nodes: &v1.NodeCount{Total: 3}, Conditions: []metav1.Condition{
		{Type: v1.ConditionReady, Status: metav1.ConditionTrue, Reason: "Connected", Message: "the agent is connected", LastTransitionTime: changed},
		{Type: v1.ConditionRegistered, Status: metav1.ConditionTrue, Reason: "Joined", LastTransitionTime: created}}}
	return c
}

func TestProfileOfACluster(t *testing.T) {
	t.Run("says what rarely changes, in the words of the upstream API", func(t *testing.T) {
		p := desired(connected(), hub, nil)
		if want := map[string]string{"env": "prod", v1.LabelDistribution: "k3s", LabelManager: "drover", v1.LabelManagedBy: "drover"}; !maps.Equal(p.Labels, want) {
			t.Errorf("labels %v, want %v: those of the Cluster, but for those by which tools know their own", p.Labels, want)
		}
		if p.Spec.ClusterManager.Name != p.Labels[LabelManager] || p.Spec.DisplayName != "web" {
			t.Errorf("spec %+v", p.Spec)
		}
		if want := []clusterprofile.Property{{Name: "cluster.clusterset.k8s.io", Value: "member-uid"}, {Name: "clusterset.k8s.io", Value: "team"},
			{Name: "cluster.drover.dev/distribution", Value: "k3s"}}; fmt.Sprint(p.Status.Properties) != fmt.Sprint(want) {
			t.Errorf("properties %v, want %v", p.Status.Properties, want)
		}
		if p.Status.Version.Kubernetes != "v1.36.3+k3s1" {
			t.Errorf("version %q", p.Status.Version.Kubernetes)
		}
		healthy, joined := meta.FindStatusCondition(p.Status.Conditions, ConditionHealthy), meta.FindStatusCondition(p.Status.Conditions, ConditionJoined)
		if healthy == nil || healthy.Status != metav1.ConditionTrue || healthy.Reason != "Connected" || joined == nil || joined.Status != metav1.ConditionTrue {
			t.Errorf("conditions %+v", p.Status.Conditions)
		}
	})
	t.Run("leads through the hub's proxy, without a credential, and with the audience of this cluster", func(t *testing.T) {
		ways := desired(connected(), hub, nil).Status.AccessProviders
		if len(ways) != 1 {
			t.Fatalf("%d ways, want one", len(ways))
		}
		const server = "https://hub.example.com/k8s/clusters/team/web"
		way := ways[0].Cluster
		if ways[0].Name != "drover" || way.Server != server || string(way.CertificateAuthorityData) != "a CA" || way.InsecureSkipTLSVerify {
			t.Errorf("way %q: %+v", ways[0].Name, way)
		}
		var config struct{ Audience string }
		if len(way.Extensions) != 1 || way.Extensions[0].Name != "client.authentication.k8s.io/exec" || json.Unmarshal(way.Extensions[0].Extension.Raw, &config) != nil || config.Audience != server {
			t.Errorf("extensions %+v, want the audience %s for an exec plugin", way.Extensions, server)
		}
	})
	t.Run("of a Cluster without a status yet is Unknown, with a reason", func(t *testing.T) {
		bare := &v1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "web", CreationTimestamp: created}}
		p := desired(bare, hub, nil)
		for _, c := range p.Status.Conditions {
			if c.Status != metav1.ConditionUnknown || c.Reason == "" || c.LastTransitionTime.IsZero() {
				t.Errorf("%+v, want Unknown with reason and time", c)
			}
		}
		if len(p.Status.Properties) != 1 {
			t.Errorf("properties %v, want only the set", p.Status.Properties)
		}
	})
	t.Run("keeps the time of a condition as long as its status is the same", func(t *testing.T) {
		first := desired(connected(), hub, nil)
		later := connected()
		later.Status.Conditions[0].Reason, later.Status.Conditions[0].LastTransitionTime = "Other", metav1.NewTime(changed.Add(time.Hour))
		if got := desired(later, hub, first.Status.Conditions).Status.Conditions[0]; !got.LastTransitionTime.Equal(&changed) || got.Reason != "Other" {
			t.Errorf("%+v, want the time %s", got, changed)
		}
		later.Status.Conditions[0].Status = metav1.ConditionFalse
		if got := desired(later, hub, first.Status.Conditions).Status.Conditions[0]; got.LastTransitionTime.Equal(&changed) {
			t.Errorf("%+v, want another time, since the status changed", got)
		}
	})
}

// fixture is an API server with the upstream CRD, and a Reconciler that writes to it.
type fixture struct {
	*v1.Cluster
	env        *testkit.Env
	reconciler Reconciler
	events     *events.FakeRecorder
	writes     int
}

func install(t *testing.T, env *testkit.Env) {
	t.Helper()
	if _, err := envtest.InstallCRDs(env.Config, envtest.CRDInstallOptions{Paths: []string{"testdata/clusterprofiles.yaml"}, ErrorIfPathMissing: true}); err != nil {
		t.Fatal(err)
	}
	if err := clusterprofile.AddToScheme(env.Client.Scheme()); err != nil {
		t.Fatal(err)
	}
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	f := &fixture{env: testkit.Shared(t), Cluster: connected(), events: events.NewFakeRecorder(10)}
	install(t, f.env)
	status := f.Status
	f.ObjectMeta = metav1.ObjectMeta{Namespace: f.env.Workspace(t), Name: "web", Labels: map[string]string{"env": "prod"}}
	if err := f.env.Client.Create(t.Context(), f.Cluster); err != nil {
		t.Fatal(err)
	}
	f.Status = status
	f.update(t)
	f.reconciler = Reconciler{Recorder: f.events, Settings: func() protocol.Settings { return hub }, Served: func() bool { return true }, Client: interceptor.NewClient(f.env.Client, interceptor.Funcs{
		Apply: func(ctx context.Context, c client.WithWatch, o runtime.ApplyConfiguration, options ...client.ApplyOption) error {
			f.writes++
			return c.Apply(ctx, o, options...)
		},
		SubResourceApply: func(ctx context.Context, c client.Client, sub string, o runtime.ApplyConfiguration, options ...client.SubResourceApplyOption) error {
			f.writes++
			return c.SubResource(sub).Apply(ctx, o, options...)
		},
	})}
	return f
}

func (f *fixture) update(t *testing.T) {
	t.Helper()
	if err := f.env.Client.Status().Update(t.Context(), f.Cluster); err != nil {
		t.Fatal(err)
	}
}

// reconcile returns the profile after a reconcile, and the number of writes.
func (f *fixture) reconcile(t *testing.T) (*clusterprofile.ClusterProfile, int) {
	t.Helper()
	f.writes = 0
	if _, err := f.reconciler.Reconcile(t.Context(), ctrl.Request{NamespacedName: client.ObjectKeyFromObject(f.Cluster)}); err != nil {
		t.Fatal(err)
	}
	p := &clusterprofile.ClusterProfile{}
	if err := f.env.Client.Get(t.Context(), client.ObjectKeyFromObject(f.Cluster), p); err != nil {
		t.Fatal(err)
	}
	return p, f.writes
}

func TestUpstreamAPIAcceptsTheProfile(t *testing.T) {
	f := newFixture(t)
	p, writes := f.reconcile(t)
	if writes != 2 || p.Status.Version.Kubernetes != "v1.36.3+k3s1" || len(p.Status.AccessProviders) != 1 || p.Labels["env"] != "prod" {
		t.Fatalf("after %d writes: %+v", writes, p)
	}
	if len(p.OwnerReferences) != 1 || p.OwnerReferences[0].UID != f.UID {
		t.Errorf("owners %+v, want the Cluster, with which it goes", p.OwnerReferences)
	}
	t.Run("an idle one is not written again", func(t *testing.T) {
		if again, writes := f.reconcile(t); writes != 0 || again.ResourceVersion != p.ResourceVersion {
			t.Errorf("%d writes, version %s after %s", writes, again.ResourceVersion, p.ResourceVersion)
		}
	})
	t.Run("usage and the number of nodes make no write", func(t *testing.T) {
		f.Status.Nodes = &v1.NodeCount{Total: 4, Ready: 4, Summary: "4/4"}
		f.update(t)
		if _, writes := f.reconcile(t); writes != 0 {
			t.Errorf("%d writes", writes)
		}
	})
	t.Run("a member that is lost is not healthy", func(t *testing.T) {
		f.Status.Conditions[0].Status, f.Status.Conditions[0].Reason = metav1.ConditionFalse, "AgentLost"
		f.update(t)
		p, writes := f.reconcile(t)
		if c := meta.FindStatusCondition(p.Status.Conditions, ConditionHealthy); writes != 1 || c.Status != metav1.ConditionFalse || c.Reason != "AgentLost" {
			t.Errorf("%d writes, %+v", writes, c)
		}
	})
	t.Run("labels follow, those of others stay, and so do foreign finalizers", func(t *testing.T) {
		foreign := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"labels":{"other.example/x":"y"},"finalizers":["argoproj.io/clusterprofile"]}}`))
		if err := f.env.Client.Patch(t.Context(), p.DeepCopy(), foreign); err != nil {
			t.Fatal(err)
		}
		f.Labels = map[string]string{"tier": "1"}
		if err := f.env.Client.Update(t.Context(), f.Cluster); err != nil {
			t.Fatal(err)
		}
		p, _ := f.reconcile(t)
		want := map[string]string{"tier": "1", "other.example/x": "y", LabelManager: "drover", v1.LabelManagedBy: "drover"}
		if !maps.Equal(p.Labels, want) || len(p.Finalizers) != 1 {
			t.Errorf("labels %v, finalizers %v; want %v and the foreign one", p.Labels, p.Finalizers, want)
		}
	})
	t.Run("one that others have added to is not written again, and what is ours still follows", func(t *testing.T) {
		foreign := p.DeepCopy()
		if err := f.env.Client.Get(t.Context(), client.ObjectKeyFromObject(p), foreign); err != nil {
			t.Fatal(err)
		}
		foreign.Annotations = map[string]string{"other.example/a": "b"}
		foreign.OwnerReferences = append(foreign.OwnerReferences, metav1.OwnerReference{APIVersion: "v1", Kind: "ConfigMap", Name: "other", UID: "other"})
		if err := f.env.Client.Update(t.Context(), foreign, client.FieldOwner("other")); err != nil {
			t.Fatal(err)
		}
		foreign.Status.Conditions = append(foreign.Status.Conditions, metav1.Condition{Type: "Scheduled", Status: metav1.ConditionTrue, Reason: "Other", LastTransitionTime: changed})
		foreign.Status.Properties = append(foreign.Status.Properties, clusterprofile.Property{Name: "other.example", Value: "x"})
		foreign.Status.AccessProviders = append(foreign.Status.AccessProviders, clusterprofile.AccessProvider{Name: "other"})
		if err := f.env.Client.Status().Update(t.Context(), foreign, client.FieldOwner("other")); err != nil {
			t.Fatal(err)
		}
		if _, writes := f.reconcile(t); writes != 0 {
			t.Errorf("%d writes without a change", writes)
		}
		f.Status.Distribution = ""
		f.update(t)
		f.Labels = nil
		if err := f.env.Client.Update(t.Context(), f.Cluster); err != nil {
			t.Fatal(err)
		}
		again, writes := f.reconcile(t)
		if _, stays := again.Labels["tier"]; stays || again.Labels["other.example/x"] != "y" || writes != 2 {
			t.Errorf("%d writes, labels %v", writes, again.Labels)
		}
		names := []string{}
		for _, property := range again.Status.Properties {
			names = append(names, property.Name)
		}
		if fmt.Sprint(names) != "[cluster.clusterset.k8s.io clusterset.k8s.io other.example]" || len(again.Status.Conditions) != 3 || len(again.Status.AccessProviders) != 2 || len(again.OwnerReferences) != 2 {
			t.Errorf("properties %v, %d conditions, %d ways, %d owners", names, len(again.Status.Conditions), len(again.Status.AccessProviders), len(again.OwnerReferences))
		}
		if _, writes := f.reconcile(t); writes != 0 {
			t.Errorf("%d writes without a change", writes)
		}
	})
	t.Run("what a person changes comes back", func(t *testing.T) {
		if err := f.env.Client.Patch(t.Context(), p.DeepCopy(), client.RawPatch(types.MergePatchType, []byte(`{"spec":{"displayName":"hacked"}}`))); err != nil {
			t.Fatal(err)
		}
		if p, _ := f.reconcile(t); p.Spec.DisplayName != "web" {
			t.Errorf("display name %q", p.Spec.DisplayName)
		}
	})
}

// TestProfilesAreWrittenWhileTheirKindIsInstalled has its own API server, because other tests need the kind.
func TestProfilesAreWrittenWhileTheirKindIsInstalled(t *testing.T) {
	env := testkit.Start(t)
	t.Run("they are written once the kind is installed", func(t *testing.T) { testKindIsInstalled(t, env) })
	t.Run("they are written again when a removed kind returns", func(t *testing.T) { testKindReturns(t, env) })
}

// Tools can be installed and removed together with their kinds. A hub with many Clusters must not retry endlessly for
// each of them and log each time that a kind is gone.
func testKindReturns(t *testing.T, env *testkit.Env) {
	cluster := &v1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"}}
	if err := env.Client.Create(t.Context(), cluster); err != nil {
		t.Fatal(err)
	}
	r := &Reconciler{Client: env.Client, Recorder: events.NewFakeRecorder(10), Settings: func() protocol.Settings { return hub }, Served: func() bool { return true }}
	reconcile := func() (ctrl.Result, error) {
		return r.Reconcile(t.Context(), ctrl.Request{NamespacedName: client.ObjectKeyFromObject(cluster)})
	}
	if err := envtest.UninstallCRDs(env.Config, envtest.CRDInstallOptions{Paths: []string{"testdata/clusterprofiles.yaml"}}); err != nil {
		t.Fatal(err)
	}
	// the API server has it, or refuses it, until it is removed
	testkit.Eventually(t, 30*time.Second, func(context.Context) error {
		got, err := reconcile()
		if err != nil {
			return err
		}
		if got.RequeueAfter != LookEvery {
			return fmt.Errorf("it is looked again after %s, want %s", got.RequeueAfter, LookEvery)
		}
		return nil
	})
	install(t, env)
	testkit.Eventually(t, 30*time.Second, func(context.Context) error {
		got, err := reconcile()
		if err == nil && got.RequeueAfter != 0 {
			err = errors.New("the kind is back, and the profile is not written")
		}
		return err
	})
	if err := env.Client.Get(t.Context(), client.ObjectKeyFromObject(cluster), &clusterprofile.ClusterProfile{}); err != nil {
		t.Error(err)
	}
}

func TestProfileOfAnotherManagerIsLeftAlone(t *testing.T) {
	f := newFixture(t)
	other := &clusterprofile.ClusterProfile{ObjectMeta: metav1.ObjectMeta{Namespace: f.Namespace, Name: f.Name},
		Spec: clusterprofile.ClusterProfileSpec{DisplayName: "theirs", ClusterManager: clusterprofile.ClusterManager{Name: "ocm"}}}
	if err := f.env.Client.Create(t.Context(), other); err != nil {
		t.Fatal(err)
	}
	if p, writes := f.reconcile(t); writes != 0 || p.Spec.DisplayName != "theirs" {
		t.Errorf("%d writes, %+v", writes, p.Spec)
	}
	select {
	case e := <-f.events.Events:
		if !strings.Contains(e, v1.ReasonProfileTaken) || !strings.Contains(e, `"ocm"`) {
			t.Errorf("event %q", e)
		}
	default:
		t.Error("no event says why the Cluster has no profile")
	}
}

// The kind is installed while the manager runs.
func testKindIsInstalled(t *testing.T, env *testkit.Env) {
	cluster := &v1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "early"}}
	if err := env.Client.Create(t.Context(), cluster); err != nil {
		t.Fatal(err)
	}
	scheme := testkit.Scheme(t)
	if err := clusterprofile.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	skip := true
	mgr, err := ctrl.NewManager(env.Config, ctrl.Options{Scheme: scheme, Metrics: server.Options{BindAddress: "0"}, Controller: controllerOptions(&skip)})
	if err != nil {
		t.Fatal(err)
	}
	kind := &Kind{Mapper: mgr.GetRESTMapper(), Scheme: scheme, Cache: mgr.GetCache(), Every: 100 * time.Millisecond, Clusters: func(context.Context) ([]types.NamespacedName, error) {
		return []types.NamespacedName{client.ObjectKeyFromObject(cluster)}, nil
	}}
	r := &Reconciler{Client: mgr.GetClient(), Recorder: events.NewFakeRecorder(10), Settings: func() protocol.Settings { return hub }, Served: kind.Served}
	if err := ctrl.NewControllerManagedBy(mgr).Named("inventory").For(&v1.Cluster{}).WatchesRawSource(kind).Complete(r); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	ctx, stop := context.WithCancel(t.Context())
	go func() { ended <- mgr.Start(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	if !mgr.GetCache().WaitForCacheSync(t.Context()) || kind.Served() {
		t.Fatal("the kind is served before it was installed")
	}
	install(t, env)
	profile := func(c context.Context) (*clusterprofile.ClusterProfile, error) {
		p := &clusterprofile.ClusterProfile{}
		err := env.Client.Get(c, client.ObjectKeyFromObject(cluster), p)
		if err == nil && len(p.Status.AccessProviders) != 1 {
			err = errors.New("no way to the cluster in its status yet")
		}
		return p, err
	}
	testkit.Eventually(t, 30*time.Second, func(c context.Context) error { _, err := profile(c); return err })
	p, err := profile(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := env.Client.Delete(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	// a deleted profile is created again because of its own event
	testkit.Eventually(t, 30*time.Second, func(c context.Context) error {
		again, err := profile(c)
		if err == nil && again.UID == p.UID {
			err = errors.New("not deleted yet")
		}
		return err
	})
}

func controllerOptions(skip *bool) config.Controller {
	return config.Controller{SkipNameValidation: skip}
}
