// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package signin

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/index"
	"github.com/drover-dev/drover/internal/signin/connector"
	"github.com/drover-dev/drover/internal/signin/upstream"
	"github.com/drover-dev/drover/test/githubtest"
	"github.com/drover-dev/drover/test/testkit"
)

// asked is an AuthProvider together with the controller that checks it.
type asked struct {
	*Providers
	env      *testkit.Env
	t        *testing.T
	provider *v1.AuthProvider
	secret   *corev1.Secret
	clock    time.Time
}

// ask adds an AuthProvider whose Secret contains the value under the key "secret".
func ask(t *testing.T, value string, spec v1.AuthProviderSpec) *asked {
	t.Helper()
	env := testkit.Shared(t)
	a := &asked{env: env, t: t, clock: start}
	namespace := env.Workspace(t)
	a.Providers = &Providers{Client: env.Client, Recorder: events.NewFakeRecorder(10), Connectors: &upstream.Connectors{Reader: env.Client, Namespace: namespace}, Now: func() time.Time { return a.clock }}
	a.secret = &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "upstream", Labels: map[string]string{v1.LabelSecretKind: v1.SecretKindProvider}},
		Data: map[string][]byte{"secret": []byte(value)}}
	env.Apply(t, a.secret)
	a.provider = &v1.AuthProvider{ObjectMeta: metav1.ObjectMeta{Name: "p-" + namespace}, Spec: spec}
	env.Apply(t, a.provider)
	t.Cleanup(func() { _ = env.Client.Delete(context.Background(), a.provider) })
	return a
}

// ready reconciles, and returns the condition and the time until the provider is checked again.
func (a *asked) ready() (metav1.Condition, time.Duration) {
	a.t.Helper()
	result, err := a.Reconcile(a.t.Context(), ctrl.Request{NamespacedName: types.NamespacedName{Name: a.provider.Name}})
	if err != nil {
		a.t.Fatal(err)
	}
	if err := a.Client.Get(a.t.Context(), client.ObjectKeyFromObject(a.provider), a.provider); err != nil {
		a.t.Fatal(err)
	}
	c := meta.FindStatusCondition(a.provider.Status.Conditions, v1.ConditionReady)
	if c == nil || c.ObservedGeneration != a.provider.Generation || a.provider.Status.ObservedGeneration != a.provider.Generation || a.provider.Status.Type == "" || c.Message == "" {
		a.t.Fatalf("the status is %+v", a.provider.Status)
	}
	return *c, result.RequeueAfter
}

func (a *asked) change(change func(*v1.AuthProvider)) {
	a.t.Helper()
	testkit.Update(a.t, a.Client, a.provider, change)
}

var upstreamSecret = v1.ProviderSecret{Name: "upstream", Key: "secret"}

// openIDProvider starts a provider that describes itself with the given issuer.
func openIDProvider(t *testing.T, issuer func(own string) string) v1.AuthProviderSpec {
	t.Helper()
	var own *httptest.Server
	own = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(map[string]string{"issuer": issuer(own.URL), "authorization_endpoint": own.URL + "/a", "token_endpoint": own.URL + "/t", "jwks_uri": own.URL + "/k"})
	}))
	t.Cleanup(own.Close)
	return v1.AuthProviderSpec{OIDC: &v1.OIDCProvider{URL: own.URL, CABundle: bundle(own), ClientID: "drover", ClientSecret: upstreamSecret}}
}

func bundle(server *httptest.Server) string {
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}))
}

func itself(own string) string { return own }

