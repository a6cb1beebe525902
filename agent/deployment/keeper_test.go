// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package deployment_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr/testr"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/drover-dev/drover/agent/deployment"
	"github.com/drover-dev/drover/agent/kube"
	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/registration"
	"github.com/drover-dev/drover/test/lab"
	"github.com/drover-dev/drover/test/testkit"
)

const progressDeadline = 20 * time.Second

// fixture is a real API server without any controllers, with the manifest applied, and a Keeper with the rights from
// the manifest.
type fixture struct {
	*testkit.Env
	kubeconfig string
	kubectl    string
	manifests  registration.Manifests
	nodes      atomic.Int32
	keeper     *deployment.Keeper
	stop       func()
}

func input(image string, agent v1.Agent) registration.ManifestInput {
	return registration.ManifestInput{
		Image: image, Trust: v1.TrustSystem, Agent: agent, Token: strings.Repeat("t", 40),
		Settings: protocol.Settings{Servers: []string{"https://hub.example.com"}},
	}
}

func newMember(t *testing.T) *fixture {
	t.Helper()
	m := &fixture{Env: testkit.StartMember(t)}
	programs, err := lab.Binaries(t.Context(), io.Discard, lab.Kubectl)
	if err != nil {
		t.Fatal(err)
	}
	m.kubectl, m.kubeconfig = programs[lab.Kubectl], filepath.Join(t.TempDir(), "kubeconfig")
	config := clientcmdapi.NewConfig()
	config.Clusters["x"] = &clientcmdapi.Cluster{Server: m.Config.Host, CertificateAuthorityData: m.Config.CAData}
	config.AuthInfos["x"] = &clientcmdapi.AuthInfo{ClientCertificateData: m.Config.CertData,
		ClientKeyData: m.Config.KeyData}
	config.Contexts["x"] = &clientcmdapi.Context{Cluster: "x", AuthInfo: "x"}
	config.CurrentContext = "x"
	if err := clientcmd.WriteToFile(*config, m.kubeconfig); err != nil {
		t.Fatal(err)
	}
	m.nodes.Store(1)
	return m
}

// run runs kubectl with the manifest for an input.
func (m *fixture) run(t *testing.T, in registration.ManifestInput, args ...string) (string, error) {
	t.Helper()
	manifest, err := m.manifests.Manifest(in)
	if err != nil {
		t.Fatal(err)
	}
	command := exec.CommandContext(t.Context(), m.kubectl, append([]string{"--kubeconfig", m.kubeconfig}, args...)...)
	command.Stdin = bytes.NewReader(manifest)
	out, err := command.CombinedOutput()
	return string(out), err
}

func (m *fixture) apply(t *testing.T, in registration.ManifestInput) {
	t.Helper()
	if out, err := m.run(t, in, "apply", "-f", "-"); err != nil {
		t.Fatalf("apply the object as its user: %v, %v", err, out)
	}
}

func (m *fixture) client(t *testing.T) *kube.Client {
	t.Helper()
	config := rest.CopyConfig(m.Config)
	config.Impersonate.UserName = "system:serviceaccount:" + protocol.AgentNamespace + ":" + protocol.AgentName
	c, err := kube.New(config)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// lead starts a Keeper that leads until stop is called or the test ends.
func (m *fixture) lead(t *testing.T) {
	t.Helper()
	c := m.client(t)
	m.keeper = deployment.New(deployment.Options{
		Deployment: c.Deployment(protocol.AgentNamespace, protocol.AgentName),
		DaemonSet:  c.DaemonSet(protocol.AgentNamespace, protocol.NodeAgentName),
		NodeLease:  c.Lease(protocol.AgentNamespace, protocol.NodeAgentLease),
		Direct:     c.DaemonSet(protocol.AgentNamespace, protocol.DirectName), Secrets: c.Secrets(protocol.AgentNamespace),
		Nodes: func() (int32, bool) { return m.nodes.Load(), true }, Changed: func() {}, Log: testr.New(t),
	})
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { m.keeper.Lead(ctx) })
	m.stop = func() { cancel(); running.Wait() }
	t.Cleanup(m.stop)
}

// put sends a Deployment and returns the response.
func (m *fixture) put(t *testing.T, body []byte) *httptest.ResponseRecorder {
	t.Helper()
	h := &deployment.Handler{Secrets: m.client(t).Secrets(protocol.AgentNamespace),
		Setup: deployment.Setup{Namespace: protocol.AgentNamespace, Profile: v1.ProfileFull}, Log: testr.New(t)}
	answer := httptest.NewRecorder()
	h.ServeHTTP(answer,
		httptest.NewRequestWithContext(t.Context(), http.MethodPut, protocol.PathDeployment, bytes.NewReader(body)))
	return answer
}

// hand sends the Deployment that the hub builds from an input, and returns its digest.
func (m *fixture) hand(t *testing.T, in registration.ManifestInput) string {
	t.Helper()
	d, err := m.manifests.Deployment(in)
	if err != nil {
		t.Fatal(err)
	}
	if answer := m.put(t, d.JSON); answer.Code != http.StatusAccepted {
		t.Fatalf("PUT of the Deployment: got %d %s, want 202", answer.Code, answer.Body)
	}
	return d.Digest
}

