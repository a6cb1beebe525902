// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package authority_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	controllerconfig "sigs.k8s.io/controller-runtime/pkg/config"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/controllers"
	"github.com/drover-dev/drover/internal/config"
	"github.com/drover-dev/drover/internal/index"
	"github.com/drover-dev/drover/internal/members"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/trust"
	"github.com/drover-dev/drover/test/testkit"
)

// fixture is a manager with the controllers for a rotation of the authority, started in the same way as in main.
type fixture struct {
	*testkit.Env
	t        *testing.T
	trust    *trust.Holder
	settings func() protocol.Settings // of agents
	registry *members.Registry
	secret   types.NamespacedName
}

func startHub(t *testing.T) *fixture {
	t.Helper()
	h := &fixture{Env: testkit.Start(t), t: t} // not shared: its controllers reconcile all Clusters
	h.secret = types.NamespacedName{Namespace: h.Workspace(t), Name: trust.AuthoritySecret}
	cfg, err := config.Parse(fmt.Appendf(nil, "{apiVersion: config.drover.dev/v1, kind: ManagerConfig, namespace: %s, "+
		"server: {urls: [\"https://hub.example.com\"]}, leaderElection: {enabled: false}}", h.secret.Namespace))
	if err != nil {
		t.Fatal(err)
	}
	options, err := cfg.ManagerOptions()
	if err != nil {
		t.Fatal(err)
	}
	again := true // the test may run more than once in one process
	options.Controller = controllerconfig.Controller{SkipNameValidation: &again}
	options.Logger = logr.Discard()
	mgr, err := ctrl.NewManager(h.Config, options)
	if err != nil {
		t.Fatal(err)
	}
	if h.trust, err = trust.New(cfg.Server.URLs, nil, time.Now); err != nil {
		t.Fatal(err)
	}
	h.settings = cfg.AgentSettings(h.trust.Bundle)
	h.registry = members.New(logr.Discard(), time.Now)
	if err := index.Index(t.Context(), mgr.GetFieldIndexer()); err != nil {
		t.Fatal(err)
	}
	if err := controllers.Setup(mgr, controllers.Options{Config: cfg, Members: h.registry, Trust: h.trust, Started: time.Now().Add(-time.Hour)}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- mgr.Start(ctx) }()
	t.Cleanup(func() {
		h.registry.Close()
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	if err := h.trust.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	return h
}

// trustingAgent is an agent with its pinned certificates.
type trustingAgent struct {
	name  types.NamespacedName
	peer  members.Peer
	trust v1.Trust

	mu     sync.Mutex // guards the fields below
	agent  *testkit.Agent
	bundle string // the last announced bundle; before that, the manifest's bundle
}

// pinned returns the bundle that the agent has stored.
func (m *trustingAgent) pinned() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	for m.agent != nil {
		select {
		case settings := <-m.agent.Settings:
			m.bundle = settings.CABundle
			continue
		default:
		}
		break
	}
	return m.bundle
}

// starts makes the member run another agent, which has the former agent's stored bundle.
func (m *trustingAgent) starts(agent *testkit.Agent) {
	m.pinned()
	m.mu.Lock()
	defer m.mu.Unlock()
	m.agent = agent
}

// join creates a Cluster whose agent has joined and is connected.
func (h *fixture) join(name string, mode v1.Trust) *trustingAgent {
	h.t.Helper()
	object := &v1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: h.secret.Namespace, Name: name}, Spec: v1.ClusterSpec{
		Agent: v1.Agent{Trust: mode}, DeletionPolicy: v1.DeletionPolicyOrphan,
	}}
	h.Apply(h.t, object)
	m := &trustingAgent{name: types.NamespacedName{Namespace: object.Namespace, Name: name}, peer: join(h.t, h.Env, object), trust: mode,
		bundle: string(h.trust.Bundle())}
	h.connect(m)
	return m
}

func (h *fixture) connect(m *trustingAgent) {
	h.t.Helper()
	agent := testkit.ConnectAgent(h.t, testkit.HealthyReport())
	m.starts(agent)
	h.registry.Add(m.peer, agent.Session)
	h.eventually(m.name.Name+" has the hub's settings", func() bool { return h.confirmed(m) })
}

// lose kills the member's agent.
func (h *fixture) lose(m *trustingAgent) {
	h.t.Helper()
	m.mu.Lock()
	m.agent.Kill()
	m.mu.Unlock()
	h.eventually(m.name.Name+" is lost", func() bool { return !h.registry.State(m.name).Connected() })
}

func (h *fixture) confirmed(m *trustingAgent) bool {
	report := h.registry.State(m.name).Report
	return report != nil && report.SettingsDigest == h.settings().Digest()
}

func (h *fixture) eventually(what string, is func() bool) {
	h.t.Helper()
	testkit.Eventually(h.t, 20*time.Second, func(context.Context) error {
		if !is() {
			return fmt.Errorf("not yet: %s", what)
		}
		return nil
	})
}

func (h *fixture) state() trust.State {
	h.t.Helper()
	secret := &corev1.Secret{}
	if err := h.Client.Get(h.t.Context(), h.secret, secret); err != nil {
		h.t.Fatal(err)
	}
	state, err := trust.ReadSecret(secret)
	if err != nil {
		h.t.Fatal(err)
	}
	return state
}

