// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package clusterimport_test

import (
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/controllers/provision/clusterimport"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/registration"
	"github.com/drover-dev/drover/internal/release"
	"github.com/drover-dev/drover/test/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// world is a workspace with a Cluster API Cluster, whose API server is the hub's own.
type world struct {
	*testkit.Env
	t      *testing.T
	r      *clusterimport.Reconciler
	name   types.NamespacedName
	events chan string
	source *unstructured.Unstructured
}

func newWorld(t *testing.T) *world {
	t.Helper()
	env := testkit.Shared(t)
	env.ClusterAPI(t)
	w := &world{Env: env, t: t, name: types.NamespacedName{Namespace: env.Workspace(t), Name: "prod"}}
	recorder := events.NewFakeRecorder(100)
	w.events = recorder.Events
	w.r = &clusterimport.Reconciler{Client: env.Client, Live: env.Client, Recorder: recorder, Reach: release.Anywhere}
	w.source = env.ClusterAPIObject(t, "Cluster", w.name.Namespace, "prod", map[string]string{v1.LabelImport: "true"}, map[string]any{"spec": map[string]any{}})
	return w
}

// reconcile reconciles once, and returns the events.
func (w *world) reconcile() string {
	w.t.Helper()
	if _, err := w.r.Reconcile(w.t.Context(), ctrl.Request{NamespacedName: w.name}); err != nil {
		w.t.Fatal(err)
	}
	var all []string
	for len(w.events) > 0 {
		all = append(all, <-w.events)
	}
	return strings.Join(all, "\n")
}

// kubeconfig creates the Secret as Cluster API does.
func (w *world) kubeconfig(change func(*api.Cluster, *api.AuthInfo)) *corev1.Secret {
	w.t.Helper()
	c := w.Config
	cluster, user := &api.Cluster{Server: c.Host, CertificateAuthorityData: c.CAData}, &api.AuthInfo{ClientCertificateData: c.CertData, ClientKeyData: c.KeyData, Token: c.BearerToken}
	if !strings.HasPrefix(cluster.Server, "https://") {
		cluster.Server = "https://" + cluster.Server
	}
	change(cluster, user)
	raw, err := clientcmd.Write(api.Config{
		Clusters: map[string]*api.Cluster{"c": cluster}, AuthInfos: map[string]*api.AuthInfo{"u": user}, Contexts: map[string]*api.Context{"x": {Cluster: "c", AuthInfo: "u"}}, CurrentContext: "x",
	})
	if err != nil {
		w.t.Fatal(err)
	}
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.name.Namespace, Name: "prod-kubeconfig", Labels: map[string]string{"cluster.x-k8s.io/cluster-name": "prod"}},
		Type:       "cluster.x-k8s.io/secret", Data: map[string][]byte{"value": raw},
	}
	if err := w.Client.Create(w.t.Context(), secret); err != nil {
		w.t.Fatal(err)
	}
	return secret
}

// registered creates the Secret with the manifest of the agent, which consists only of a ServiceAccount in this test.
// Its owner is the Cluster, or a Cluster that does not exist.
func (w *world) registered() {
	w.t.Helper()
	cluster := &v1.Cluster{}
	if err := w.Client.Get(w.t.Context(), w.name, cluster); apierrors.IsNotFound(err) {
		cluster.UID = "none"
	} else if err != nil {
		w.t.Fatal(err)
	}
	w.registeredFor(cluster.UID)
}

func (w *world) registeredFor(owner types.UID) {
	w.t.Helper()
	name := registration.RegistrationSecret(w.name)
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: name.Namespace, Name: name.Name, Labels: map[string]string{v1.LabelSecretKind: v1.SecretKindRegistration, v1.LabelCluster: "prod"},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: v1.GroupVersion.String(), Kind: "Cluster", Name: "prod", UID: owner}}},
		StringData: map[string]string{registration.KeyManifest: "---\napiVersion: v1\nkind: ServiceAccount\nmetadata: {name: agent, namespace: " + w.name.Namespace + "}\n---\n"},
	}
	if err := w.Client.Create(w.t.Context(), secret); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) installed() bool {
	w.t.Helper()
	err := w.Client.Get(w.t.Context(), types.NamespacedName{Namespace: w.name.Namespace, Name: "agent"}, &corev1.ServiceAccount{})
	if client.IgnoreNotFound(err) != nil {
		w.t.Fatal(err)
	}
	return err == nil
}

