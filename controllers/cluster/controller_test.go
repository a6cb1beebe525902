// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster_test

import (
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"slices"
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

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/controllers/cluster"
	"github.com/drover-dev/drover/internal/members"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/registration"
	"github.com/drover-dev/drover/internal/status"
	"github.com/drover-dev/drover/internal/trust"
	"github.com/drover-dev/drover/test/testkit"
)

// world is one Cluster, its reconciler, and a registry that agents in memory connect to.
type world struct {
	*testkit.Env
	t        *testing.T
	clock    *testkit.Clock
	registry *members.Registry
	recorder *events.FakeRecorder
	r        *cluster.Reconciler
	name     types.NamespacedName
	settings protocol.Settings
}

func newWorld(t *testing.T, env *testkit.Env) *world {
	t.Helper()
	ca, err := trust.NewAuthority(time.Now())
	if err != nil {
		t.Fatal(err)
	}
	w := &world{Env: env, t: t, clock: testkit.NewClock(), recorder: events.NewFakeRecorder(100),
		settings: protocol.Settings{Servers: []string{"https://hub.example.com"}, CABundle: string(ca.Cert)}}
	w.registry = members.New(logr.Discard(), w.clock.Now)
	t.Cleanup(w.registry.Close)
	w.name = types.NamespacedName{Namespace: env.Workspace(t), Name: "member"}
	w.r = &cluster.Reconciler{
		Output: status.Output{Client: env.Client, Recorder: w.recorder, Now: w.clock.Now},
		Live:   env.Client, Members: w.registry.Reconciled(),
		Settings: func() protocol.Settings { return w.settings },
		Agent:    v1.Agent{Image: "drover:test"}, Started: w.clock.Now().Add(-time.Hour),
	}
	return w
}

func (w *world) create(spec v1.ClusterSpec) {
	w.t.Helper()
	w.Apply(w.t, &v1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: w.name.Namespace, Name: w.name.Name}, Spec: spec})
}

func (w *world) reconcile() ctrl.Result {
	w.t.Helper()
	revoker := &cluster.Revoker{Client: w.Client, Live: w.Client, Tunnels: w.registry.Tunnels}
	if _, err := revoker.Reconcile(w.t.Context(), ctrl.Request{NamespacedName: w.name}); err != nil {
		w.t.Fatal(err)
	}
	result, err := w.r.Reconcile(w.t.Context(), ctrl.Request{NamespacedName: w.name})
	if err != nil {
		w.t.Fatal(err)
	}
	return result
}

func (w *world) cluster() *v1.Cluster {
	w.t.Helper()
	c := &v1.Cluster{}
	if err := w.Client.Get(w.t.Context(), w.name, c); err != nil {
		w.t.Fatal(err)
	}
	return c
}

func (w *world) secret(name types.NamespacedName) *corev1.Secret {
	w.t.Helper()
	s := &corev1.Secret{}
	if err := w.Client.Get(w.t.Context(), name, s); err != nil {
		w.t.Fatal(err)
	}
	return s
}

func (w *world) token() string {
	w.t.Helper()
	return string(w.secret(registration.RegistrationSecret(w.name)).Data[registration.KeyToken])
}

// ready checks the status and reason of the Ready condition.
func (w *world) ready(state metav1.ConditionStatus, reason string) {
	w.t.Helper()
	c := meta.FindStatusCondition(w.cluster().Status.Conditions, v1.ConditionReady)
	if c == nil || c.Status != state || c.Reason != reason {
		w.t.Fatalf("Ready is %+v, want %s %s", c, state, reason)
	}
}

// join writes the objects that the registration server writes when an agent joins, and returns the agent's key.
func (w *world) join() ed25519.PublicKey {
	w.t.Helper()
	key := testkit.Key(w.t).Public().(ed25519.PublicKey)
	c := w.cluster()
	secret := &corev1.Secret{}
	registration.WriteIdentity(secret, c, registration.AgentIdentity{
		PublicKey: key, ClusterUID: "member-uid", TokenHash: registration.HashToken(w.token()), OwnerUID: c.UID, Joined: w.clock.Now(),
	})
	w.Apply(w.t, secret)
	return key
}

// connect connects an agent in memory and waits for its first report.
func (w *world) connect(key ed25519.PublicKey, report protocol.Report) *testkit.Agent {
	w.t.Helper()
	return w.connectAs(members.Peer{Key: registration.KeyID(key)}, report)
}

