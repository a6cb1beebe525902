// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package authority_test

import (
	"context"
	"crypto/ed25519"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/controllers/authority"
	"github.com/drover-dev/drover/internal/config"
	"github.com/drover-dev/drover/internal/members"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/registration"
	"github.com/drover-dev/drover/internal/trust"
	"github.com/drover-dev/drover/test/testkit"
)

// world is one hub's CA with the keeper and the loader, which the tests call directly, and the members' reports.
type world struct {
	*testkit.Env
	t        *testing.T
	clock    *testkit.Clock
	trust    *trust.Holder
	settings func() protocol.Settings // of agents
	keeper   *authority.Keeper
	loader   *authority.Loader
	recorder *events.FakeRecorder
	members  map[types.NamespacedName]string // the digest of the settings that each connected member has; "" before its first report
}

func newWorld(t *testing.T, env *testkit.Env) *world {
	t.Helper()
	w := &world{Env: env, t: t, clock: testkit.NewClock(), recorder: events.NewFakeRecorder(100), members: map[types.NamespacedName]string{}}
	w.trust = newHolder(t, w.clock)
	hub := &config.Config{Server: config.Server{URLs: []string{"https://hub.example.com"}}}
	w.settings = hub.AgentSettings(w.trust.Bundle)
	namespace := env.Workspace(t)
	t.Cleanup(func() { // the keeper looks at the agents of the whole hub, so the next test must not find these
		if err := env.Client.DeleteAllOf(context.Background(), &corev1.Secret{}, client.InNamespace(namespace)); err != nil {
			t.Error(err)
		}
	})
	secret := types.NamespacedName{Namespace: namespace, Name: trust.AuthoritySecret}
	w.loader = &authority.Loader{Client: env.Client, Live: env.Client, Trust: w.trust, Authority: secret, Now: w.clock.Now,
		Given: types.NamespacedName{Namespace: namespace, Name: "given"}}
	w.keeper = &authority.Keeper{Client: env.Client, Recorder: w.recorder, Secret: secret, Settings: w.settings, Now: w.clock.Now,
		Member: func(name types.NamespacedName) members.State {
			digest, ok := w.members[name]
			switch {
			case !ok:
				return members.State{Report: &protocol.Report{SettingsDigest: "of one that is away"}}
			case digest == "":
				return members.State{Peers: []members.Peer{{}}}
			}
			return members.State{Peers: []members.Peer{{}}, Report: &protocol.Report{SettingsDigest: digest}}
		}}
	return w
}

func newHolder(t *testing.T, clock *testkit.Clock) *trust.Holder {
	t.Helper()
	holder, err := trust.New([]string{"https://hub.example.com"}, nil, clock.Now)
	if err != nil {
		t.Fatal(err)
	}
	return holder
}

// load calls the loader.
func (w *world) load() {
	w.t.Helper()
	if _, err := w.loader.Reconcile(w.t.Context(), ctrl.Request{NamespacedName: w.loader.Authority}); err != nil {
		w.t.Fatal(err)
	}
}

// keep calls the keeper and then the loader, as the event for the write would.
func (w *world) keep() ctrl.Result {
	w.t.Helper()
	result, err := w.keeper.Reconcile(w.t.Context(), ctrl.Request{NamespacedName: w.keeper.Secret})
	if err != nil {
		w.t.Fatal(err)
	}
	w.load()
	return result
}

func (w *world) secret() *corev1.Secret {
	w.t.Helper()
	secret := &corev1.Secret{}
	if err := w.Client.Get(w.t.Context(), w.keeper.Secret, secret); err != nil {
		w.t.Fatal(err)
	}
	return secret
}

func (w *world) state() trust.State {
	w.t.Helper()
	state, err := trust.ReadSecret(w.secret())
	if err != nil {
		w.t.Fatal(err)
	}
	return state
}

func (w *world) annotate(key, value string) {
	w.t.Helper()
	secret := w.secret()
	metav1.SetMetaDataAnnotation(&secret.ObjectMeta, key, value)
	if err := w.Client.Update(w.t.Context(), secret); err != nil {
		w.t.Fatal(err)
	}
}

// member creates a Cluster that an agent has joined.
func (w *world) member(name string, spec v1.ClusterSpec) types.NamespacedName {
	w.t.Helper()
	cluster := &v1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: w.keeper.Secret.Namespace, Name: name}, Spec: spec}
	w.Apply(w.t, cluster)
	join(w.t, w.Env, cluster)
	return types.NamespacedName{Namespace: cluster.Namespace, Name: name}
}