func TestLabelledClusterOfClusterAPIIsImported(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.reconcile()
	cluster := &v1.Cluster{}
	if err := w.Client.Get(t.Context(), w.name, cluster); err != nil {
		t.Fatal(err)
	}
	if owners := cluster.OwnerReferences; len(owners) != 1 || owners[0].UID != w.source.GetUID() || owners[0].Kind != "Cluster" || owners[0].APIVersion != "cluster.x-k8s.io/v1beta2" {
		t.Errorf("the owners are %+v", owners)
	}
	w.reconcile() // neither manifest nor kubeconfig
	w.registered()
	w.reconcile()
	if w.installed() {
		t.Fatal("the agent is installed without a kubeconfig")
	}
	secret := w.kubeconfig(func(*api.Cluster, *api.AuthInfo) {})
	if said := w.reconcile(); !w.installed() || !strings.Contains(said, "AgentInstalled") {
		t.Errorf("the agent is installed: %t, %s", w.installed(), said)
	}
	joined := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: w.name.Namespace, Name: registration.AgentSecret(w.name).Name}}
	if err := w.Client.Create(t.Context(), joined); err != nil {
		t.Fatal(err)
	}
	if err := w.Client.Delete(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: w.name.Namespace, Name: "agent"}}); err != nil {
		t.Fatal(err)
	}
	if said := w.reconcile(); w.installed() || !strings.Contains(said, "Secret prod-agent is not Drover's") || !strings.Contains(said, "delete it") {
		t.Errorf("the agent is installed: %t, %q, want that to wait, and what to do about a user's Secret", w.installed(), said)
	}
	joined.Labels = map[string]string{v1.LabelSecretKind: v1.SecretKindAgent, v1.LabelCluster: "prod"}
	if err := w.Client.Update(t.Context(), joined); err != nil {
		t.Fatal(err)
	}
	if w.reconcile(); w.installed() {
		t.Error("the kubeconfig is used after the agent has joined")
	}
	if err := w.Client.Delete(t.Context(), secret); err != nil {
		t.Fatal(err)
	}
	w.reconcile()
}

func TestManifestOfAFormerClusterIsNotInstalled(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.reconcile()
	w.registeredFor("former")
	w.kubeconfig(func(*api.Cluster, *api.AuthInfo) {})
	if said := w.reconcile(); w.installed() || said != "" {
		t.Errorf("installed: %t, %q, want that to wait for the Cluster's own manifest", w.installed(), said)
	}
}

func TestUnmarkedClustersAreLeftAlone(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		prepare func(*world)
		said    string
	}{
		"a Cluster that was there before": {func(w *world) {
			w.Apply(w.t, &v1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: w.name.Namespace, Name: "prod"}})
			w.kubeconfig(func(*api.Cluster, *api.AuthInfo) {})
		}, "ImportRefused"},
		"a kubeconfig that runs a program": {func(w *world) {
			w.kubeconfig(func(_ *api.Cluster, u *api.AuthInfo) {
				u.Exec = &api.ExecConfig{Command: "/bin/sh", APIVersion: "client.authentication.k8s.io/v1", InteractiveMode: api.NeverExecInteractiveMode}
			})
		}, "it has exec, which Drover does not accept"},
		"a kubeconfig that leads to this machine": {func(w *world) {
			w.r.Reach = release.Private
			w.kubeconfig(func(*api.Cluster, *api.AuthInfo) {})
		}, "AgentNotInstalled"},
		"a kubeconfig without rights": {func(w *world) {
			w.kubeconfig(func(_ *api.Cluster, u *api.AuthInfo) { *u = api.AuthInfo{Token: "hush-hush"} })
		}, "the API server answered 401"},
		"a server that leads to another": {func(w *world) {
			server := httptest.NewTLSServer(http.RedirectHandler("http://inside.example.com/", http.StatusFound))
			w.t.Cleanup(server.Close)
			w.kubeconfig(func(c *api.Cluster, u *api.AuthInfo) {
				c.Server, c.TLSServerName = server.URL, "example.com"
				c.CertificateAuthorityData = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
				*u = api.AuthInfo{Token: "hush-hush"}
			})
		}, "the server answered with a redirect, which Drover does not follow"},
		"a Secret of another kind": {func(w *world) {
			secret := w.kubeconfig(func(*api.Cluster, *api.AuthInfo) {})
			if err := w.Client.Delete(w.t.Context(), secret); err != nil {
				w.t.Fatal(err)
			}
			secret.Type, secret.ResourceVersion, secret.UID = corev1.SecretTypeOpaque, "", ""
			if err := w.Client.Create(w.t.Context(), secret); err != nil {
				w.t.Fatal(err)
			}
		}, ""},
		"a cluster that is being deleted": {func(w *world) {
			w.kubeconfig(func(*api.Cluster, *api.AuthInfo) {})
			w.source.SetFinalizers([]string{"a.b/c"})
			if err := w.Client.Update(w.t.Context(), w.source); err != nil {
				w.t.Fatal(err)
			}
			if err := w.Client.Delete(w.t.Context(), w.source); err != nil {
				w.t.Fatal(err)
			}
		}, ""},
		"a cluster without the label": {func(w *world) {
			w.kubeconfig(func(*api.Cluster, *api.AuthInfo) {})
			w.source.SetLabels(nil)
			if err := w.Client.Update(w.t.Context(), w.source); err != nil {
				w.t.Fatal(err)
			}
		}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			tt.prepare(w)
			said := w.reconcile()
			w.registered()
			said += w.reconcile()
			if w.installed() || !strings.Contains(said, tt.said) || strings.Contains(said, "hush") || tt.said == "" && said != "" {
				t.Errorf("installed: %t, %q, want %q", w.installed(), said, tt.said)
			}
			cluster := &v1.Cluster{}
			if err := w.Client.Get(t.Context(), w.name, cluster); err != nil && !apierrors.IsNotFound(err) {
				t.Fatal(err)
			}
		})
	}
}