func (m *fixture) live(t *testing.T) *appsv1.Deployment {
	t.Helper()
	d := &appsv1.Deployment{}
	if err := m.Client.Get(t.Context(), client.ObjectKey{Namespace: protocol.AgentNamespace, Name: protocol.AgentName},
		d); err != nil {
		t.Fatal(err)
	}
	return d
}

// await waits until the Keeper's report is as expected.
func (m *fixture) await(t *testing.T, what string, wanted func(protocol.Deployment) bool) protocol.Deployment {
	t.Helper()
	var last *protocol.Deployment
	testkit.Eventually(t, progressDeadline, func(context.Context) error {
		if last = m.keeper.Report(); last == nil || !wanted(*last) {
			return fmt.Errorf("%s: the report is %+v", what, last)
		}
		return nil
	})
	return *last
}

// play writes the status in the same way as the Deployment controller: either the rollout succeeded, or the deadline
// was exceeded.
func (m *fixture) play(t *testing.T, well bool) {
	t.Helper()
	d := m.live(t)
	n := *d.Spec.Replicas
	d.Status = appsv1.DeploymentStatus{ObservedGeneration: d.Generation, Replicas: n, UpdatedReplicas: n, ReadyReplicas: n,
		AvailableReplicas: n}
	if !well {
		d.Status.Replicas, d.Status.UnavailableReplicas = n+1, 1
		d.Status.Conditions = []appsv1.DeploymentCondition{{
			Type: appsv1.DeploymentProgressing, Status: corev1.ConditionFalse, Reason: "ProgressDeadlineExceeded",
			LastTransitionTime: metav1.Now(),
		}}
	}
	if err := m.Client.Status().Update(t.Context(), d); err != nil {
		t.Fatal(err)
	}
}