// connectAs opens a tunnel of the Cluster's agent.
func (w *world) connectAs(peer members.Peer, report protocol.Report) *testkit.Agent {
	w.t.Helper()
	agent := testkit.ConnectAgent(w.t, report)
	peer.Cluster = protocol.ClusterRef{Namespace: w.name.Namespace, Name: w.name.Name, UID: string(w.cluster().UID)}
	w.registry.Add(peer, agent.Session)
	w.until(func(s members.State) bool { return s.Report != nil })
	return agent
}

func (w *world) until(is func(members.State) bool) {
	w.t.Helper()
	testkit.Eventually(w.t, 10*time.Second, func(context.Context) error {
		if state := w.registry.State(w.name); !is(state) {
			return fmt.Errorf("state %+v", state)
		}
		return nil
	})
}

func (w *world) joined() (*testkit.Agent, ed25519.PublicKey) {
	w.t.Helper()
	w.create(v1.ClusterSpec{})
	w.reconcile()
	key := w.join()
	agent := w.connect(key, testkit.HealthyReport())
	w.reconcile()
	w.until(func(s members.State) bool { return s.Report.SettingsDigest == w.settings.Digest() })
	w.reconcile()
	return agent, key
}

func TestMain(m *testing.M) { testkit.Main(m) }

func TestClusterController(t *testing.T) {
	env := testkit.Shared(t)
	for name, test := range map[string]func(*world){
		"a new cluster gets a token, a manifest and a command":                             testNewCluster,
		"the manifest holds no more than its cluster's own token":                          testSecretsStayInSecrets,
		"an agent that joins, connects and reports makes its cluster ready":                testReady,
		"a member that is reached by a node agent alone shows, until a replica is back":    testByNodeAgent,
		"reconciling again without a change writes nothing":                                testIdle,
		"a lost agent shows with reason and time, and what was known stays":                testLost,
		"an agent that was connected before a restart gets time to come back":              testSettling,
		"the manifest of an agent that is on its way back is written when it had its time": testManifestWaits,
		"a token that an agent has just used is of no use, before that agent has reported": testTokenUsedByAnArrival,
		"an agent that comes and is killed just after a restart shows at once":             testKilledWhileSettling,
		"the status of an agent that joined before the start stays until it is back":       testFoundJoined,
		"no member counts as lost, or is released, before the other replicas were heard":   testReplicasNotHeardYet,
		"an unhealthy API server shows":                                                    testUnhealthy,
		"an agent of another protocol shows as version skew":                               testVersionSkew,
		"deleting the registration secret makes a new token and keeps the agent":           testTokenRotation,
		"deleting the agent secret revokes the agent and replaces its used token":          testAgentRevocation,
		"a token that expires shows, with what to do":                                      testTokenExpires,
		"a token that the user chose is used":                                              testChosenToken,
		"a name that no Secret has is said, and is no error":                               testTokenOfNoSecret,
		"a change of the settings reaches the agent and its confirmation is awaited":       testAnnounce,
		"a changed spec.agent reaches the leader, once, and its result shows":              testDeploy,
		"a Deployment that the agent refuses shows, and is not retried in a loop":          testDeployRefused,
		"CVE-2021-36782: another profile is not rolled through the tunnel":                 testOtherProfile,
		"what an agent that only reads may not take back shows as still in force":          testStillInForce,
		"facts stay while another replica of the agent takes the lead":                     testLeaderless,
		"deleting a connected cluster has the agent uninstall itself":                      testRemoveConnected,
		"an agent that goes once it has uninstalled itself leaves nothing":                 testRemoveGone,
		"an agent that dies while it uninstalls itself is asked again":                     testRemoveInterrupted,
		"an agent that is reached by a node agent alone is awaited to uninstall itself":    testRemoveByNodeAgent,
		"deleting a cluster whose agent is gone ends within 30 s":                          testRemoveUnreachable,
		"deleting a cluster without an agent ends at once":                                 testRemoveUnjoined,
		"an agent that answers nothing holds up neither a reconcile nor the deletion":      testDeafAgent,
		"a Secret that is not Drover's is neither adopted nor overwritten":                 testForeignSecret,
		"orphaning leaves the agent alone":                                                 testOrphan,
		"a cluster that is recreated does not know the old agent":                          testRecreated,
		"a second cluster that was refused shows on the cluster":                           testRefusalShows,
		"the replica that refused an agent writes the only event of it":                    testRefusalIsToldOnce,
		"why the hub refuses an agent that is away shows, and of one that is here not":     testRefusedWhileAway,
	} {
		t.Run(name, func(t *testing.T) { test(newWorld(t, env)) })
	}
}