func TestSlowServersOfAWorkspaceDelayNoOther(t *testing.T) {
	t.Parallel()
	slow, other := newWorld(t), newWorld(t)
	other.r = slow.r
	other.events = slow.events
	asked, answer := make(chan struct{}, 10), make(chan struct{})
	server := httptest.NewTLSServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		asked <- struct{}{}
		<-answer
	}))
	t.Cleanup(server.Close)
	slow.kubeconfig(func(c *api.Cluster, u *api.AuthInfo) {
		c.Server, c.TLSServerName = server.URL, "example.com"
		c.CertificateAuthorityData = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
		*u = api.AuthInfo{Token: "hush-hush"}
	})
	other.kubeconfig(func(*api.Cluster, *api.AuthInfo) {})
	for _, w := range []*world{slow, other} {
		w.reconcile()
		w.registered()
	}
	var waiting sync.WaitGroup
	defer waiting.Wait()
	defer close(answer)
	for range 2 {
		waiting.Go(func() { _, _ = slow.r.Reconcile(t.Context(), ctrl.Request{NamespacedName: slow.name}) })
		select {
		case <-asked:
		case <-time.After(testkit.Patience * 30 * time.Second):
			t.Fatal("want that two installations of a workspace run at once")
		}
	}
	result, err := slow.r.Reconcile(t.Context(), ctrl.Request{NamespacedName: slow.name})
	if err != nil || result.RequeueAfter == 0 || result.RequeueAfter > 5*time.Second || len(asked) > 0 {
		t.Errorf("a third installation in the workspace ends with %+v, %v, and %d more requests, want that it is tried again within seconds", result, err, len(asked))
	}
	if said := other.reconcile(); !other.installed() {
		t.Errorf("%q, want the agent installed in the other workspace meanwhile", said)
	}
}

// The API server of an imported cluster belongs to its operator, and may respond with anything. The test does not run
// in parallel, so that it measures only its own allocations.
func TestLargeAnswersOfAServerCostLittle(t *testing.T) {
	const ceiling = 16 << 20
	w := newWorld(t)
	secret := registration.RegistrationSecret(w.name)
	manifest, err := new(registration.Manifests).Manifest(registration.ManifestInput{
		Image: "registry.example.com/drover:v1", Token: strings.Repeat("t", 40), Settings: protocol.Settings{Servers: []string{"https://hub.example.com"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var asked []string
	body := []byte("[" + strings.Repeat("{},", 1<<20) + "1]")
	server := httptest.NewTLSServer(http.HandlerFunc(func(rw http.ResponseWriter, req *http.Request) {
		mu.Lock()
		asked = append(asked, req.Method+" "+req.URL.Path)
		mu.Unlock()
		rw.Header().Set("Content-Type", "application/yaml")
		_, _ = rw.Write(body)
	}))
	t.Cleanup(server.Close)
	w.kubeconfig(func(c *api.Cluster, u *api.AuthInfo) {
		c.Server, c.TLSServerName = server.URL, "example.com"
		c.CertificateAuthorityData = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
		*u = api.AuthInfo{Token: "hush-hush"}
	})
	w.reconcile()
	cluster := &v1.Cluster{}
	if err := w.Client.Get(t.Context(), w.name, cluster); err != nil {
		t.Fatal(err)
	}
	if err := w.Client.Create(t.Context(), &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: secret.Namespace, Name: secret.Name, Labels: map[string]string{v1.LabelSecretKind: v1.SecretKindRegistration, v1.LabelCluster: "prod"},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: v1.GroupVersion.String(), Kind: "Cluster", Name: cluster.Name, UID: cluster.UID}}},
		Data: map[string][]byte{registration.KeyManifest: manifest},
	}); err != nil {
		t.Fatal(err)
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	said := w.reconcile()
	runtime.ReadMemStats(&after)
	if !strings.Contains(said, "AgentInstalled") {
		t.Errorf("%q, want the agent installed", said)
	}
	if n := after.TotalAlloc - before.TotalAlloc; n > ceiling {
		t.Errorf("answers of %d KiB take %d KiB of memory, want %d at most", len(body)>>10, n>>10, ceiling>>10)
	}
	for _, request := range asked {
		if !strings.HasPrefix(request, "PATCH ") {
			t.Errorf("asked %s, want no discovery", request)
		}
	}
	for _, want := range []string{"PATCH /api/v1/namespaces/drover-agent/secrets/", "PATCH /apis/apps/v1/namespaces/drover-agent/deployments/"} {
		if !slices.ContainsFunc(asked, func(request string) bool { return strings.HasPrefix(request, want) }) {
			t.Errorf("asked %q, want %s…", asked, want)
		}
	}
}
