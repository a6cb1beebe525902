// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package infrastructure_test

import (
	"context"
	"os"
	"reflect"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	infrav1 "github.com/drover-dev/drover/api/infrastructure/v1"
	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/controllers/provision/infrastructure"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/provision/clusterapi"
	"github.com/drover-dev/drover/test/testkit"
)

// tokenFile is a token for the hub's URL. A pod's default token would be valid for the hub's API server.
const tokenFile = "/var/run/secrets/drover/token"

func TestMain(m *testing.M) { testkit.Main(m) }

func TestClusterIsProvisionedOnceClusterAPICanReachIt(t *testing.T) {
	t.Parallel()
	env := testkit.Shared(t)
	env.ClusterAPI(t)
	namespace := env.Workspace(t)
	settings := protocol.Settings{Servers: []string{"https://hub.example.com", "https://second.example.com"}, CABundle: "the CA"}
	r := &infrastructure.Reconciler{Client: env.Client, Live: env.Client,
		Settings: func(context.Context) (protocol.Settings, error) { return settings, nil }}
	name := types.NamespacedName{Namespace: namespace, Name: "c1-infrastructure"}
	object := &infrav1.DroverCluster{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name.Name}, Spec: infrav1.DroverClusterSpec{FailureDomainLabel: "zone"}}
	if err := env.Client.Create(t.Context(), object); err != nil {
		t.Fatal(err)
	}
	want := func(reason string, provisioned bool) {
		t.Helper()
		if _, err := r.Reconcile(t.Context(), ctrl.Request{NamespacedName: name}); err != nil {
			t.Fatal(err)
		}
		if err := env.Client.Get(t.Context(), name, object); err != nil {
			t.Fatal(err)
		}
		ready := meta.FindStatusCondition(object.Status.Conditions, infrav1.ConditionReady)
		if done := object.Status.Initialization.Provisioned; ready == nil || ready.Reason != reason || (done != nil && *done) != provisioned {
			t.Errorf("%+v, provisioned %v, want %s and %t", ready, done, reason, provisioned)
		}
	}
	want(infrav1.ReasonWaitingForOwner, false)
	owner := env.ClusterAPIObject(t, "Cluster", namespace, "c1", nil, map[string]any{"spec": map[string]any{
		"infrastructureRef": testkit.InfrastructureRef("DroverCluster", name.Name),
	}})
	object.OwnerReferences = testkit.OwnedBy(owner)
	if err := env.Client.Update(t.Context(), object); err != nil {
		t.Fatal(err)
	}
	want(infrav1.ReasonClusterMissing, false)
	env.Apply(t, &v1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "c1"}})

	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "c1-kubeconfig"}, Data: map[string][]byte{"value": []byte("a user's")}}
	if err := env.Client.Create(t.Context(), secret); err != nil {
		t.Fatal(err)
	}
	want(infrav1.ReasonSecretConflict, false)
	if err := env.Client.Delete(t.Context(), secret); err != nil {
		t.Fatal(err)
	}
	want(infrav1.ReasonWaitingForCluster, false) // no endpoint
	for zone, name := range map[string]string{"z2": "h1", "z1": "h2", "": "h3"} {
		env.Apply(t, &v1.Host{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{"zone": zone}}})
	}
	object.Spec.ControlPlaneEndpoint = infrav1.APIEndpoint{Host: "10.0.0.9", Port: 6443}
	if err := env.Client.Update(t.Context(), object); err != nil {
		t.Fatal(err)
	}
	want(infrav1.ReasonProvisioned, true)
	if d := object.Status.FailureDomains; len(d) != 2 || d[0].Name != "z1" || d[1].Name != "z2" || !*d[0].ControlPlane {
		t.Errorf("failure domains %+v", d)
	}
	get := func() *corev1.Secret {
		t.Helper()
		if err := env.Client.Get(t.Context(), client.ObjectKeyFromObject(secret), secret); err != nil {
			t.Fatal(err)
		}
		return secret
	}
	got := get()
	config, err := clientcmd.Load(got.Data["value"])
	if err != nil {
		t.Fatal(err)
	}
	member, user := config.Clusters["c1"], *config.AuthInfos["cluster-api"]
	if member.Server != "https://hub.example.com/k8s/clusters/"+namespace+"/c1" || string(member.CertificateAuthorityData) != "the CA" || config.CurrentContext != "c1" {
		t.Errorf("the kubeconfig is %s, want the proxy", got.Data["value"])
	}
	if !reflect.DeepEqual(user, api.AuthInfo{TokenFile: tokenFile, Extensions: user.Extensions}) {
		t.Errorf("the kubeconfig is %s, want no credential in it", got.Data["value"])
	}
	// KubeadmControlPlane adopts Secrets of Cluster API's type, and Cluster API caches Secrets with the label.
	if got.Type != corev1.SecretTypeOpaque || got.Labels[clusterapi.LabelCluster] != "c1" || len(got.OwnerReferences) != 1 || got.OwnerReferences[0].UID != object.UID || got.OwnerReferences[0].Controller != nil {
		t.Errorf("the Secret is %s with %+v", got.Type, got.ObjectMeta)
	}
	version := got.ResourceVersion
	want(infrav1.ReasonProvisioned, true)
	if get().ResourceVersion != version {
		t.Error("a Secret that is as it should be was written")
	}
	settings.CABundle = "another CA"
	r.Settings = always(settings)
	want(infrav1.ReasonProvisioned, true)
	if config, err := clientcmd.Load(get().Data["value"]); err != nil || string(config.Clusters["c1"].CertificateAuthorityData) != "another CA" {
		t.Errorf("got the former CA in the kubeconfig (%v), want the hub's new CA", err)
	}
	object.Annotations = map[string]string{"cluster.x-k8s.io/paused": "true"}
	if err := env.Client.Update(t.Context(), object); err != nil {
		t.Fatal(err)
	}
	want(infrav1.ReasonProvisioned, true) // unchanged
	if paused := meta.FindStatusCondition(object.Status.Conditions, infrav1.ConditionPaused); paused == nil || !strings.Contains(paused.Message, "paused") {
		t.Errorf("%+v, want Paused", object.Status.Conditions)
	}
}