func testNewCluster(w *world) {
	w.create(v1.ClusterSpec{})
	w.reconcile()
	w.ready(metav1.ConditionFalse, v1.ReasonAwaitingAgent)
	secret := w.secret(registration.RegistrationSecret(w.name))
	token := string(secret.Data["token"])
	for key, want := range map[string]string{
		"manifest-url":  "https://hub.example.com/v1/import/" + token + ".yaml",
		"command":       "kubectl apply --server-side --force-conflicts -f -",
		"manifest.yaml": "image: drover:test",
	} {
		if !strings.Contains(string(secret.Data[key]), want) {
			w.t.Errorf("key %s lacks %q:\n%s", key, want, secret.Data[key])
		}
	}
	if !registration.ValidToken(token) {
		w.t.Error("the token is not valid")
	}
	if len(secret.OwnerReferences) != 1 || secret.OwnerReferences[0].UID != w.cluster().UID {
		w.t.Error("the Secret is not the Cluster's")
	}
}

func testSecretsStayInSecrets(w *world) {
	w.joined()
	c := w.cluster()
	raw := fmt.Sprintf("%+v", c)
	for e := range drain(w.recorder) {
		raw += e
	}
	if strings.Contains(raw, w.token()) {
		w.t.Error("the token shows outside of Secrets")
	}
}

func testReady(w *world) {
	w.joined()
	w.ready(metav1.ConditionTrue, v1.ReasonConnected)
	c := w.cluster()
	s := c.Status
	if s.Version != "v1.36.3+k3s1" || s.Nodes.Summary != "2/3" || s.Agent.Version != "v0.1.0" || s.Capacity.Memory().String() != "48Gi" ||
		s.ClusterUID != "member-uid" || s.ObservedGeneration != c.Generation {
		w.t.Errorf("status %+v", s)
	}
	if c.Labels[v1.LabelDistribution] != "k3s" || c.Labels[v1.LabelVersion] != "v1.36" {
		w.t.Errorf("labels %v", c.Labels)
	}
	for _, kind := range []string{v1.ConditionRegistered, v1.ConditionConnected} {
		if !meta.IsStatusConditionTrue(s.Conditions, kind) {
			w.t.Errorf("%s is not True", kind)
		}
	}
}

func testIdle(w *world) {
	w.joined()
	before := w.cluster().ResourceVersion
	secret := w.secret(registration.RegistrationSecret(w.name)).ResourceVersion
	for range 3 {
		w.clock.Advance(time.Hour)
		w.reconcile()
	}
	if after := w.cluster().ResourceVersion; after != before {
		w.t.Errorf("the Cluster was written: %s -> %s", before, after)
	}
	if after := w.secret(registration.RegistrationSecret(w.name)).ResourceVersion; after != secret {
		w.t.Errorf("the Secret was written: %s -> %s", secret, after)
	}
}

func testLost(w *world) {
	agent, key := w.joined()
	agent.Kill()
	w.until(func(s members.State) bool { return !s.Connected() })
	w.reconcile()
	w.ready(metav1.ConditionFalse, v1.ReasonTunnelLost)
	s := w.cluster().Status
	if s.LastSeen == nil || !s.LastSeen.Time.Equal(w.clock.Now()) || s.Version == "" || s.Agent.Replicas != 0 {
		w.t.Errorf("status %+v", s)
	}
	w.connect(key, testkit.HealthyReport())
	w.reconcile()
	w.ready(metav1.ConditionTrue, v1.ReasonConnected)
	if w.cluster().Status.LastSeen != nil {
		w.t.Error("lastSeen stays on a cluster that is back")
	}
}

func testSettling(w *world) {
	w.joined()
	restarted := newWorld(w.t, w.Env) // another manager, which has not seen any tunnel yet
	restarted.name, restarted.clock, restarted.r.Now, restarted.r.Started = w.name, w.clock, w.clock.Now, w.clock.Now()
	restarted.settings = w.settings
	result := restarted.reconcile()
	restarted.ready(metav1.ConditionTrue, v1.ReasonConnected)
	if result.RequeueAfter <= 0 || result.RequeueAfter > 35*time.Second {
		w.t.Fatalf("looks again after %s, want at most 35 s", result.RequeueAfter)
	}
	w.clock.Advance(result.RequeueAfter)
	restarted.reconcile()
	restarted.ready(metav1.ConditionFalse, v1.ReasonTunnelLost)
}