// join writes the identity of a Cluster's agent, in the same way as the registration server.
func join(t *testing.T, env *testkit.Env, cluster *v1.Cluster) members.Peer {
	t.Helper()
	key := testkit.Key(t).Public().(ed25519.PublicKey)
	secret := &corev1.Secret{}
	registration.WriteIdentity(secret, cluster, registration.AgentIdentity{PublicKey: key, ClusterUID: "member-uid", OwnerUID: cluster.UID, Joined: time.Now()})
	env.Apply(t, secret)
	return members.Peer{Cluster: protocol.ClusterRef{Namespace: cluster.Namespace, Name: cluster.Name, UID: string(cluster.UID)}, Key: registration.KeyID(key)}
}

// changed requests a change and returns the authorities before and after it.
func (w *world) changed(value string) (before, after trust.KeyPair) {
	w.t.Helper()
	w.load()
	w.load()
	before = w.state().Active
	w.annotate(v1.AnnotationRotate, value)
	w.keep()
	if after = w.state().Active; string(after.Cert) == string(before.Cert) {
		w.t.Fatalf("not changed: %s", w.secret().Annotations)
	}
	w.verifies(after, true)
	return before, after
}

// verifies checks whether a client that trusts a given authority can verify the hub.
func (w *world) verifies(authority trust.KeyPair, want bool) {
	w.t.Helper()
	if got := signedBy(w.t, w.trust, authority); got != want {
		w.t.Errorf("a client of the authority verifies the hub: %t, want %t", got, want)
	}
}

func signedBy(t *testing.T, holder *trust.Holder, authority trust.KeyPair) bool {
	t.Helper()
	cert, err := holder.GetCertificate(&tls.ClientHelloInfo{})
	if err != nil {
		t.Fatal(err)
	}
	roots, between := x509.NewCertPool(), x509.NewCertPool()
	roots.AppendCertsFromPEM(authority.Cert)
	for _, der := range cert.Certificate[1:] {
		bridge, err := x509.ParseCertificate(der)
		if err != nil {
			t.Fatal(err)
		}
		between.AddCert(bridge)
	}
	_, err = cert.Leaf.Verify(x509.VerifyOptions{Roots: roots, Intermediates: between, DNSName: "hub.example.com", CurrentTime: cert.Leaf.NotBefore.Add(time.Hour)})
	return err == nil
}

func TestMain(m *testing.M) { testkit.Main(m) }

func TestAuthority(t *testing.T) {
	env := testkit.Shared(t)
	for name, test := range map[string]func(*world){
		"of several replicas that start at once one makes the first CA":     testFirst,
		"an authority that is in order is left alone":                       testIdle,
		"a member that is away holds up no change":                          testAway,
		"a revocation waits for connected members, not forever":             testRevoked,
		"a revocation waits for connected hosts, too":                       testHosts,
		"a revocation is for one change only":                               testRevokedOnce,
		"a request counts once":                                             testRequestedOnce,
		"a replaced authority is announced for 30 days and verifies on":     testRetired,
		"an authority that is about to end is replaced without being asked": testRenewed,
		"two keepers at once do no harm":                                    testTwoKeepers,
		"the Secret, once deleted, comes back with the same authority":      testDeleted,
		"a Secret that was emptied makes no new authority":                  testEmptied,
		"the hub's identity is written once and comes with the backup":      testIdentity,
		"the operator's own certificate is served and its CA is announced":  testGiven,
		"an invalid Secret of the operator leaves the hub's own in service": testBadGiven,
	} {
		t.Run(name, func(t *testing.T) { test(newWorld(t, env)) })
	}
}

func testFirst(w *world) {
	const replicas = 5
	holders := make([]*trust.Holder, replicas)
	var all sync.WaitGroup
	for i := range replicas {
		holders[i] = newHolder(w.t, w.clock)
		loader := &authority.Loader{Client: w.Client, Live: w.Client, Trust: holders[i], Authority: w.loader.Authority, Now: w.clock.Now}
		all.Go(func() {
			for range 2 { // creates it, loads it
				if _, err := loader.Reconcile(w.t.Context(), ctrl.Request{NamespacedName: loader.Authority}); err != nil {
					w.t.Error(err)
				}
			}
		})
	}
	all.Wait()
	for i, holder := range holders {
		if string(holder.Bundle()) != string(w.state().Active.Cert) {
			w.t.Errorf("replica %d has a CA of its own", i)
		}
	}
}

