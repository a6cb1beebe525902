// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package host_test

import (
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/controllers/host"
	"github.com/drover-dev/drover/internal/members"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/registration"
	"github.com/drover-dev/drover/internal/status"
	"github.com/drover-dev/drover/internal/trust"
	"github.com/drover-dev/drover/test/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// world is one Host, its reconcilers, and a registry that agents in memory connect to.
type world struct {
	*testkit.Env
	t        *testing.T
	clock    *testkit.Clock
	registry *members.Registry
	r        *host.Reconciler
	name     types.NamespacedName
	settings protocol.Settings
	forgot   string // the checkpoint that the hub does not remember
	settling bool   // the manager has just started
}

func newWorld(t *testing.T) *world {
	t.Helper()
	ca, err := trust.NewAuthority(time.Now())
	if err != nil {
		t.Fatal(err)
	}
	w := &world{Env: testkit.Shared(t), t: t, clock: testkit.NewClock(), settings: protocol.Settings{Servers: []string{"https://hub.example.com"}, CABundle: string(ca.Cert)}}
	w.registry = members.New(logr.Discard(), w.clock.Now)
	t.Cleanup(w.registry.Close)
	w.name = types.NamespacedName{Namespace: w.Workspace(t), Name: "m1"}
	w.r = &host.Reconciler{
		Output: status.Output{Client: w.Client, Recorder: events.NewFakeRecorder(100), Now: w.clock.Now},
		Live:   w.Client, Members: w.registry.Reconciled(), Trust: v1.TrustPinned,
		Settings: func() protocol.Settings { return w.settings }, Settled: func() bool { return !w.settling },
		History: host.History{
			Term: func() string { return "lease/2/b" }, Checkpoint: func() string { return "lease/2/b/1" },
			Forgot: func(checkpoint string) bool { return checkpoint == w.forgot },
		},
	}
	w.Apply(t, &v1.Host{ObjectMeta: metav1.ObjectMeta{Namespace: w.name.Namespace, Name: w.name.Name}})
	return w
}

// reconcile reconciles twice: the first time gives a new Host its finalizer.
func (w *world) reconcile() {
	w.t.Helper()
	for range 2 {
		if _, err := w.r.Reconcile(w.t.Context(), ctrl.Request{NamespacedName: w.name}); err != nil {
			w.t.Fatal(err)
		}
		revoker := &host.Revoker{Client: w.Client, Live: w.Client, Tunnels: w.registry.Tunnels}
		if _, err := revoker.Reconcile(w.t.Context(), ctrl.Request{NamespacedName: w.name}); err != nil {
			w.t.Fatal(err)
		}
	}
}

// want checks the state and the reason of the Ready condition.
func (w *world) want(state v1.HostState, reason string) *v1.Host {
	w.t.Helper()
	h := &v1.Host{}
	if err := w.Client.Get(w.t.Context(), w.name, h); err != nil {
		w.t.Fatal(err)
	}
	ready := meta.FindStatusCondition(h.Status.Conditions, v1.ConditionReady)
	if h.Status.State != state || ready == nil || ready.Reason != reason || ready.ObservedGeneration != h.Generation {
		w.t.Errorf("the status is %s, %+v, want %s and %s", h.Status.State, ready, state, reason)
	}
	return h
}

func (w *world) secret() *corev1.Secret {
	w.t.Helper()
	s := &corev1.Secret{}
	if err := w.Client.Get(w.t.Context(), registration.RegistrationSecret(host.Member(w.name)), s); err != nil {
		w.t.Fatal(err)
	}
	return s
}

// join lets an agent with a key join, in the same way as the hub's server.
func (w *world) join(key ed25519.PrivateKey) *v1.Host {
	w.t.Helper()
	h := w.want(v1.HostWaitingToRegister, v1.ReasonAwaitingAgent)
	secret := &corev1.Secret{}
	public, _ := key.Public().(ed25519.PublicKey)
	registration.WriteIdentity(secret, h, registration.AgentIdentity{
		PublicKey: public, ClusterUID: "machine", TokenHash: registration.HashToken(string(w.secret().Data["token"])), OwnerUID: h.UID, Joined: w.clock.Now(),
	})
	if err := w.Client.Create(w.t.Context(), secret); err != nil {
		w.t.Fatal(err)
	}
	return h
}

// give creates the Secret with instructions for the Host, and returns it.
func (w *world) give() *corev1.Secret {
	w.t.Helper()
	given := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: w.name.Namespace, Name: w.name.Name + v1.HostInstructionsSecretSuffix,
			Labels: map[string]string{v1.LabelHost: w.name.Name},
		},
		Type: v1.SecretTypeHostInstructions, StringData: map[string]string{v1.HostInstructionsKey: "{}"},
	}
	if err := w.Client.Create(w.t.Context(), given); err != nil {
		w.t.Fatal(err)
	}
	return given
}