func testManifestWaits(w *world) {
	w.joined()
	restarted := newWorld(w.t, w.Env)
	restarted.name, restarted.clock, restarted.r.Now, restarted.r.Started = w.name, w.clock, w.clock.Now, w.clock.Now()
	restarted.settings = w.settings
	restarted.settings.Servers = []string{"https://moved.example.com"}
	moved := func() bool {
		return strings.Contains(string(w.secret(registration.RegistrationSecret(w.name)).Data["command"]), "https://moved.example.com/")
	}
	result := restarted.reconcile()
	if moved() {
		w.t.Error("the manifest was compared while agents come back")
	}
	w.clock.Advance(result.RequeueAfter)
	if restarted.reconcile(); !moved() {
		w.t.Error("the command names the hub's former URL, want the new one")
	}
}

func testTokenUsedByAnArrival(w *world) {
	w.create(v1.ClusterSpec{})
	w.reconcile()
	used := w.token()
	w.join()
	if result := w.reconcile(); result.RequeueAfter <= 0 || result.RequeueAfter > 2*time.Second {
		w.t.Fatalf("looks again after %s, want the time in which an agent arrives", result.RequeueAfter)
	}
	if err := w.Client.Delete(w.t.Context(), w.secret(registration.AgentSecret(w.name))); err != nil {
		w.t.Fatal(err)
	}
	if w.reconcile(); w.token() == used {
		w.t.Error("the used token stays in force although its agent was revoked")
	}
}

func testKilledWhileSettling(w *world) {
	first, key := w.joined()
	first.Kill()
	w.until(func(s members.State) bool { return !s.Connected() })
	restarted := newWorld(w.t, w.Env)
	restarted.name, restarted.clock, restarted.r.Now, restarted.r.Started = w.name, w.clock, w.clock.Now, w.clock.Now()
	restarted.settings = w.settings
	agent := restarted.connect(key, testkit.HealthyReport())
	restarted.reconcile()
	restarted.ready(metav1.ConditionTrue, v1.ReasonConnected)
	agent.Kill()
	restarted.until(func(s members.State) bool { return !s.Connected() })
	restarted.reconcile()
	restarted.ready(metav1.ConditionFalse, v1.ReasonTunnelLost)
}

// testFoundJoined: a hub that starts with ten thousand members must not write all of their statuses.
func testFoundJoined(w *world) {
	w.create(v1.ClusterSpec{})
	w.r.Started = w.clock.Now()
	key := testkit.Key(w.t).Public().(ed25519.PublicKey)
	secret, before := &corev1.Secret{}, w.cluster()
	registration.WriteIdentity(secret, before, registration.AgentIdentity{
		PublicKey: key, ClusterUID: "member-uid", TokenHash: "of a former token", OwnerUID: before.UID, Joined: w.clock.Now().Add(-time.Hour),
	})
	w.Apply(w.t, secret)
	if result := w.reconcile(); result.RequeueAfter <= 0 {
		w.t.Error("never looks again")
	}
	if after := w.cluster(); after.ResourceVersion != before.ResourceVersion {
		w.t.Errorf("the Cluster was written: %+v", after)
	}
	w.connect(key, testkit.HealthyReport())
	w.reconcile()
	w.ready(metav1.ConditionTrue, v1.ReasonConnected)
	var told []string
	for event := range drain(w.recorder) {
		told = append(told, strings.Fields(event)[1])
	}
	if want := []string{v1.ReasonConnected}; !slices.Equal(told, want) {
		w.t.Errorf("events %v, want %v", told, want)
	}
}

func testUnhealthy(w *world) {
	agent, _ := w.joined()
	agent.Report(func(r *protocol.Report) { r.Health = protocol.Health{Message: "etcd failed"} })
	w.until(func(s members.State) bool { return !s.Report.Health.Healthy })
	w.reconcile()
	w.ready(metav1.ConditionFalse, v1.ReasonAPIServerUnhealthy)
}