func TestAuthProviderStatusReportsReachability(t *testing.T) {
	gitHub := func(t *testing.T) v1.AuthProviderSpec {
		g := githubtest.Start(t)
		return v1.AuthProviderSpec{GitHub: &v1.GitHubProvider{URL: g.URL, CABundle: bundle(g.Server), ClientID: githubtest.ClientID, ClientSecret: upstreamSecret, Organizations: []string{"acme"}}}
	}
	directory := func(*testing.T) v1.AuthProviderSpec {
		return v1.AuthProviderSpec{LDAP: &v1.LDAPProvider{Servers: []string{"ldaps://127.0.0.1:1"}, Bind: v1.LDAPBind{DN: "cn=drover", PasswordSecret: upstreamSecret},
			UserSearch:  v1.LDAPUserSearch{Base: "dc=acme", Filter: "(uid={name})", IDAttribute: "entryUUID", NameAttribute: "uid"},
			GroupSearch: v1.LDAPGroupSearch{Source: "Search", Base: "dc=acme", Filter: "(member={dn})"}}}
	}
	openID := func(t *testing.T) v1.AuthProviderSpec { return openIDProvider(t, itself) }
	for name, tt := range map[string]struct {
		spec   func(*testing.T) v1.AuthProviderSpec
		value  string
		change func(*asked)
		kind   string
		reason string
		says   string
	}{
		"an OpenID provider that answers": {openID, "s", nil, "OIDC", v1.ReasonReachable, "answers"},
		"one that is another issuer": {func(t *testing.T) v1.AuthProviderSpec {
			return openIDProvider(t, func(string) string { return "https://other.example.com" })
		}, "s", nil, "OIDC", v1.ReasonUnreachable, "https://other.example.com"},
		"one whose certificate is of another authority": {openID, "s", func(a *asked) {
			a.change(func(p *v1.AuthProvider) { p.Spec.OIDC.CABundle = "" })
		}, "OIDC", v1.ReasonUnreachable, "certificate"},
		"one at which nothing listens": {openID, "s", func(a *asked) { a.change(func(p *v1.AuthProvider) { p.Spec.OIDC.URL = "https://127.0.0.1:1" }) }, "OIDC", v1.ReasonUnreachable, "refused"},
		"a bundle of no certificates":  {openID, "s", func(a *asked) { a.change(func(p *v1.AuthProvider) { p.Spec.OIDC.CABundle = "x" }) }, "OIDC", v1.ReasonInvalid, "no certificate in PEM"},
		"no Secret": {openID, "s", func(a *asked) {
			if err := a.Client.Delete(a.t.Context(), a.secret); err != nil {
				a.t.Fatal(err)
			}
		}, "OIDC", v1.ReasonSecretMissing, "does not exist"},
		"a Secret for something else": {openID, "s", func(a *asked) {
			testkit.Update(a.t, a.Client, a.secret, func(s *corev1.Secret) { s.Labels = nil })
		}, "OIDC", v1.ReasonSecretMissing, "lacks the label"},
		"a Secret without the key":                 {openID, "", nil, "OIDC", v1.ReasonSecretMissing, "has no key secret"},
		"switched off, and broken":                 {openID, "", func(a *asked) { a.change(func(p *v1.AuthProvider) { p.Spec.Disabled = true }) }, "OIDC", v1.ReasonDisabled, "No login"},
		"GitHub":                                   {gitHub, githubtest.ClientSecret, nil, "GitHub", v1.ReasonReachable, "answers"},
		"GitHub with a wrong client secret":        {gitHub, "hunter2-hunter2", nil, "GitHub", v1.ReasonUnreachable, "client secret"},
		"GitHub with a client secret of two lines": {gitHub, "hunter2-hunter2\n", nil, "GitHub", v1.ReasonInvalid, "secret"},
		"a directory at which nothing listens":     {directory, "hunter2-hunter2", nil, "LDAP", v1.ReasonUnreachable, "127.0.0.1:1"},
		"a directory with a filter that lets all in": {directory, "hunter2-hunter2", func(a *asked) {
			a.change(func(p *v1.AuthProvider) { p.Spec.LDAP.UserSearch.Filter = "(!(uid={name}))" })
		}, "LDAP", v1.ReasonInvalid, "filter"},
	} {
		t.Run(name, func(t *testing.T) {
			a := ask(t, tt.value, tt.spec(t))
			if tt.change != nil {
				tt.change(a)
			}
			c, again := a.ready()
			ok := tt.reason == v1.ReasonReachable || tt.reason == v1.ReasonDisabled
			if c.Reason != tt.reason || (c.Status == metav1.ConditionTrue) != ok || !strings.Contains(c.Message, tt.says) || a.provider.Status.Type != tt.kind {
				t.Errorf("the condition is %s %s %q of a provider of type %s; want %s %q", c.Status, c.Reason, c.Message, a.provider.Status.Type, tt.reason, tt.says)
			}
			if stalled := meta.IsStatusConditionTrue(a.provider.Status.Conditions, v1.ConditionStalled); stalled != (tt.reason == v1.ReasonInvalid) {
				t.Errorf("the provider is stalled: %t", stalled)
			}
			if strings.Contains(c.Message, "hunter2") || strings.Contains(c.Message, githubtest.ClientSecret) {
				t.Errorf("the message has the secret: %s", c.Message)
			}
			if want := map[bool]time.Duration{true: checkEvery, false: checkSoon}[ok]; again != want && tt.reason != v1.ReasonDisabled || again != 0 && tt.reason == v1.ReasonDisabled {
				t.Errorf("it is asked again after %s", again)
			}
			written := a.provider.ResourceVersion
			if a.ready(); a.provider.ResourceVersion != written {
				t.Error("a status that did not change was written")
			}
		})
	}
}