// connect opens a tunnel for an agent with the given key, and the agent reports progress.
func (w *world) connect(h *v1.Host, key ed25519.PrivateKey, progress protocol.HostProgress) *testkit.Agent {
	w.t.Helper()
	changed := make(chan struct{}, 100)
	w.registry.OnHostChange(func(types.NamespacedName) { changed <- struct{}{} })
	agent := testkit.ConnectAgent(w.t, protocol.Report{
		Protocol: protocol.Version, MinProtocol: protocol.MinVersion, Leader: true, SettingsDigest: w.settings.Digest(), AgentVersion: "v9",
		Host: &protocol.HostReport{
			Machine:  protocol.HostMachine{HostProperties: v1.HostProperties{OS: "Debian"}, MemoryMiB: 2048},
			Progress: progress,
		},
	})
	public, _ := key.Public().(ed25519.PublicKey)
	member := host.Member(w.name)
	w.registry.Add(members.Peer{
		Cluster: protocol.ClusterRef{Namespace: member.Namespace, Name: member.Name, UID: string(h.UID)}, Key: registration.KeyID(public), Instance: "a",
	}, agent.Session)
	for w.registry.State(member).Report == nil {
		select {
		case <-changed:
		case <-time.After(time.Minute * testkit.Patience):
			w.t.Fatal("the agent's report did not arrive")
		}
	}
	return agent
}