func TestKeeper(t *testing.T) {
	t.Parallel()
	m := newMember(t)
	plain := input("drover:v1", v1.Agent{})
	whole := t // a Keeper keeps running after its subtest
	t.Run("a missing Deployment is reported", func(t *testing.T) {
		m.lead(t)
		m.await(t, "unmanaged", func(d protocol.Deployment) bool { return d.Unmanaged && d.Message != "" })
	})
	proxied := input("drover:v1", v1.Agent{Env: []v1.AgentEnv{{Name: "HTTPS_PROXY", Value: "http://proxy:3128"}}})
	m.apply(t, proxied)
	m.lead(t)

	t.Run("replicas follow the number of nodes", func(t *testing.T) {
		for nodes, want := range map[int32]int32{3: 2, 1: 1, 2: 2} {
			m.nodes.Store(nodes)
			m.keeper.Wake()
			testkit.Eventually(t, progressDeadline, func(context.Context) error {
				if got := *m.live(t).Spec.Replicas; got != want {
					return fmt.Errorf("got %d replicas for %d nodes, want another number", got, nodes)
				}
				return nil
			})
		}
	})
	t.Run("a Deployment from the hub replaces the manifest's, and removed fields of the spec are removed",
		func(t *testing.T) {
			digest := m.hand(t, plain)
			m.await(t, "applied", func(d protocol.Deployment) bool { return d.Digest == digest && !d.RolledOut })
			m.play(t, true)
			m.await(t, "rolled out", func(d protocol.Deployment) bool { return d.Digest == digest && d.RolledOut })
			for _, e := range m.live(t).Spec.Template.Spec.Containers[0].Env {
				if e.Name == "HTTPS_PROXY" {
					t.Error("HTTPS_PROXY, which kubectl had set, still exists, want it removed")
				}
			}
		})
	t.Run("kubectl diff of the new manifest finds nothing", func(t *testing.T) {
		if out, err := m.run(t, plain, "diff", "-f", "-"); err != nil {
			t.Errorf("%v\n%s", err, out)
		}
	})
	t.Run("server-side apply changes nothing, as Flux and Argo CD do it", func(t *testing.T) {
		before := m.live(t)
		want, err := m.manifests.Deployment(plain)
		if err != nil {
			t.Fatal(err)
		}
		after := before.DeepCopy()
		err = m.Client.Patch(t.Context(), after, client.RawPatch(types.ApplyPatchType, want.JSON),
			client.FieldOwner("kustomize-controller"), client.DryRunAll)
		if err != nil || !reflect.DeepEqual(before.Spec, after.Spec) ||
			!reflect.DeepEqual(before.Annotations, after.Annotations) {
			t.Errorf("apply again: got the error %v and a change from %v to %v, want neither", err, before.Spec, after.Spec)
		}
	})
	t.Run("a Deployment that never becomes ready is rolled back, by another leader too", func(t *testing.T) {
		before := m.live(t)
		digest := m.hand(t, input("drover:broken", v1.Agent{PriorityClassName: "high"}))
		m.await(t, "applied", func(d protocol.Deployment) bool { return d.Digest == digest })
		m.stop()
		m.play(t, false)
		m.lead(whole)
		d := m.await(t, "put back", func(d protocol.Deployment) bool { return d.Failed == digest })
		if d.Message != "no pod of it was created" || d.Rejected {
			t.Errorf("got %+v", d)
		}
		if after := m.live(t); !reflect.DeepEqual(before.Spec, after.Spec) ||
			!reflect.DeepEqual(before.Annotations, after.Annotations) {
			t.Errorf("got another Deployment than before:\nwant %v\ngot %v", before.Spec, after.Spec)
		}
		m.hand(t, input("drover:broken", v1.Agent{PriorityClassName: "high"}))
		if d := m.keeper.Report(); d.Failed != digest {
			t.Errorf("the same Deployment again: got %+v, want no second attempt", d)
		}
	})
	t.Run("a restored Deployment that does not become ready either is left alone", func(t *testing.T) {
		broken := m.hand(t, input("drover:v1", v1.Agent{PriorityClassName: "not-admitted"}))
		m.await(t, "applied", func(d protocol.Deployment) bool { return d.Digest == broken })
		back := m.hand(t, plain)
		m.await(t, "taken back", func(d protocol.Deployment) bool { return d.Digest == back })
		m.play(t, false)
		testkit.Eventually(t, progressDeadline, func(ctx context.Context) error {
			secret, err := m.client(t).Secrets(protocol.AgentNamespace).Get(ctx, protocol.DeploymentSecret)
			if err == nil && string(secret.Data["phase"]) != "done" {
				err = fmt.Errorf("the change is %s", secret.Data["phase"])
			}
			return err
		})
		d := m.await(t, "its deadline is over",
			func(d protocol.Deployment) bool { return d.NotReady == "no pod of it was created" })
		if d.Digest != back || d.RolledOut || d.Failed != "" {
			t.Errorf("got %+v", d)
		}
		m.play(t, true)
		m.await(t, "rolled out", func(d protocol.Deployment) bool { return d.RolledOut && d.NotReady == "" })
	})
	t.Run("a Deployment that the API server rejects changes nothing, and the reason is reported", func(t *testing.T) {
		before := m.live(t)
		digest := m.hand(t,
			input("drover:v1", v1.Agent{Tolerations: []corev1.Toleration{{Key: "not a key!", Operator: "Sometimes"}}}))
		d := m.await(t, "refused", func(d protocol.Deployment) bool { return d.Failed == digest })
		if !d.Rejected || !strings.Contains(d.Message, "tolerations") {
			t.Errorf("got %+v", d)
		}
		if after := m.live(t); after.ResourceVersion != before.ResourceVersion {
			t.Error("the Deployment changed, want it unchanged")
		}
	})
	t.Run("node agents are created, changed and deleted with a rolled-out Deployment",
		func(t *testing.T) { testNodeAgents(t, m, func() { m.lead(whole) }) })
	t.Run("the token reviewer of API servers is created and deleted with the mode",
		func(t *testing.T) { testDirect(t, m) })
	t.Run("replicas that the spec sets stay", func(t *testing.T) {
		three := int32(3)
		digest := m.hand(t, input("drover:v1", v1.Agent{Replicas: &three}))
		m.await(t, "applied", func(d protocol.Deployment) bool { return d.Digest == digest })
		m.play(t, true)
		m.await(t, "rolled out", func(d protocol.Deployment) bool { return d.RolledOut && d.Failed == "" })
		if got := *m.live(t).Spec.Replicas; got != 3 {
			t.Errorf("got %d replicas, want those of the spec", got)
		}
	})
	t.Run("a manifest that is applied by hand in between wins", func(t *testing.T) {
		digest := m.hand(t, input("drover:v2", v1.Agent{}))
		m.await(t, "applied", func(d protocol.Deployment) bool { return d.Digest == digest })
		m.apply(t, input("drover:v3", v1.Agent{}))
		m.await(t, "seen", func(d protocol.Deployment) bool { return d.Digest != digest && d.Failed == "" })
		if got := m.live(t).Spec.Template.Spec.Containers[0].Image; got != "drover:v3" {
			t.Errorf("got the image %s, want the one of the manifest", got)
		}
	})
	t.Run("anything but a Deployment of the agent gets a 422 and is not stored", func(t *testing.T) {
		for _, body := range []string{"{}", "no JSON", `{"kind":"Pod"}`} {
			if answer := m.put(t, []byte(body)); answer.Code != http.StatusUnprocessableEntity {
				t.Errorf("PUT of %q: got %d, want 422", body, answer.Code)
			}
		}
		if answer := m.put(t, bytes.Repeat([]byte(" "), 200<<10)); answer.Code != http.StatusRequestEntityTooLarge {
			t.Errorf("PUT of 200 KiB: got %d, want 413", answer.Code)
		}
	})
	t.Run("the agent may not change another Deployment", func(t *testing.T) {
		err := m.client(t).Deployment(protocol.AgentNamespace, "other").Patch(t.Context(), []byte(`[]`))
		if err == nil || !strings.Contains(err.Error(), "forbidden") {
			t.Errorf("got the error %v, want that it is forbidden", errors.Unwrap(err))
		}
	})
}