func TestUnreachableProviderIsAskedLessOften(t *testing.T) {
	a := ask(t, "s", openIDProvider(t, itself))
	url := a.provider.Spec.OIDC.URL
	a.change(func(p *v1.AuthProvider) { p.Spec.OIDC.URL = "https://127.0.0.1:1" })
	var waits []time.Duration
	for range 8 {
		_, again := a.ready()
		waits = append(waits, again/time.Second)
		a.clock = a.clock.Add(again)
	}
	if want := []time.Duration{10, 10, 20, 40, 80, 160, 300, 300}; !slices.Equal(waits, want) {
		t.Errorf("it is asked after %d s, want %d s", waits, want)
	}
	a.change(func(p *v1.AuthProvider) { p.Spec.OIDC.URL = url })
	if c, again := a.ready(); c.Reason != v1.ReasonReachable || again != checkEvery || !c.LastTransitionTime.Time.Equal(a.clock) {
		t.Errorf("once it answers the condition is %+v, and it is asked after %s", c, again)
	}
	a.change(func(p *v1.AuthProvider) { p.Spec.OIDC.URL = "https://127.0.0.1:1" })
	if _, again := a.ready(); again != checkSoon {
		t.Errorf("when it goes away again, it is asked after %s", again)
	}
}

func TestDisabledProviderIsNotAsked(t *testing.T) {
	var requests atomic.Int32
	a := ask(t, "s", openIDProvider(t, func(own string) string { requests.Add(1); return own }))
	a.change(func(p *v1.AuthProvider) { p.Spec.Disabled = true })
	if c, _ := a.ready(); c.Reason != v1.ReasonDisabled || requests.Load() != 0 {
		t.Errorf("the condition is %s after %d requests", c.Reason, requests.Load())
	}
	a.change(func(p *v1.AuthProvider) { p.Spec.Disabled = false })
	if c, _ := a.ready(); c.Reason != v1.ReasonReachable || requests.Load() != 1 {
		t.Errorf("once it is switched on the condition is %s after %d requests", c.Reason, requests.Load())
	}
}

func TestSecretWakesTheProvidersThatNameIt(t *testing.T) {
	a := ask(t, "s", openIDProvider(t, itself))
	other := a.secret.DeepCopy()
	other.Name = "another"
	foreign := a.secret.DeepCopy()
	foreign.Namespace = "default"
	unlabelled := a.secret.DeepCopy()
	unlabelled.Labels = nil
	for _, tt := range []struct {
		old, next *corev1.Secret
		woken     int
	}{{a.secret, a.secret, 1}, {unlabelled, a.secret, 1}, {a.secret, unlabelled, 1}, {unlabelled, unlabelled, 0}, {other, other, 0}, {foreign, foreign, 0}} {
		q := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[reconcile.Request]())
		a.Handler().Update(t.Context(), event.UpdateEvent{ObjectOld: tt.old, ObjectNew: tt.next}, q)
		var names []string
		for range q.Len() {
			request, _ := q.Get()
			names = append(names, request.Name)
		}
		q.ShutDown()
		if own := slices.Index(names, a.provider.Name) >= 0; own != (tt.woken == 1) {
			t.Errorf("%s/%s %v wakes %v", tt.next.Namespace, tt.next.Name, tt.next.Labels, names)
		}
	}
}