func TestHost(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]func(*testing.T, *world){
		"a new host gets a token, and a command with the hub's CA in it": func(t *testing.T, w *world) {
			w.reconcile()
			w.want(v1.HostWaitingToRegister, v1.ReasonAwaitingAgent)
			secret := w.secret()
			token, command := string(secret.Data["token"]), string(secret.Data["command"])
			sums, _ := protocol.CertificateChecksums([]byte(w.settings.CABundle))
			if !registration.ValidToken(token) || !strings.Contains(command, token) || !strings.Contains(command, "--ca-checksum "+sums[0]) || !strings.Contains(command, "--cacert") {
				t.Errorf("the command is %q", command)
			}
			w.reconcile()
			if got := string(w.secret().Data["token"]); got != token {
				t.Error("the token changed")
			}
		},
		"a token that expires is replaced when its Secret is deleted": func(t *testing.T, w *world) {
			w.reconcile()
			before := w.secret()
			w.clock.Advance(25 * time.Hour)
			w.reconcile()
			w.want(v1.HostWaitingToRegister, v1.ReasonTokenExpired)
			if err := w.Client.Delete(t.Context(), before); err != nil {
				t.Fatal(err)
			}
			w.reconcile()
			if got := w.secret(); string(got.Data["token"]) == string(before.Data["token"]) {
				t.Error("the token is the old one")
			}
			w.want(v1.HostWaitingToRegister, v1.ReasonAwaitingAgent)
		},
		"another's Secret is not overwritten": func(t *testing.T, w *world) {
			w.Apply(t, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: w.name.Namespace, Name: w.name.Name + v1.HostJoinSecretSuffix}, StringData: map[string]string{"a": "b"}})
			w.reconcile()
			w.want(v1.HostWaitingToRegister, v1.ReasonSecretConflict)
			if string(w.secret().Data["a"]) != "b" {
				t.Error("it was overwritten")
			}
		},
		"a host that joins is available, and lost when its agent is killed": func(t *testing.T, w *world) {
			w.reconcile()
			key := testkit.Key(t)
			agent := w.connect(w.join(key), key, protocol.HostProgress{})
			w.reconcile()
			if h := w.want(v1.HostAvailable, v1.ReasonHostAvailable); h.Status.Machine.OS != "Debian" || h.Status.Machine.Memory != "2048Mi" || h.Status.AgentVersion != "v9" {
				t.Errorf("the status is %+v", h.Status)
			}
			agent.Kill()
			testkit.Eventually(t, time.Minute, w.disconnected)
			w.reconcile()
			if h := w.want(v1.HostAvailable, v1.ReasonTunnelLost); h.Status.LastSeen == nil {
				t.Error("the status does not say since when")
			}
		},
		"an agent whose Secret is deleted is revoked, and a new token made": func(t *testing.T, w *world) {
			w.reconcile()
			key, token := testkit.Key(t), string(w.secret().Data["token"])
			w.connect(w.join(key), key, protocol.HostProgress{})
			w.reconcile()
			w.want(v1.HostAvailable, v1.ReasonHostAvailable)
			identity := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: w.name.Namespace, Name: w.name.Name + v1.HostAgentSecretSuffix}}
			if err := w.Client.Delete(t.Context(), identity); err != nil {
				t.Fatal(err)
			}
			w.reconcile()
			testkit.Eventually(t, time.Minute, w.disconnected)
			w.reconcile()
			w.want(v1.HostWaitingToRegister, v1.ReasonAwaitingAgent)
			if got := string(w.secret().Data["token"]); got == token {
				t.Error("the used token is still in force")
			}
		},
		"instructions count only in a Secret of its own type, which takes a right of its own": func(t *testing.T, w *world) {
			w.reconcile()
			key := testkit.Key(t)
			w.connect(w.join(key), key, protocol.HostProgress{})
			given := &corev1.Secret{
				ObjectMeta: metav1.ObjectMeta{Namespace: w.name.Namespace, Name: w.name.Name + v1.HostInstructionsSecretSuffix, Labels: map[string]string{v1.LabelHost: w.name.Name}},
				StringData: map[string]string{v1.HostInstructionsKey: "{}"},
			}
			if err := w.Client.Create(t.Context(), given.DeepCopy()); err != nil {
				t.Fatal(err)
			}
			w.reconcile()
			w.want(v1.HostAvailable, v1.ReasonHostAvailable)
			if err := w.Client.Delete(t.Context(), given); err != nil {
				t.Fatal(err)
			}
			given.Type = v1.SecretTypeHostInstructions
			if err := w.Client.Create(t.Context(), given); err != nil {
				t.Fatal(err)
			}
			w.reconcile()
			w.want(v1.HostInstalling, v1.ReasonInstalling)
		},
		"a host whose instructions the cache does not have is not cleaned": func(t *testing.T, w *world) {
			w.reconcile()
			given := w.give()
			key := testkit.Key(t)
			w.connect(w.join(key), key, protocol.HostProgress{HostProgress: v1.HostProgress{Version: string(given.UID) + "." + given.ResourceVersion}, Phase: protocol.HostApplied})
			w.r.Client = without{w.Client, given.Name}
			w.leavesAlone()
			if err := w.Client.Delete(t.Context(), given); err != nil {
				t.Fatal(err)
			}
			testkit.Eventually(t, time.Minute, func(context.Context) error {
				if !w.asked() {
					return errors.New("the agent was not asked to clean the machine, whose instructions are gone")
				}
				return nil
			})
		},
		"a failed instruction stalls the host until instructions succeed": func(t *testing.T, w *world) {
			w.reconcile()
			given := w.give()
			key, version := testkit.Key(t), string(given.UID)+"."+given.ResourceVersion
			agent := w.connect(w.join(key), key, protocol.HostProgress{HostProgress: v1.HostProgress{Version: version, Instruction: "a", Output: "no room"}, Phase: protocol.HostFailed, Message: "exit code 3"})
			w.reconcile()
			if h := w.want(v1.HostInstalling, v1.ReasonInstructionFailed); h.Status.Progress.Output != "no room" || !meta.IsStatusConditionTrue(h.Status.Conditions, v1.ConditionStalled) {
				t.Errorf("the status is %+v", h.Status)
			}
			agent.Report(func(r *protocol.Report) {
				r.Host = &protocol.HostReport{Progress: protocol.HostProgress{
					HostProgress: v1.HostProgress{Version: version}, Phase: protocol.HostApplied,
				}}
			})
			testkit.Eventually(t, time.Minute, w.phase(protocol.HostApplied))
			w.reconcile()
			if h := w.want(v1.HostActive, v1.ReasonActive); meta.FindStatusCondition(h.Status.Conditions, v1.ConditionStalled) != nil {
				t.Error("it is still Stalled")
			}
		},
		"a host is not lost, and not left behind, before agents had time to come back after the manager's start": func(t *testing.T, w *world) {
			w.reconcile()
			key := testkit.Key(t)
			w.connect(w.join(key), key, protocol.HostProgress{})
			w.reconcile()
			w.registry.Disconnect(host.Member(w.name), func(members.Peer) bool { return false })
			testkit.Eventually(t, time.Minute, w.disconnected)
			w.settling = true
			w.reconcile()
			h := w.want(v1.HostAvailable, v1.ReasonHostAvailable)
			if err := w.Client.Delete(t.Context(), h); err != nil {
				t.Fatal(err)
			}
			w.clock.Advance(time.Minute)
			w.reconcile()
			w.want(v1.HostAvailable, v1.ReasonRemoving)
			w.settling = false
			w.reconcile()
			if err := w.Client.Get(t.Context(), w.name, h); !apierrors.IsNotFound(err) {
				t.Errorf("got %v, want the Host gone", err)
			}
		},
		"a host that is lost with many keeps its state until their time is over, and its removal does not wait for that": func(t *testing.T, w *world) {
			w.reconcile()
			key := testkit.Key(t)
			agent := w.connect(w.join(key), key, protocol.HostProgress{})
			w.reconcile()
			many := make([]members.Record, 1000)
			mirror := w.registry.Mirror("another replica")
			for i := range many {
				many[i] = members.Record{Namespace: "team-a", Name: fmt.Sprint("member-", i), Tunnels: []members.Peer{{ID: fmt.Sprint("tunnel-", i)}}}
			}
			mirror.Update(many...)
			for i := range many {
				many[i].Tunnels, many[i].Loss = nil, &members.Loss{At: w.clock.Now()}
			}
			mirror.Update(many...)
			agent.Kill()
			testkit.Eventually(t, time.Minute, w.disconnected)
			result, err := w.r.Reconcile(t.Context(), ctrl.Request{NamespacedName: w.name})
			if most := members.ReturnTime + members.AdmissionTime(len(many)+1); err != nil || result.RequeueAfter <= members.ReturnTime || result.RequeueAfter > most {
				t.Errorf("looks again after %s, %v, want until the last of many may be back, %s at most", result.RequeueAfter, err, most)
			}
			w.want(v1.HostAvailable, v1.ReasonHostAvailable)
			if err := w.Client.Delete(t.Context(), w.want(v1.HostAvailable, v1.ReasonHostAvailable)); err != nil {
				t.Fatal(err)
			}
			w.clock.Advance(21 * time.Second) // removals wait for 20 s
			w.reconcile()
			if err := w.Client.Get(t.Context(), w.name, &v1.Host{}); !apierrors.IsNotFound(err) {
				t.Errorf("got %v, want the Host gone", err)
			}
		},
		"a host that is in use is not cleaned before it was given back": func(t *testing.T, w *world) {
			w.reconcile()
			given := w.give()
			key := testkit.Key(t)
			w.connect(w.join(key), key, protocol.HostProgress{HostProgress: v1.HostProgress{Version: string(given.UID) + "." + given.ResourceVersion}, Phase: protocol.HostApplied})
			w.reconcile()
			h := w.want(v1.HostActive, v1.ReasonActive)
			h.Finalizers = append(h.Finalizers, "provision.cluster.drover.dev/node")
			if err := w.Client.Update(t.Context(), h); err != nil {
				t.Fatal(err)
			}
			if err := w.Client.Delete(t.Context(), h); err != nil {
				t.Fatal(err)
			}
			w.leavesAlone()
			h = w.want(v1.HostActive, v1.ReasonActive)
			if message := meta.FindStatusCondition(h.Status.Conditions, v1.ConditionReady).Message; !strings.Contains(message, "waits for its users: provision.cluster.drover.dev/node") {
				t.Errorf("the message is %q", message)
			}
			h.Finalizers = []string{v1.FinalizerUninstall}
			if err := w.Client.Update(t.Context(), h); err != nil {
				t.Fatal(err)
			}
			testkit.Eventually(t, time.Minute, func(context.Context) error {
				if w.reconcile(); !w.asked() {
					return errors.New("the agent was not asked to clean the machine")
				}
				return nil
			})
		},
		"a host that never joined is gone at once, and one that is away after a moment": func(t *testing.T, w *world) {
			w.reconcile()
			w.join(testkit.Key(t))
			h := &v1.Host{ObjectMeta: metav1.ObjectMeta{Namespace: w.name.Namespace, Name: w.name.Name}}
			if err := w.Client.Delete(t.Context(), h); err != nil {
				t.Fatal(err)
			}
			w.reconcile()
			w.want("WaitingToRegister", v1.ReasonRemoving)
			w.clock.Advance(time.Minute)
			w.reconcile()
			if err := w.Client.Get(t.Context(), w.name, h); !apierrors.IsNotFound(err) {
				t.Errorf("got %v, want the Host gone", err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, newWorld(t))
		})
	}
}