func TestInvalidScheduleIsReportedAndAffectsNothingElse(t *testing.T) {
	t.Parallel()
	env := testkit.Shared(t)
	env.ClusterAPI(t)
	namespace := env.Workspace(t)
	recorder := events.NewFakeRecorder(10)
	r := &infrastructure.Reconciler{
		Client: env.Client, Live: env.Client, Recorder: recorder, Settings: always(protocol.Settings{}),
	}
	name := types.NamespacedName{Namespace: namespace, Name: "c1"}
	object := &infrav1.DroverCluster{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name.Name}}
	if err := env.Client.Create(t.Context(), object); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		schedule string
		reason   string // empty for no condition
		says     string
		told     int
	}{
		{"", "", "", 0},
		{"often", infrav1.ReasonScheduleInvalid, "write five fields", 1},
		{"often", infrav1.ReasonScheduleInvalid, "write five fields", 0},
		{"0 0 31 2 *", infrav1.ReasonScheduleInvalid, "no day that exists", 1},
		{"@daily", infrav1.ReasonScheduled, "to check whether snapshots succeed, see the latest EtcdSnapshot", 0},
		{"", "", "", 0},
	} {
		object.Spec.Etcd.Schedule = c.schedule
		if err := env.Client.Update(t.Context(), object); err != nil {
			t.Fatal(err)
		}
		if _, err := r.Reconcile(t.Context(), ctrl.Request{NamespacedName: name}); err != nil {
			t.Fatal(err)
		}
		if err := env.Client.Get(t.Context(), name, object); err != nil {
			t.Fatal(err)
		}
		got := meta.FindStatusCondition(object.Status.Conditions, infrav1.ConditionEtcdScheduled)
		if c.reason == "" && got != nil || c.reason != "" && (got == nil || got.Reason != c.reason || !strings.Contains(got.Message, c.says) || (got.Status == metav1.ConditionTrue) != (c.reason == infrav1.ReasonScheduled)) {
			t.Errorf("%q: %+v, want %s with %q", c.schedule, got, c.reason, c.says)
		}
		if ready := meta.FindStatusCondition(object.Status.Conditions, infrav1.ConditionReady); ready == nil || ready.Reason != infrav1.ReasonWaitingForOwner || ready.ObservedGeneration != object.Generation {
			t.Errorf("%q: %+v, want Ready as without a schedule", c.schedule, ready)
		}
		if len(recorder.Events) != c.told {
			t.Errorf("%q: %d events, want %d", c.schedule, len(recorder.Events), c.told)
		}
		for len(recorder.Events) > 0 {
			<-recorder.Events
		}
	}
}