func testVersionSkew(w *world) {
	agent, _ := w.joined()
	agent.Report(func(r *protocol.Report) { r.Protocol, r.MinProtocol = protocol.Version+2, protocol.Version+1 })
	w.until(func(s members.State) bool { return s.Report.Protocol != protocol.Version })
	w.reconcile()
	w.ready(metav1.ConditionFalse, v1.ReasonVersionSkew)
	if !meta.IsStatusConditionTrue(w.cluster().Status.Conditions, v1.ConditionStalled) {
		w.t.Error("not Stalled although a person must act")
	}
}

func testTokenRotation(w *world) {
	w.joined()
	old := w.token()
	if err := w.Client.Delete(w.t.Context(), w.secret(registration.RegistrationSecret(w.name))); err != nil {
		w.t.Fatal(err)
	}
	w.reconcile()
	if w.token() == old {
		w.t.Error("the token is the same (CVE-2022-43755)")
	}
	w.ready(metav1.ConditionTrue, v1.ReasonConnected)
}

func testAgentRevocation(w *world) {
	w.joined()
	old := w.token()
	if err := w.Client.Delete(w.t.Context(), w.secret(registration.AgentSecret(w.name))); err != nil {
		w.t.Fatal(err)
	}
	w.reconcile()
	w.until(func(s members.State) bool { return !s.Connected() && errors.Is(s.LostBecause, members.ErrRevoked) })
	if w.token() == old {
		w.t.Error("the used token stays in force although its agent was revoked")
	}
	w.reconcile()
	w.ready(metav1.ConditionFalse, v1.ReasonAwaitingAgent)
}

func testTokenExpires(w *world) {
	w.create(v1.ClusterSpec{Registration: v1.Registration{TokenTTL: metav1.Duration{Duration: time.Hour}}})
	result := w.reconcile()
	if result.RequeueAfter <= 0 || result.RequeueAfter > time.Hour {
		w.t.Fatalf("looks again after %s", result.RequeueAfter)
	}
	w.clock.Advance(result.RequeueAfter)
	w.reconcile()
	w.ready(metav1.ConditionFalse, v1.ReasonTokenExpired)
}

func testChosenToken(w *world) {
	w.create(v1.ClusterSpec{Registration: v1.Registration{TokenSecretRef: &v1.SecretKeyReference{Name: "mine"}}})
	if result := w.reconcile(); result.RequeueAfter <= 0 {
		w.t.Error("a missing Secret is not looked for again")
	}
	w.ready(metav1.ConditionFalse, v1.ReasonTokenInvalid)
	mine := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: w.name.Namespace, Name: "mine"}, Data: map[string][]byte{"token": []byte("short")}}
	w.Apply(w.t, mine)
	w.reconcile()
	w.ready(metav1.ConditionFalse, v1.ReasonTokenInvalid)
	mine.Data["token"] = []byte(strings.Repeat("chosen-", 6))
	if err := w.Client.Update(w.t.Context(), mine); err != nil {
		w.t.Fatal(err)
	}
	w.reconcile()
	w.ready(metav1.ConditionFalse, v1.ReasonAwaitingAgent)
	if w.token() != strings.Repeat("chosen-", 6) {
		w.t.Error("the user's token is not in force")
	}
}

// If the reconcile of a Cluster ends in an error, the leader has not looked at the Cluster, and then no agent of any
// Cluster is upgraded.
func testTokenOfNoSecret(w *world) {
	w.create(v1.ClusterSpec{Registration: v1.Registration{TokenSecretRef: &v1.SecretKeyReference{Name: "a/b"}}})
	w.reconcile()
	w.ready(metav1.ConditionFalse, v1.ReasonTokenInvalid)
}

func testAnnounce(w *world) {
	agent, _ := w.joined()
	<-agent.Settings
	w.settings.Servers = append(w.settings.Servers, "https://new.example.com")
	w.reconcile()
	if got := <-agent.Settings; got.Digest() != w.settings.Digest() {
		w.t.Errorf("announced %+v", got)
	}
	w.until(func(s members.State) bool { return s.Report.SettingsDigest == w.settings.Digest() })
	w.reconcile()
	select {
	case again := <-agent.Settings:
		w.t.Errorf("announced again although it is confirmed: %+v", again)
	default:
	}
}

func (w *world) delete() {
	w.t.Helper()
	if err := w.Client.Delete(w.t.Context(), w.cluster()); err != nil {
		w.t.Fatal(err)
	}
	w.clock.Advance(w.cluster().DeletionTimestamp.Sub(w.clock.Now()))
}