func testIdle(w *world) {
	w.load()
	w.load()
	before := w.secret().ResourceVersion
	if result := w.keep(); result.RequeueAfter <= 0 || result.RequeueAfter > 24*time.Hour {
		w.t.Errorf("looks again after %s", result.RequeueAfter)
	}
	if after := w.secret().ResourceVersion; after != before || len(w.recorder.Events) > 0 {
		w.t.Errorf("written: %s -> %s, %d events", before, after, len(w.recorder.Events))
	}
}

func testAway(w *world) {
	w.member("away", v1.ClusterSpec{})
	before, _ := w.changed("1")
	w.verifies(before, true)
	if e := <-w.recorder.Events; !strings.Contains(e, "Change: a change was requested") || !strings.Contains(e, "/v1/cacerts") {
		w.t.Errorf("event %q", e)
	}
}

// testHosts: a rotation ends only when the agents of machines also trust the new authority.
func testHosts(w *world) {
	host := &v1.Host{ObjectMeta: metav1.ObjectMeta{Namespace: w.keeper.Secret.Namespace, Name: "rack1"}}
	w.Apply(w.t, host)
	secret := &corev1.Secret{}
	registration.WriteIdentity(secret, host, registration.AgentIdentity{
		PublicKey: testkit.Key(w.t).Public().(ed25519.PublicKey), ClusterUID: "machine", OwnerUID: host.UID, Joined: time.Now()})
	w.Apply(w.t, secret)
	name := types.NamespacedName{Namespace: host.Namespace, Name: protocol.HostMember(host.Name)}
	w.members[name] = "an old digest"
	before, _ := w.changed("1")
	<-w.recorder.Events
	w.annotate(v1.AnnotationRetireNow, "1")
	w.keep()
	if e := <-w.recorder.Events; !strings.Contains(e, "waiting for 1 connected member(s)") || !strings.Contains(e, name.String()) {
		w.t.Errorf("event %q", e)
	}
	w.verifies(before, true)
	w.members[name] = w.settings().Digest()
	w.keep()
	w.verifies(before, false)
}

// testRevoked: the trust of an agent was set by the manifest when it was applied, so a spec with System proves nothing.
func testRevoked(w *world) {
	w.member("away", v1.ClusterSpec{})
	here, mute := w.member("here", v1.ClusterSpec{Agent: v1.Agent{Trust: v1.TrustSystem}}), w.member("mute", v1.ClusterSpec{})
	w.members[here], w.members[mute] = "an old digest", ""
	before, after := w.changed("1")
	<-w.recorder.Events
	w.annotate(v1.AnnotationRetireNow, "another change")
	w.keep()
	w.verifies(before, true)
	w.annotate(v1.AnnotationRetireNow, "1")
	w.keep()
	w.verifies(before, true)
	w.members[here] = w.settings().Digest()
	w.keep()
	for _, want := range []string{"waiting for 2 connected member(s)", "waiting for 1 connected member(s)"} {
		if e := <-w.recorder.Events; !strings.Contains(e, want) {
			w.t.Errorf("event %q, want %q", e, want)
		}
	}
	w.verifies(before, true)
	w.clock.Advance(trust.RevokePatience)
	w.keep()
	w.verifies(before, false)
	w.verifies(after, true)
	if string(w.trust.Bundle()) != string(after.Cert) {
		w.t.Error("agents are still to trust the old one")
	}
}

func testRevokedOnce(w *world) {
	before, _ := w.changed("1")
	w.annotate(v1.AnnotationRetireNow, "1")
	w.keep()
	w.verifies(before, false)
	if _, still := w.secret().Annotations[v1.AnnotationRetireNow]; still {
		w.t.Error("the next renewal, years from now, is a revocation as well")
	}
	second := w.state().Active
	w.clock.Advance(trust.AuthorityLifetime - trust.RenewBefore + time.Hour)
	w.keep()
	w.keep()
	w.verifies(second, true)
	if string(w.state().Active.Cert) == string(second.Cert) {
		w.t.Error("no renewal")
	}
}

func testRequestedOnce(w *world) {
	_, after := w.changed("1")
	for range 3 {
		w.keep()
	}
	if string(w.state().Active.Cert) != string(after.Cert) {
		w.t.Error("it is changed again and again")
	}
	w.changed("2")
}