// A deleted provider leaves no connector with its secret, and a provider that was created again is checked with its
// current spec.
func TestConnectorIsRemovedWithItsProviderOrSecret(t *testing.T) {
	a := ask(t, "s", openIDProvider(t, itself))
	of := func() connector.Connector {
		t.Helper()
		made, err := a.Connectors.Get(t.Context(), a.provider)
		if err != nil {
			t.Fatal(err)
		}
		return made
	}
	first := of()
	if of() != first {
		t.Error("each call makes a connector, and none knows what the one before has learned")
	}
	testkit.Update(t, a.Client, a.secret, func(s *corev1.Secret) { s.Data["secret"] = []byte("next") })
	second := of()
	if second == first {
		t.Error("a new client secret is not used")
	}
	a.change(func(p *v1.AuthProvider) { p.Spec.OIDC.ClientID = "other" })
	third := of()
	if third == second {
		t.Error("a new spec is not used")
	}
	if err := a.Client.Delete(t.Context(), a.provider); err != nil {
		t.Fatal(err)
	}
	if _, err := a.Reconcile(t.Context(), ctrl.Request{NamespacedName: types.NamespacedName{Name: a.provider.Name}}); err != nil {
		t.Fatal(err)
	}
	if of() == third {
		t.Error("the connector of a provider that was deleted stays")
	}
	again := &v1.AuthProvider{ObjectMeta: metav1.ObjectMeta{Name: a.provider.Name}, Spec: *a.provider.Spec.DeepCopy()}
	fourth := of()
	again.Spec.OIDC.ClientID = "drover"
	a.env.Apply(t, again)
	former := a.provider.Generation
	a.provider = again
	a.change(func(p *v1.AuthProvider) { p.Spec.OIDC.ClientID = "other" })
	if again.Generation != former {
		t.Fatalf("it has the generation %d, not %d as the former", again.Generation, former)
	}
	if of() == fourth {
		t.Error("a provider that was made again has the connector of the former")
	}
}

func TestOnlyADisabledUserRefusesAPrincipal(t *testing.T) {
	env := testkit.Shared(t)
	reader, suffix := env.Indexed(t, index.Users), "-of-"+env.Workspace(t)
	for name, spec := range map[string]v1.UserSpec{
		"off":     {Principal: "okta:alice" + suffix, Disabled: true},
		"on":      {Principal: "okta:bob" + suffix},
		"once":    {Principal: "okta:carol" + suffix},
		"again":   {Principal: "okta:carol" + suffix, Disabled: true}, // one of several is enough
		"nothing": {Disabled: true},
	} {
		user := &v1.User{ObjectMeta: metav1.ObjectMeta{Name: name + suffix}, Spec: spec}
		env.Apply(t, user)
		t.Cleanup(func() { _ = env.Client.Delete(context.Background(), user) })
	}
	for principal, want := range map[string]bool{"okta:alice": true, "okta:bob": false, "okta:carol": true, "okta:dave": false, "ldap:alice": false, "okta:alic": false, "okta:ALICE": false} {
		if off, err := index.Disabled(t.Context(), reader, principal+suffix); err != nil || off != want {
			t.Errorf("%s is refused: %t (%v), want %t", principal, off, err, want)
		}
	}
	if _, err := index.Disabled(t.Context(), env.Client, "okta:alice"+suffix); err == nil {
		t.Error("without the index a principal is let in, and not an error")
	}
}