func (w *world) gone() {
	w.t.Helper()
	if err := w.Client.Get(w.t.Context(), w.name, &v1.Cluster{}); !apierrors.IsNotFound(err) {
		w.t.Fatalf("the Cluster is still there: %v", err)
	}
}

func testRemoveConnected(w *world) {
	agent, _ := w.joined()
	w.delete()
	w.reconcile()
	<-agent.Uninstalled
	w.until(func(members.State) bool { return w.registry.StartUninstall(w.name).Done() })
	w.reconcile()
	w.gone()
	w.until(func(s members.State) bool { return !s.Connected() })
}

func testRemoveGone(w *world) {
	agent, _ := w.joined()
	w.delete()
	w.reconcile()
	<-agent.Uninstalled
	w.until(func(members.State) bool { return w.registry.StartUninstall(w.name).Done() })
	agent.Kill()
	w.until(func(s members.State) bool { return !s.Connected() })
	w.reconcile()
	w.gone()
	if told := w.events(); !strings.Contains(told, v1.ReasonUninstalled) || strings.Contains(told, v1.ReasonLeftBehind) {
		w.t.Errorf("the events are %s", told)
	}
}

func testRemoveInterrupted(w *world) {
	agent, key := w.joined()
	agent.StopAnswering()
	w.delete()
	w.reconcile()
	agent.Kill()
	w.until(func(s members.State) bool { return !s.Connected() && !w.registry.StartUninstall(w.name).Running })
	if result := w.reconcile(); result.RequeueAfter == 0 {
		w.t.Fatal("it is not waited for")
	}
	w.ready(metav1.ConditionFalse, v1.ReasonRemoving)
	again := w.connect(key, testkit.HealthyReport())
	w.reconcile()
	<-again.Uninstalled
	w.until(func(members.State) bool { return w.registry.StartUninstall(w.name).Done() })
	w.reconcile()
	w.gone()
}

// events returns all events that were recorded so far.
func (w *world) events() string {
	var told []string
	for {
		select {
		case e := <-w.recorder.Events:
			told = append(told, e)
		default:
			return strings.Join(told, "; ")
		}
	}
}

func testRemoveUnreachable(w *world) {
	agent, _ := w.joined()
	agent.Kill()
	w.until(func(s members.State) bool { return !s.Connected() })
	w.delete()
	result := w.reconcile()
	w.ready(metav1.ConditionFalse, v1.ReasonRemoving)
	if result.RequeueAfter <= 0 || result.RequeueAfter > 30*time.Second {
		w.t.Fatalf("looks again after %s", result.RequeueAfter)
	}
	w.clock.Advance(result.RequeueAfter)
	w.reconcile()
	w.gone()
}

func testRemoveUnjoined(w *world) {
	w.create(v1.ClusterSpec{})
	w.reconcile()
	if err := w.Client.Delete(w.t.Context(), w.cluster()); err != nil {
		w.t.Fatal(err)
	}
	w.reconcile()
	w.gone()
}

func testDeafAgent(w *world) {
	agent, _ := w.joined()
	agent.StopAnswering()
	w.settings.Servers = append(w.settings.Servers, "https://new.example.com")
	watch := testkit.StartStopwatch()
	w.reconcile()
	w.delete()
	result := w.reconcile()
	if result.RequeueAfter <= 0 || result.RequeueAfter > 30*time.Second {
		w.t.Fatalf("looks again after %s", result.RequeueAfter)
	}
	w.clock.Advance(result.RequeueAfter)
	w.reconcile()
	w.gone()
	if took := watch.Took(); took > 5*time.Second {
		w.t.Errorf("waited %s for the agent", took)
	}
}

func testForeignSecret(w *world) {
	name := registration.RegistrationSecret(w.name)
	w.Apply(w.t, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: name.Namespace, Name: name.Name}, Data: map[string][]byte{"token": []byte("mine")}})
	w.create(v1.ClusterSpec{})
	if result := w.reconcile(); result.RequeueAfter <= 0 {
		w.t.Error("it is not looked at again")
	}
	w.ready(metav1.ConditionFalse, v1.ReasonSecretConflict)
	if s := w.secret(name); string(s.Data["token"]) != "mine" || len(s.OwnerReferences) > 0 {
		w.t.Errorf("the Secret was changed: %+v", s)
	}
}