// Cluster API's managers mount a token through a patch that the guide tells users to apply.
func TestKubeconfigNamesTheTokenThatThePatchMounts(t *testing.T) {
	text, err := os.ReadFile(testkit.Path(t, "config/clusterapi/samples/token-patch.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	patch := appsv1.Deployment{}
	if err := yaml.UnmarshalStrict(text, &patch); err != nil {
		t.Fatal(err)
	}
	pod := patch.Spec.Template.Spec
	mount, source := pod.Containers[0].VolumeMounts[0], pod.Volumes[0].Projected.Sources[0].ServiceAccountToken
	if got := mount.MountPath + "/" + source.Path; got != tokenFile {
		t.Errorf("the patch mounts %s, want %s, which the kubeconfig names", got, tokenFile)
	}
	if !strings.HasPrefix(source.Audience, "https://") {
		t.Errorf("the token is made for %q, want the hub's URL: without an audience it is good at the hub's API server", source.Audience)
	}
}

func TestReplacedKubeconfigIsAConflict(t *testing.T) {
	t.Parallel()
	env := testkit.Shared(t)
	env.ClusterAPI(t)
	namespace := env.Workspace(t)
	settings := always(protocol.Settings{Servers: []string{"https://hub.example.com"}, CABundle: "the CA"})
	r := &infrastructure.Reconciler{Client: env.Client, Live: env.Client, Settings: settings}
	name := types.NamespacedName{Namespace: namespace, Name: "c1-infrastructure"}
	owner := env.ClusterAPIObject(t, "Cluster", namespace, "c1", nil, map[string]any{"spec": map[string]any{
		"infrastructureRef": testkit.InfrastructureRef("DroverCluster", name.Name),
	}})
	env.Apply(t, &infrav1.DroverCluster{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name.Name, OwnerReferences: testkit.OwnedBy(owner)}})
	env.Apply(t, &v1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "c1"}})
	if _, err := r.Reconcile(t.Context(), ctrl.Request{NamespacedName: name}); err != nil {
		t.Fatal(err)
	}
	r.Settings = always(protocol.Settings{Servers: []string{"https://moved.example.com"}, CABundle: "the CA"})
	var theirs *corev1.Secret
	r.Client = testkit.Competing(env.Client, func(ctx context.Context, _ any) bool {
		theirs = env.Replace(ctx, t, types.NamespacedName{Namespace: namespace, Name: "c1-kubeconfig"})
		return true
	})
	if _, err := r.Reconcile(t.Context(), ctrl.Request{NamespacedName: name}); !apierrors.IsConflict(err) {
		t.Errorf("got %v, want a conflict", err)
	}
	env.WantUnchanged(t, theirs)
}

func TestADroverClusterThatNamesAForeignClusterAsItsOwnerGetsNothing(t *testing.T) {
	t.Parallel()
	env := testkit.Shared(t)
	env.ClusterAPI(t)
	namespace := env.Workspace(t)
	settings := protocol.Settings{Servers: []string{"https://hub.example.com"}, CABundle: "the CA"}
	r := &infrastructure.Reconciler{Client: env.Client, Live: env.Client, Settings: always(settings)}
	owner := env.ClusterAPIObject(t, "Cluster", namespace, "prod", nil, map[string]any{"spec": map[string]any{
		"infrastructureRef": testkit.InfrastructureRef("DroverCluster", "prod"),
	}})
	env.Apply(t, &v1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "prod"}})
	former := testkit.OwnedBy(owner)
	former[0].UID = "11111111-1111-1111-1111-111111111111"
	for name, references := range map[string][]metav1.OwnerReference{
		"mine": testkit.OwnedBy(owner), // the Cluster names another DroverCluster
		"prod": former,                 // the name of the Cluster, and another UID
	} {
		key := types.NamespacedName{Namespace: namespace, Name: name}
		env.Apply(t, &infrav1.DroverCluster{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, OwnerReferences: references}})
		if _, err := r.Reconcile(t.Context(), ctrl.Request{NamespacedName: key}); err != nil {
			t.Fatal(err)
		}
		object := &infrav1.DroverCluster{}
		if err := env.Client.Get(t.Context(), key, object); err != nil {
			t.Fatal(err)
		}
		ready := meta.FindStatusCondition(object.Status.Conditions, infrav1.ConditionReady)
		if ready == nil || ready.Reason != infrav1.ReasonWaitingForOwner {
			t.Errorf("%s: Ready is %+v, want the reason %s", name, ready, infrav1.ReasonWaitingForOwner)
		}
	}
	err := env.Client.Get(t.Context(), types.NamespacedName{Namespace: namespace, Name: "prod-kubeconfig"}, &corev1.Secret{})
	if !apierrors.IsNotFound(err) {
		t.Errorf("reading the kubeconfig of prod: %v, want none to be made for another DroverCluster", err)
	}
}

// always returns a function that returns the settings.
func always(settings protocol.Settings) func(context.Context) (protocol.Settings, error) {
	return func(context.Context) (protocol.Settings, error) { return settings, nil }
}