// rotate requests another authority, as docs/operations/certificates.md describes, and returns it when it signs and all
// connected members know it.
func (h *fixture) rotate(value string, connected ...*trustingAgent) trust.KeyPair {
	h.t.Helper()
	before := h.state().Active
	testkit.Eventually(h.t, 10*time.Second, func(ctx context.Context) error {
		secret := &corev1.Secret{}
		if err := h.Client.Get(ctx, h.secret, secret); err != nil {
			return err
		}
		metav1.SetMetaDataAnnotation(&secret.ObjectMeta, v1.AnnotationRotate, value)
		return h.Client.Update(ctx, secret)
	})
	var next trust.KeyPair
	h.eventually("another authority signs", func() bool {
		next = h.state().Active
		return string(next.Cert) != string(before.Cert) && h.signs(next)
	})
	for _, m := range connected {
		h.eventually(m.name.Name+" knows it", func() bool {
			return h.confirmed(m) && slices.Contains(certificates(h.t, []byte(m.pinned())), checksum(h.t, next.Cert))
		})
	}
	return next
}

func certificates(t *testing.T, bundle []byte) []string {
	t.Helper()
	sums, err := protocol.CertificateChecksums(bundle)
	if err != nil {
		t.Fatal(err)
	}
	return sums
}

func checksum(t *testing.T, cert []byte) string {
	t.Helper()
	return certificates(t, cert)[0]
}

func (h *fixture) signs(authority trust.KeyPair) bool {
	h.t.Helper()
	return signedBy(h.t, h.trust, authority)
}

// handshake connects to the hub like an agent that trusts only the given bundle.
func (h *fixture) handshake(ctx context.Context, bundle string) error {
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM([]byte(bundle))
	hubEnd, agentEnd := net.Pipe()
	served := make(chan struct{})
	go func() {
		defer close(served)
		defer hubEnd.Close()
		_ = tls.Server(hubEnd, &tls.Config{MinVersion: tls.VersionTLS13, GetCertificate: h.trust.GetCertificate}).HandshakeContext(ctx)
	}()
	err := tls.Client(agentEnd, &tls.Config{MinVersion: tls.VersionTLS13, RootCAs: roots, ServerName: "hub.example.com"}).HandshakeContext(ctx)
	_ = agentEnd.Close()
	<-served
	return err
}

// reconnecting makes an agent reconnect repeatedly until it is stopped, and fails the test if the hub refuses the
// agent's latest bundle.
func (h *fixture) reconnecting(m *trustingAgent) (stop func()) {
	h.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		attempts := 0
		for ; ctx.Err() == nil; attempts++ {
			bundle := m.pinned()
			// It would next try the bundle that it learned in the meantime, so it is stranded only if its latest bundle is
			// refused.
			if err := h.handshake(ctx, bundle); err != nil && ctx.Err() == nil && bundle == m.pinned() {
				h.t.Errorf("%s can't connect any more: %v", m.name.Name, err)
				return
			}
		}
		if attempts < 10 {
			h.t.Errorf("%s tried %d times only", m.name.Name, attempts)
		}
	}()
	stop = func() {
		cancel()
		<-done
	}
	h.t.Cleanup(stop)
	return stop
}

func TestChangeOfTheAuthorityStrandsNoAgent(t *testing.T) {
	h := startHub(t)
	published := func(ctx context.Context) *corev1.ConfigMap {
		found := &corev1.ConfigMap{}
		if err := h.Client.Get(ctx, types.NamespacedName{Namespace: h.secret.Namespace, Name: trust.AuthorityConfigMap}, found); err != nil {
			return nil
		}
		return found
	}
	h.eventually("the certificates are published", func() bool { return published(t.Context()) != nil })
	first := published(t.Context())
	if err := h.Client.Delete(t.Context(), first); err != nil {
		t.Fatal(err)
	}
	h.eventually("a deleted ConfigMap is put back", func() bool { now := published(t.Context()); return now != nil && now.UID != first.UID })
	if !h.signs(h.state().Active) {
		t.Fatal("the first authority does not sign")
	}
	kubeconfig := h.trust.Bundle()
	h.rotate("there is no member yet")

	a, b, system := h.join("a", v1.TrustPinned), h.join("b", v1.TrustPinned), h.join("system", v1.TrustSystem)
	h.reconnecting(a)
	stop := h.reconnecting(b)
	second := h.rotate("all connected", a, b)
	h.eventually("a member that trusts its system learns it as well", func() bool { return strings.Contains(system.pinned(), string(second.Cert)) })

	h.lose(b)
	h.rotate("one is away", a)
	last := h.rotate("and misses another change", a) // b knows neither of them, and keeps trying
	h.connect(b)
	h.eventually("b has learnt it", func() bool { return strings.Contains(b.pinned(), string(last.Cert)) })
	stop()
	for what, bundle := range map[string][]byte{"of before all changes": kubeconfig, "of now": h.trust.Bundle(), "of the newest alone": last.Cert} {
		if err := h.handshake(t.Context(), string(bundle)); err != nil {
			t.Errorf("a kubeconfig %s: %v", what, err)
		}
	}
}