func testOrphan(w *world) {
	agent, _ := w.joined()
	c := w.cluster()
	c.Spec.DeletionPolicy = v1.DeletionPolicyOrphan
	if err := w.Client.Update(w.t.Context(), c); err != nil {
		w.t.Fatal(err)
	}
	w.delete()
	w.reconcile()
	w.gone()
	if len(agent.Uninstalled) > 0 {
		w.t.Error("the agent was uninstalled")
	}
}

func testRecreated(w *world) {
	w.joined()
	c := w.cluster()
	c.Finalizers = nil
	if err := w.Client.Update(w.t.Context(), c); err != nil {
		w.t.Fatal(err)
	}
	if err := w.Client.Delete(w.t.Context(), c); err != nil {
		w.t.Fatal(err)
	}
	w.create(v1.ClusterSpec{}) // its Secrets still exist: the garbage collector has not deleted them yet
	w.reconcile()
	w.until(func(s members.State) bool { return !s.Connected() })
	w.reconcile()
	w.ready(metav1.ConditionFalse, v1.ReasonAwaitingAgent)
}

func testRefusalShows(w *world) {
	w.joined()
	w.registry.Refused(w.name, v1.ReasonIdentityMismatch, "the cluster with kube-system UID intruder showed the join token")
	result := w.reconcile()
	w.ready(metav1.ConditionTrue, v1.ReasonConnected)
	c := meta.FindStatusCondition(w.cluster().Status.Conditions, v1.ConditionRegistered)
	if !strings.Contains(c.Message, "intruder") {
		w.t.Errorf("Registered says %q", c.Message)
	}
	w.clock.Advance(result.RequeueAfter)
	w.reconcile()
	if c := meta.FindStatusCondition(w.cluster().Status.Conditions, v1.ConditionRegistered); strings.Contains(c.Message, "intruder") {
		w.t.Error("the refusal is shown permanently")
	}
}

// testRefusalIsToldOnce: the replica that refused the agent has written an event, but this fake replica has not.
func testRefusalIsToldOnce(w *world) {
	w.create(v1.ClusterSpec{})
	w.reconcile()
	w.registry.Refused(w.name, v1.ReasonAlreadyImported, "the cluster is imported as cluster other already")
	w.reconcile()
	w.ready(metav1.ConditionFalse, v1.ReasonAlreadyImported)
	for e := range drain(w.recorder) {
		if strings.Contains(e, v1.ReasonAlreadyImported) {
			w.t.Errorf("the controller repeats it: %s", e)
		}
	}
	w.clock.Advance(members.RefusalMemory)
	w.reconcile()
	w.expectEventOnce("Normal " + v1.ReasonAwaitingAgent)
}

func testRefusedWhileAway(w *world) {
	message := func(kind string) string {
		return meta.FindStatusCondition(w.cluster().Status.Conditions, kind).Message
	}
	agent, _ := w.joined()
	w.registry.Refused(w.name, v1.ReasonAwaitingAgent, "an agent asks with another key")
	before := w.cluster().ResourceVersion
	w.reconcile()
	if w.cluster().ResourceVersion != before {
		w.t.Errorf("a stranger has the status of a connected Cluster written: %q", message(v1.ConditionRegistered))
	}
	agent.Kill()
	w.until(func(s members.State) bool { return !s.Connected() })
	w.reconcile()
	w.ready(metav1.ConditionFalse, v1.ReasonTunnelLost)
	if told := message(v1.ConditionConnected); !strings.Contains(told, "the hub refuses the agent: an agent asks with another key") || strings.Contains(told, "by itself") {
		w.t.Errorf("Connected says %q", told)
	}
	if err := w.Client.Delete(w.t.Context(), w.secret(registration.AgentSecret(w.name))); err != nil {
		w.t.Fatal(err)
	}
	w.reconcile()
	if told := message(v1.ConditionRegistered); !strings.Contains(told, "The hub refuses an agent: an agent asks with another key") {
		w.t.Errorf("Registered says %q", told)
	}
}

// drain yields the recorded events.
func drain(recorder *events.FakeRecorder) func(func(string) bool) {
	return func(yield func(string) bool) {
		for {
			select {
			case e := <-recorder.Events:
				if !yield(e) {
					return
				}
			default:
				return
			}
		}
	}
}