func testRetired(w *world) {
	before, after := w.changed("1")
	certs := func() int {
		all, err := protocol.ParseBundle(w.trust.Bundle())
		if err != nil {
			w.t.Fatal(err)
		}
		return len(all)
	}
	w.clock.Advance(trust.RetireAfter - time.Hour)
	if result := w.keep(); certs() != 2 || !strings.Contains(string(w.trust.Bundle()), string(before.Cert)) || result.RequeueAfter != time.Hour {
		w.t.Errorf("%d certificates, looks again after %s", certs(), result.RequeueAfter)
	}
	w.clock.Advance(time.Hour)
	w.keep()
	if certs() != 1 {
		w.t.Errorf("%d certificates", certs())
	}
	w.verifies(after, true)
	w.verifies(before, true)
}

func testRenewed(w *world) {
	w.load()
	w.load()
	first := w.state().Active
	w.clock.Advance(trust.AuthorityLifetime - trust.RenewBefore - time.Hour)
	w.keep()
	if string(w.state().Active.Cert) != string(first.Cert) {
		w.t.Error("renewed too early")
	}
	w.member("away", v1.ClusterSpec{})
	w.clock.Advance(2 * time.Hour)
	w.keep()
	if string(w.state().Active.Cert) == string(first.Cert) {
		w.t.Error("not renewed")
	}
	w.verifies(first, true) // kubeconfigs have the rest of the year
	w.clock.Advance(trust.RenewBefore - 2*time.Hour)
	w.keep()
	w.verifies(w.state().Active, true)
}

func testTwoKeepers(w *world) {
	first, _ := w.changed("1")
	for round := range 5 {
		before := w.state().Active
		w.annotate(v1.AnnotationRotate, strings.Repeat("x", round+2))
		errs := make(chan error, 8)
		var all sync.WaitGroup
		for range cap(errs) {
			keeper := *w.keeper // a former leader that does not know yet that it has lost the leadership
			all.Go(func() {
				_, err := keeper.Reconcile(w.t.Context(), ctrl.Request{NamespacedName: keeper.Secret})
				errs <- err
			})
		}
		all.Wait()
		close(errs)
		for err := range errs {
			if err != nil && !apierrors.IsConflict(err) {
				w.t.Error(err)
			}
		}
		// The second keeper saw the write of the first keeper or got a conflict, so only one step was taken.
		w.load()
		if old := w.state().Old; string(old) != string(before.Cert) {
			w.t.Fatalf("round %d: not one change was made", round)
		}
		w.verifies(before, true)
	}
	w.verifies(first, true)
	if strings.Contains(string(w.trust.Bundle()), string(first.Cert)) {
		w.t.Error("the bundle grows with each change")
	}
}

func testDeleted(w *world) {
	w.load()
	w.load()
	before := w.state()
	if err := w.Client.Delete(w.t.Context(), w.secret()); err != nil {
		w.t.Fatal(err)
	}
	if _, err := w.keeper.Reconcile(w.t.Context(), ctrl.Request{NamespacedName: w.keeper.Secret}); err != nil {
		w.t.Fatal(err)
	}
	w.load()
	if after := w.state(); string(after.Active.Cert) != string(before.Active.Cert) || string(after.Active.Key) != string(before.Active.Key) {
		w.t.Error("it comes back with another authority: every agent is stranded")
	}
}

func testEmptied(w *world) {
	w.load()
	w.load()
	before := w.state()
	secret := w.secret()
	secret.Data = nil
	if err := w.Client.Update(w.t.Context(), secret); err != nil {
		w.t.Fatal(err)
	}
	if _, err := w.keeper.Reconcile(w.t.Context(), ctrl.Request{NamespacedName: w.keeper.Secret}); err == nil || !strings.Contains(err.Error(), "delete it") {
		w.t.Errorf("keeper: %v", err)
	}
	if _, err := w.loader.Reconcile(w.t.Context(), ctrl.Request{NamespacedName: w.keeper.Secret}); err == nil {
		w.t.Error("an empty authority was loaded")
	}
	if !signedBy(w.t, w.trust, before.Active) {
		w.t.Error("what was loaded before does not serve any more")
	}
}