// asked reports whether a reconcile has just sent the agent a request about its instructions. This agent refuses
// requests, so a reconcile after its response waits before it sends the next one.
func (w *world) asked() bool {
	w.t.Helper()
	result, err := w.r.Reconcile(w.t.Context(), ctrl.Request{NamespacedName: w.name})
	if err != nil {
		w.t.Fatal(err)
	}
	return result.RequeueAfter != 0
}

// leavesAlone checks that no request is sent to the agent. A response would arrive within milliseconds.
func (w *world) leavesAlone() {
	w.t.Helper()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for range 20 {
		if <-tick.C; w.asked() {
			w.t.Fatal("the agent was asked to change its instructions")
		}
	}
}

// without is a cache that has everything except one Secret.
type without struct {
	client.Client
	secret string
}

func (c without) Get(ctx context.Context, key client.ObjectKey, object client.Object, options ...client.GetOption) error {
	if _, ok := object.(*corev1.Secret); ok && key.Name == c.secret {
		return apierrors.NewNotFound(corev1.Resource("secrets"), key.Name)
	}
	return c.Client.Get(ctx, key, object, options...)
}

func (w *world) disconnected(context.Context) error {
	if w.registry.State(host.Member(w.name)).Connected() {
		return errors.New("the agent is connected")
	}
	return nil
}

func (w *world) phase(phase protocol.HostPhase) func(context.Context) error {
	return func(context.Context) error {
		if report := w.registry.State(host.Member(w.name)).Report; report == nil || report.Host.Progress.Phase != phase {
			return fmt.Errorf("the report is %+v", report)
		}
		return nil
	}
}