// testIdentity: an earlier version had no identity in the Secret, but used the identity of the hub's cluster. A Secret
// from a backup has the identity of another cluster.
func testIdentity(w *world) {
	system := &corev1.Namespace{}
	if err := w.Client.Get(w.t.Context(), types.NamespacedName{Name: "kube-system"}, system); err != nil {
		w.t.Fatal(err)
	}
	first := "drover-hub:" + string(system.UID)
	with := func(identity string) {
		w.t.Helper()
		secret := w.secret()
		secret.Data["identity"] = []byte(identity)
		if err := w.Client.Update(w.t.Context(), secret); err != nil {
			w.t.Fatal(err)
		}
	}
	expect := func(after, want string) {
		w.t.Helper()
		if got := w.state().Identity; got != want || w.trust.Identity() != want {
			w.t.Errorf("after %s the Secret has the identity %q, and %q is in force; want %q", after, got, w.trust.Identity(), want)
		}
	}
	w.load()
	w.load()
	expect("the first start", first)
	w.trust = newHolder(w.t, w.clock)
	w.loader.Trust = w.trust
	with("")
	w.load()
	w.load()
	expect("an update", first)
	with("drover-hub:from-a-backup")
	w.load()
	expect("a restore", "drover-hub:from-a-backup")
	with("")
	w.load()
	w.load()
	expect("an edit that removes it", "drover-hub:from-a-backup")
	with("malformed identity")
	if _, err := w.loader.Reconcile(w.t.Context(), ctrl.Request{NamespacedName: w.loader.Authority}); err == nil || w.trust.Identity() != "drover-hub:from-a-backup" {
		w.t.Errorf("a malformed identity: %v, and %q is in force", err, w.trust.Identity())
	}
	w.loader.Trust = newHolder(w.t, w.clock)
	if _, err := w.loader.Reconcile(w.t.Context(), ctrl.Request{NamespacedName: w.loader.Authority}); err == nil || w.loader.Trust.Ready() == nil {
		w.t.Errorf("a hub that starts with a malformed identity: %v, and it serves", err)
	}
}

// give writes an operator's Secret with a certificate from a CA and calls the loader.
func (w *world) give(ca trust.KeyPair, change func(*corev1.Secret)) error {
	w.t.Helper()
	cert, err := trust.IssueServing(ca, []string{"hub.example.com"}, w.clock.Now())
	if err != nil {
		w.t.Fatal(err)
	}
	key, err := x509.MarshalPKCS8PrivateKey(cert.PrivateKey)
	if err != nil {
		w.t.Fatal(err)
	}
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: w.loader.Given.Namespace, Name: w.loader.Given.Name}, Data: map[string][]byte{
		"tls.crt": pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert.Certificate[0]}),
		"tls.key": pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key}),
		"ca.crt":  ca.Cert,
	}}
	change(secret)
	w.Apply(w.t, secret)
	_, err = w.loader.Reconcile(w.t.Context(), ctrl.Request{NamespacedName: w.loader.Given})
	return err
}

func (w *world) operatorsCA() trust.KeyPair {
	w.t.Helper()
	ca, err := trust.NewAuthority(w.clock.Now())
	if err != nil {
		w.t.Fatal(err)
	}
	return ca
}

func testGiven(w *world) {
	w.trust.AwaitGiven()
	w.load()
	w.load()
	if w.trust.Ready() == nil {
		w.t.Error("serves before it has looked for the operator's certificate")
	}
	ca := w.operatorsCA()
	if err := w.give(ca, func(*corev1.Secret) {}); err != nil {
		w.t.Fatal(err)
	}
	if !signedBy(w.t, w.trust, ca) || !strings.Contains(string(w.trust.Bundle()), string(ca.Cert)) || w.trust.Ready() != nil {
		w.t.Error("it is not served or not announced")
	}
}

func testBadGiven(w *world) {
	w.trust.AwaitGiven()
	w.load()
	w.load()
	if _, err := w.loader.Reconcile(w.t.Context(), ctrl.Request{NamespacedName: w.loader.Given}); err != nil {
		w.t.Fatal(err)
	}
	if err := errors.Join(w.trust.Ready(), w.trust.Wait(w.t.Context())); err != nil {
		w.t.Errorf("a Secret that is not there is waited for: %v", err)
	}
	if err := w.give(w.operatorsCA(), func(s *corev1.Secret) { s.Data["tls.key"] = []byte("x") }); err == nil || strings.Contains(err.Error(), "PRIVATE") {
		w.t.Errorf("load: %v", err)
	}
	if !signedBy(w.t, w.trust, w.state().Active) {
		w.t.Error("nothing is served")
	}
}
