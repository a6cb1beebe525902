// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package registration_test

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/config"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/registration"
	"github.com/drover-dev/drover/test/testkit"
)

const audience = "drover-hub:test"

func quiet() *log.Logger { return log.New(io.Discard, "", 0) }

// startCache starts a cache like the manager's, against a real API server.
func startCache(t *testing.T, env *testkit.Env) cache.Cache {
	t.Helper()
	cfg, err := config.Parse([]byte("{apiVersion: config.drover.dev/v1, kind: ManagerConfig, server: {urls: " +
		"[\"https://hub.example.com\"]}}"))
	if err != nil {
		t.Fatal(err)
	}
	options, err := cfg.ManagerOptions()
	if err != nil {
		t.Fatal(err)
	}
	options.Cache.Scheme = options.Scheme
	c, err := cache.New(env.Config, options.Cache)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.IndexField(t.Context(), &corev1.Secret{}, registration.TokenHashIndex,
		registration.IndexTokenHash); err != nil {
		t.Fatal(err)
	}
	if _, err := c.GetInformer(t.Context(), &v1.Cluster{}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- c.Start(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	if !c.WaitForCacheSync(t.Context()) {
		t.Fatal("the cache did not sync")
	}
	return c
}

// world is a namespace on a real API server, with a registration server in front of it.
type world struct {
	*testkit.Env
	t         *testing.T
	cache     cache.Cache
	clock     *testkit.Clock
	server    *registration.Server
	http      *httptest.Server
	namespace string

	mu      sync.Mutex // guards the fields below
	said    bytes.Buffer
	secrets []string
	refused []string
}

func newWorld(t *testing.T, env *testkit.Env, c cache.Cache) *world {
	t.Helper()
	w := &world{Env: env, t: t, cache: c, clock: testkit.NewClock(), namespace: env.Workspace(t)}
	ca := bundle(t)
	w.server = &registration.Server{
		Cache: c, Live: env.Client, Writer: env.Client, Audience: func() string {
			return audience
		}, Now: w.clock.Now, Log: w.logger(),
		Settings: func() protocol.Settings {
			return protocol.Settings{Servers: []string{"https://hub.example.com"}, CABundle: ca}
		},
		Refused: func(name types.NamespacedName, reason, message string) {
			w.say(message)
			w.mu.Lock()
			defer w.mu.Unlock()
			w.refused = append(w.refused, name.Name+" "+reason)
		},
	}
	w.server.Unproven = w.server.Refused
	mux := http.NewServeMux()
	w.server.Register(mux)
	mux.HandleFunc("GET "+protocol.PathConnect, func(rw http.ResponseWriter, r *http.Request) {
		if agent, ok := w.server.Authenticate(rw, r); ok {
			fmt.Fprint(rw, agent.Cluster, " ", agent.KeyID)
		}
	})
	w.http = httptest.NewServer(mux)
	t.Cleanup(func() {
		w.http.Close()
		w.mu.Lock()
		defer w.mu.Unlock()
		for _, secret := range w.secrets {
			if strings.Contains(w.said.String(), secret) {
				t.Errorf("a token is visible in a log, a response or an event:\n%s", w.said.String())
			}
		}
	})
	return w
}

// logger records everything that is logged, at any level.
func (w *world) logger() logr.Logger {
	return funcr.New(func(prefix, args string) { w.say(prefix + args) }, funcr.Options{Verbosity: 10})
}

// say records text that is visible to readers who must not see a token.
func (w *world) say(text string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.said.WriteString(text + "\n")
}

// secret makes the test fail if a token is visible where it must not be.
func (w *world) secret(token string) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.secrets = append(w.secrets, token)
	return token
}

// refusals returns the reported refusals as "cluster reason".
func (w *world) refusals() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return strings.Join(w.refused, ", ")
}

func (w *world) name(cluster string) types.NamespacedName {
	return types.NamespacedName{Namespace: w.namespace, Name: cluster}
}

// cluster creates a Cluster with a token, as its controller does, and waits until the cache contains it.
func (w *world) cluster(name string, change func(*registration.Token)) string {
	w.t.Helper()
	cluster := &v1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: name}}
	w.Apply(w.t, cluster)
	token := registration.Token{Value: registration.NewToken(), Created: w.clock.Now(), TTL: time.Hour}
	change(&token)
	w.applySecret(cluster, token)
	return w.secret(token.Value)
}

func (w *world) applySecret(cluster *v1.Cluster, token registration.Token) {
	w.t.Helper()
	applied := registration.ApplySecret(cluster, token, registration.Content{Manifest: []byte("the manifest")})
	if err := w.Client.Apply(w.t.Context(), applied, client.FieldOwner("drover"), client.ForceOwnership); err != nil {
		w.t.Fatal(err)
	}
	key := w.name(cluster.Name)
	w.cached(registration.RegistrationSecret(key), &corev1.Secret{}, func(o client.Object) bool {
		return string(o.(*corev1.Secret).Data[registration.KeyToken]) == token.Value &&
			o.GetOwnerReferences()[0].UID == cluster.UID
	})
	w.cached(key, &v1.Cluster{}, func(o client.Object) bool { return o.GetUID() == cluster.UID })
}

// cached waits until the object in the cache meets a condition.
func (w *world) cached(key types.NamespacedName, object client.Object, is func(client.Object) bool) {
	w.t.Helper()
	testkit.Eventually(w.t, 10*time.Second, func(ctx context.Context) error {
		if err := w.cache.Get(ctx, key, object); err != nil {
			return err
		}
		if !is(object) {
			return fmt.Errorf("%s does not meet the condition yet", key)
		}
		return nil
	})
}

// reply is a response of the server.
type reply struct {
	code   int
	body   string
	header http.Header
	reason string // from a protocol.Refusal
}

// send sends a request. The response must not contain a token, unless it is the manifest.
func (w *world) send(method, path, bearer string, body io.Reader) reply {
	w.t.Helper()
	req, err := http.NewRequestWithContext(w.t.Context(), method, w.http.URL+path, body)
	if err != nil {
		w.t.Fatal(err)
	}
	if bearer != "" {
		req.Header.Set("Authorization", "Bearer "+bearer)
	}
	resp, err := w.http.Client().Do(req)
	if err != nil {
		w.t.Error(err) // send is also called from other goroutines
		return reply{}
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		w.t.Error(err)
	}
	w.say(string(raw))
	var refusal protocol.Refusal
	_ = json.Unmarshal(raw, &refusal)
	return reply{code: resp.StatusCode, body: string(raw), header: resp.Header, reason: refusal.Reason}
}

func (w *world) register(token string, request protocol.RegisterRequest) reply {
	w.t.Helper()
	raw, err := json.Marshal(request)
	if err != nil {
		w.t.Fatal(err)
	}
	return w.send(http.MethodPost, protocol.PathRegister, token, bytes.NewReader(raw))
}

// join joins and returns the response to the agent.
func (w *world) join(token string, key ed25519.PrivateKey, member string) protocol.RegisterResponse {
	w.t.Helper()
	got := w.register(token, request(key, token, member))
	var response protocol.RegisterResponse
	if err := json.Unmarshal([]byte(got.body), &response); err != nil || got.code != http.StatusOK {
		w.t.Fatalf("join: %d %s, want 200 with JSON", got.code, got.body)
	}
	w.cached(registration.AgentSecret(w.name(response.Cluster.Name)), &corev1.Secret{}, func(o client.Object) bool {
		id, err := registration.ReadIdentity(o.(*corev1.Secret))
		return err == nil && bytes.Equal(id.PublicKey, publicKey(key))
	})
	return response
}

// connectToken returns the token with which an agent connects.
func (w *world) connectToken(key ed25519.PrivateKey, response protocol.RegisterResponse,
	change func(*protocol.ConnectClaims)) string {
	w.t.Helper()
	claims := protocol.ConnectClaims{ID: rand.Text(), Audience: response.Audience, Cluster: response.Cluster,
		ClusterUID: memberUID, IssuedAt: w.clock.Now()}
	change(&claims)
	token, err := protocol.SignConnectToken(key, claims)
	if err != nil {
		w.t.Fatal(err)
	}
	return w.secret(token)
}

func (w *world) connect(token string) reply {
	w.t.Helper()
	return w.send(http.MethodGet, protocol.PathConnect, token, nil)
}

// want fails the test unless the server responded with the code and, for a refusal, the reason.
func (w *world) want(got reply, code int, reason string) {
	w.t.Helper()
	if got.code != code || got.reason != reason {
		w.t.Errorf("response %d %q (%s), want %d %q", got.code, got.reason, strings.TrimSpace(got.body), code, reason)
	}
}

func asIs[T any](*T) {}

func TestMain(m *testing.M) { testkit.Main(m) }

func TestRegistrationServer(t *testing.T) {
	env := testkit.Shared(t)
	c := startCache(t, env)
	for name, test := range map[string]func(*world){
		"an agent joins, retries and connects":                                testJoin,
		"missing, malformed and unknown tokens get the same response":         testUnknownTokens,
		"an agent belongs to one Cluster at a time":                           testElsewhere,
		"an expired token is refused":                                         testExpiredToken,
		"a second cluster with a used token is refused and reported":          testSecondCluster,
		"a new token lets a rebuilt member join its Cluster again":            testRebuiltMember,
		"a token that two Clusters share identifies neither of them":          testSharedToken,
		"a Cluster that is being deleted accepts no agent":                    testDeleting,
		"bodies that are not a request are refused":                           testBodies,
		"exactly one of many clusters that race for a token wins":             testRace,
		"a client that hammers with a used token is rate limited":             testHammering,
		"an agent Secret that cannot be parsed identifies no agent":           testUnreadableIdentity,
		"the manifest is served to clients with a usable token":               testImport,
		"query parameters are refused":                                        testImportQuery,
		"a connect token is accepted once":                                    testReplay,
		"a connect token that opened a tunnel at another replica is refused":  testReplayElsewhere,
		"connect tokens for others are refused":                               testForeignConnectTokens,
		"a recreated Cluster refuses the former agent":                        testRecreated,
		"an agent must be adopted again after each restore":                   testAdopted,
		"a user's Secret in place of the agent's is reported on the Cluster":  testForeignAgent,
		"the Secret of a token is guarded before an agent joins with it":      testClaimedToken,
		"a token whose Secret was deleted in the meantime lets no agent join": testDeletedToken,
		"an agent that was revoked is refused":                                testRevoked,
		"an agent that has just joined connects although the cache lags":      testCacheLag,
		"forged connect tokens cost the API server little":                    testForgedTokens,
		"an API server that does not respond is reported as such":             testUnavailable,
	} {
		t.Run(name, func(t *testing.T) { test(newWorld(t, env, c)) })
	}
}

func testJoin(w *world) {
	token, key := w.cluster("member", asIs), testkit.Key(w.t)
	response := w.join(token, key, memberUID)
	if response.Cluster.Name != "member" || response.Cluster.Namespace != w.namespace || response.Cluster.UID == "" ||
		response.Audience != audience || response.Settings.Digest() != w.server.Settings().Digest() {
		w.t.Errorf("response %+v, want the hub's audience and settings", response)
	}
	again := w.join(token, key, memberUID)
	if again.Cluster != response.Cluster {
		w.t.Errorf("a retry joined as %+v, want the same Cluster", again.Cluster)
	}
	got := w.connect(w.connectToken(key, response, asIs))
	w.want(got, http.StatusOK, "")
	if got.body != w.namespace+"/member "+registration.KeyID(publicKey(key)) {
		w.t.Errorf("connected as %s, want the Cluster and the key's ID", got.body)
	}
	if w.refusals() != "" {
		w.t.Errorf("got refusals %s, want none", w.refusals())
	}
}

func testUnknownTokens(w *world) {
	w.cluster("member", asIs)
	var first reply
	for name, token := range map[string]string{
		"unknown":   registration.NewToken(),
		"short":     "short",
		"no token":  "../../etc",
		"very long": strings.Repeat("x", 10_000),
	} {
		got := w.register(token, request(testkit.Key(w.t), token, memberUID))
		w.want(got, http.StatusUnauthorized, v1.ReasonTokenInvalid)
		if first.body == "" {
			first = got
		}
		if got.body != first.body {
			w.t.Errorf("%s: got %s, want %s as for any other", name, got.body, first.body)
		}
	}
	w.want(w.send(http.MethodPost, protocol.PathRegister, "", strings.NewReader("{}")), http.StatusUnauthorized,
		v1.ReasonTokenInvalid)
	if w.refusals() != "" {
		w.t.Errorf("a client without a token is reported on %s, want on none", w.refusals())
	}
}

func testExpiredToken(w *world) {
	token := w.cluster("member", asIs)
	w.clock.Advance(24 * time.Hour)
	w.want(w.register(token, request(testkit.Key(w.t), token, memberUID)), http.StatusGone, v1.ReasonTokenExpired)
}

func testSecondCluster(w *world) {
	token, key := w.cluster("member", asIs), testkit.Key(w.t)
	response := w.join(token, key, memberUID)
	w.want(w.register(token, request(testkit.Key(w.t), token, "intruder-uid")), http.StatusForbidden,
		v1.ReasonIdentityMismatch)
	w.want(w.register(token, request(testkit.Key(w.t), token, memberUID)), http.StatusGone, v1.ReasonTokenUsed)
	if got := w.refusals(); got != "member IdentityMismatch, member TokenUsed" {
		w.t.Errorf("reported %q, want IdentityMismatch and then TokenUsed", got)
	}
	w.want(w.connect(w.connectToken(key, response, asIs)), http.StatusOK, "")
}

func testRebuiltMember(w *world) {
	former := testkit.Key(w.t)
	response := w.join(w.cluster("member", asIs), former, memberUID)
	cluster := &v1.Cluster{}
	if err := w.Client.Get(w.t.Context(), w.name("member"), cluster); err != nil {
		w.t.Fatal(err)
	}
	renewed := registration.Token{Value: w.secret(registration.NewToken()), Created: w.clock.Now(), TTL: time.Hour}
	w.applySecret(cluster, renewed)
	w.want(w.connect(w.connectToken(former, response, asIs)), http.StatusOK, "") // a new token alone revokes no agent
	rebuilt := testkit.Key(w.t)
	w.join(renewed.Value, rebuilt, "rebuilt-uid")
	w.want(w.connect(w.connectToken(rebuilt, response, func(c *protocol.ConnectClaims) { c.ClusterUID = "rebuilt-uid" })),
		http.StatusOK, "")
	w.want(w.connect(w.connectToken(former, response, asIs)), http.StatusGone, v1.ReasonAwaitingAgent)
}

func testSharedToken(w *world) {
	shared := registration.NewToken()
	choose := func(token *registration.Token) { token.Value = shared }
	w.cluster("a", choose)
	w.cluster("b", choose)
	w.want(w.register(shared, request(testkit.Key(w.t), shared, memberUID)), http.StatusUnauthorized,
		v1.ReasonTokenInvalid)
	w.want(w.send(http.MethodGet, protocol.PathImport+shared+".yaml", "", nil), http.StatusNotFound, "")
}

func testDeleting(w *world) {
	token := w.cluster("member", asIs)
	cluster := &v1.Cluster{}
	if err := w.Client.Get(w.t.Context(), w.name("member"), cluster); err != nil {
		w.t.Fatal(err)
	}
	cluster.Finalizers = []string{v1.FinalizerUninstall}
	if err := w.Client.Update(w.t.Context(), cluster); err != nil {
		w.t.Fatal(err)
	}
	if err := w.Client.Delete(w.t.Context(), cluster); err != nil {
		w.t.Fatal(err)
	}
	// The join is refused even before the cache has noticed, because the API server decides.
	w.want(w.register(token, request(testkit.Key(w.t), token, memberUID)), http.StatusGone, v1.ReasonRemoving)
	w.cached(w.name("member"), &v1.Cluster{}, func(o client.Object) bool { return o.GetDeletionTimestamp() != nil })
	w.want(w.register(token, request(testkit.Key(w.t), token, memberUID)), http.StatusGone, v1.ReasonRemoving)
	w.want(w.send(http.MethodGet, protocol.PathImport+token+".yaml", "", nil), http.StatusGone, "")
	if err := w.Client.Get(w.t.Context(), registration.AgentSecret(w.name("member")),
		&corev1.Secret{}); !apierrors.IsNotFound(err) {
		w.t.Errorf("read the agent's Secret: %v, want no agent to have joined", err)
	}
}

// watchedBody fails the test when it is read. A recorder beside it records the read deadline.
type watchedBody struct{ t *testing.T }

func (b watchedBody) Read([]byte) (int, error) {
	b.t.Error("the body of a client without a valid token was read")
	return 0, io.EOF
}

type deadlineRecorder struct {
	*httptest.ResponseRecorder
	deadline time.Time
}

func (r *deadlineRecorder) SetReadDeadline(t time.Time) error {
	r.deadline = t
	return nil
}

// CVE-2024-40634, CVE-2025-59531, CVE-2025-59836: a large, malformed or empty body from an unknown client crashes the
// server.
func testBodies(w *world) {
	token, key := w.cluster("member", asIs), testkit.Key(w.t)
	good, err := json.Marshal(request(key, token, memberUID))
	if err != nil {
		w.t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		body string
		code int
	}{
		"larger than 1 MiB": {
			`{"clusterUID":"` + strings.Repeat("x", protocol.MaxBody) + `"}`, http.StatusRequestEntityTooLarge,
		},
		"an unknown field": {strings.Replace(string(good), "{", `{"image":"evil",`, 1), http.StatusBadRequest},
		"two values":       {string(good) + string(good), http.StatusBadRequest},
		"not JSON":         {"hello", http.StatusBadRequest},
		"nested endlessly": {strings.Repeat("[", 500_000), http.StatusBadRequest},
		"empty":            {"", http.StatusBadRequest},
	} {
		if got := w.send(http.MethodPost, protocol.PathRegister, token, strings.NewReader(tc.body)); got.code != tc.code {
			w.t.Errorf("%s: %d %s, want another code", name, got.code, got.body)
		}
	}
	mux := http.NewServeMux()
	w.server.Register(mux)
	stranger := httptest.NewRequestWithContext(w.t.Context(), http.MethodPost, protocol.PathRegister, watchedBody{w.t})
	stranger.Header.Set("Authorization", "Bearer "+registration.NewToken())
	mux.ServeHTTP(httptest.NewRecorder(), stranger)

	recorder := &deadlineRecorder{ResponseRecorder: httptest.NewRecorder()}
	slow := httptest.NewRequestWithContext(w.t.Context(), http.MethodPost, protocol.PathRegister, bytes.NewReader(good))
	slow.Header.Set("Authorization", "Bearer "+token)
	mux.ServeHTTP(recorder, slow)
	if recorder.Code != http.StatusOK || recorder.deadline.IsZero() {
		w.t.Errorf("response %d, body deadline %s", recorder.Code, recorder.deadline)
	}
}

func testRace(w *world) {
	const rivals = 8 // within the limit for joins
	for round := range 5 {
		name := fmt.Sprintf("member-%d", round)
		token := w.cluster(name, asIs)
		if round%2 == 1 { // now for the place of an agent that joined with an earlier token
			w.former(name)
		}
		answers := make([]reply, rivals)
		keys := make([]ed25519.PrivateKey, rivals)
		var start, done sync.WaitGroup
		start.Add(1)
		for i := range rivals {
			keys[i] = testkit.Key(w.t)
			done.Go(func() {
				start.Wait()
				answers[i] = w.register(token, request(keys[i], token, fmt.Sprintf("member-%d", i)))
			})
		}
		start.Done()
		done.Wait()
		winner := -1
		for i, got := range answers {
			switch {
			case got.code == http.StatusOK && winner >= 0:
				w.t.Errorf("round %d: both %d and %d joined, want one", round, winner, i)
			case got.code == http.StatusOK:
				winner = i
			default:
				w.want(got, http.StatusForbidden, v1.ReasonIdentityMismatch)
			}
		}
		if winner < 0 {
			w.t.Fatalf("round %d: no agent joined", round)
		}
		secret := &corev1.Secret{}
		if err := w.Client.Get(w.t.Context(), registration.AgentSecret(w.name(name)), secret); err != nil {
			w.t.Fatal(err)
		}
		if id, err := registration.ReadIdentity(secret); err != nil || !bytes.Equal(id.PublicKey, publicKey(keys[winner])) {
			w.t.Errorf("round %d: %d was told that it joined, but another is the agent", round, winner)
		}
	}
}

// former writes the identity of an agent that joined the Cluster with another token.
func (w *world) former(name string) {
	w.t.Helper()
	cluster := &v1.Cluster{}
	if err := w.Client.Get(w.t.Context(), w.name(name), cluster); err != nil {
		w.t.Fatal(err)
	}
	secret := &corev1.Secret{}
	registration.WriteIdentity(secret, cluster, registration.AgentIdentity{PublicKey: publicKey(testkit.Key(w.t)),
		ClusterUID: "former-uid",
		TokenHash:  registration.HashToken("former"), OwnerUID: cluster.UID, Joined: w.clock.Now()})
	w.Apply(w.t, secret)
}

func testHammering(w *world) {
	token, key := w.cluster("member", asIs), testkit.Key(w.t)
	w.join(token, key, memberUID)
	live := counting(w)
	var busy reply
	for range 100 {
		if got := w.register(token, request(key, token, "intruder-uid")); got.code == http.StatusServiceUnavailable {
			busy = got
		}
	}
	if busy.header.Get("Retry-After") == "" {
		w.t.Error("no client was told to retry later")
	}
	if n := live.reads.Load(); n > 40 {
		w.t.Errorf("100 requests caused %d reads from the API server, want few", n)
	}
	if n := strings.Count(w.refusals(), "member"); n > 10 {
		w.t.Errorf("%d refusals were reported, want few", n)
	}
	other := w.cluster("other", asIs)
	w.join(other, testkit.Key(w.t), memberUID)
	w.clock.Advance(time.Minute)
	w.want(w.register(token, request(key, token, memberUID)), http.StatusOK, "")
}

func testUnreadableIdentity(w *world) {
	token, key := w.cluster("member", asIs), testkit.Key(w.t)
	cluster := &v1.Cluster{}
	if err := w.Client.Get(w.t.Context(), w.name("member"), cluster); err != nil {
		w.t.Fatal(err)
	}
	secret := &corev1.Secret{}
	registration.WriteIdentity(secret, cluster, registration.AgentIdentity{PublicKey: []byte("not a key")})
	w.Apply(w.t, secret)
	response := protocol.RegisterResponse{Audience: audience, Cluster: protocol.ClusterRef{Namespace: w.namespace,
		Name: "member", UID: string(cluster.UID)}}
	w.want(w.connect(w.connectToken(key, response, asIs)), http.StatusGone, v1.ReasonAwaitingAgent)
	response = w.join(token, key, memberUID)
	w.want(w.connect(w.connectToken(key, response, asIs)), http.StatusOK, "")
}

func testImport(w *world) {
	token := w.cluster("member", asIs)
	path := protocol.PathImport + token + ".yaml"
	got := w.send(http.MethodGet, path, "", nil)
	if got.code != http.StatusOK || got.body != "the manifest" || got.header.Get("Cache-Control") != "no-store" {
		w.t.Errorf("response %d %q, cache %q, want 200, the manifest, and no-store", got.code, got.body,
			got.header.Get("Cache-Control"))
	}
	if head := w.send(http.MethodHead, path, "", nil); head.code != http.StatusOK || head.body != "" {
		w.t.Errorf("HEAD: %d %q, want 200 without a body", head.code, head.body)
	}
	for _, method := range []string{http.MethodPost, http.MethodPut, http.MethodDelete} {
		if got := w.send(method, path, "", nil); got.code != http.StatusMethodNotAllowed {
			w.t.Errorf("%s: %d, want 405", method, got.code)
		}
	}
	for _, other := range []string{token, token + ".yml", token + ".yaml.yaml", registration.NewToken() + ".yaml",
		"short.yaml", ".yaml", token + "%00.yaml", "x/" + token + ".yaml"} {
		if got := w.send(http.MethodGet, protocol.PathImport+other, "", nil); got.code != http.StatusNotFound {
			w.t.Errorf("%q: %d, want 404", strings.ReplaceAll(other, token, "<token>"), got.code)
		}
	}
	used := w.cluster("used", func(token *registration.Token) { token.Used = true })
	refused := func(path, because string) {
		w.t.Helper()
		got := w.send(http.MethodGet, path, "", nil)
		if got.code != http.StatusGone || !strings.HasPrefix(got.body, because) ||
			!strings.HasSuffix(got.body, "-registration for a new one\n") {
			w.t.Errorf("response %d %q, want 410 with %q and what to do", got.code, got.body, because)
		}
	}
	refused(protocol.PathImport+used+".yaml",
		"the join token of cluster "+w.namespace+"/used was already used; delete its Secret ")
	w.clock.Advance(24 * time.Hour)
	refused(path, "the join token of cluster "+w.namespace+"/member expired at ")
}

// CVE-2026-44939, CVE-2022-36633.
func testImportQuery(w *world) {
	path := protocol.PathImport + w.cluster("member", asIs) + ".yaml"
	for _, query := range []string{"?authImage=evil%0A---%0Akind:%20Pod", "?", "?x", "?image=a&image=b"} {
		if got := w.send(http.MethodGet, path+query, "", nil); got.code != http.StatusBadRequest ||
			strings.Contains(got.body, "manifest") {
			w.t.Errorf("%s: %d %s, want 400 and no manifest", query, got.code, got.body)
		}
	}
}

func testReplay(w *world) {
	key := testkit.Key(w.t)
	response := w.join(w.cluster("member", asIs), key, memberUID)
	token := w.connectToken(key, response, asIs)
	w.want(w.connect(token), http.StatusOK, "")
	w.want(w.connect(token), http.StatusUnauthorized, v1.ReasonTokenInvalid)
	w.clock.Advance(protocol.ConnectTokenTTL + protocol.ClockSkew) // the last moment of the token
	w.want(w.connect(token), http.StatusUnauthorized, v1.ReasonTokenInvalid)
	w.clock.Advance(time.Hour)
	w.want(w.connect(token), http.StatusUnauthorized, v1.ReasonTokenInvalid)
}

func testReplayElsewhere(w *world) {
	key := testkit.Key(w.t)
	response := w.join(w.cluster("member", asIs), key, memberUID)
	w.server.TokenUsed(registration.KeyID(key.Public().(ed25519.PublicKey)), "elsewhere", w.clock.Now().Add(time.Minute))
	w.want(w.connect(w.connectToken(key, response, func(c *protocol.ConnectClaims) { c.ID = "elsewhere" })),
		http.StatusUnauthorized, v1.ReasonTokenInvalid)
	w.want(w.connect(w.connectToken(key, response, func(c *protocol.ConnectClaims) { c.ID = "here" })), http.StatusOK, "")
}

// CVE-2026-4740, CVE-2024-56513: an agent takes the identity of another cluster. CVE-2026-16242: agents are asked for
// no credential.
func testForeignConnectTokens(w *world) {
	a, b := testkit.Key(w.t), testkit.Key(w.t)
	responseA := w.join(w.cluster("a", asIs), a, memberUID)
	responseB := w.join(w.cluster("b", asIs), b, memberUID)
	for name, tc := range map[string]struct {
		token  string
		code   int
		reason string
	}{
		"a's key for b": {w.connectToken(a, responseB, asIs), http.StatusGone, v1.ReasonAwaitingAgent},
		"a's key for an unknown Cluster": {
			w.connectToken(a, responseA, func(c *protocol.ConnectClaims) { c.Cluster.Name = "absent" }), http.StatusGone,
			v1.ReasonAwaitingAgent,
		},
		"a's key for an invalid name": {
			w.connectToken(a, responseA, func(c *protocol.ConnectClaims) { c.Cluster.Name = "../a" }), http.StatusGone,
			v1.ReasonAwaitingAgent,
		},
		"another hub": {
			w.connectToken(a, responseA, func(c *protocol.ConnectClaims) { c.Audience = "drover-hub:other" }),
			http.StatusUnauthorized, v1.ReasonTokenInvalid,
		},
		"another member": {
			w.connectToken(a, responseA, func(c *protocol.ConnectClaims) { c.ClusterUID = "copied" }), http.StatusForbidden,
			v1.ReasonIdentityMismatch,
		},
		"an agent whose clock is a day off": {
			w.connectToken(a, responseA, func(c *protocol.ConnectClaims) { c.IssuedAt = c.IssuedAt.Add(24 * time.Hour) }),
			http.StatusUnauthorized, v1.ReasonTokenInvalid,
		},
		"a join token": {w.cluster("c", asIs), http.StatusUnauthorized, v1.ReasonTokenInvalid},
		"garbage":      {"garbage", http.StatusUnauthorized, v1.ReasonTokenInvalid},
		"nothing":      {"", http.StatusUnauthorized, v1.ReasonTokenInvalid},
	} {
		if got := w.connect(tc.token); got.code != tc.code || got.reason != tc.reason {
			w.t.Errorf("%s: %d %s, want another code or reason", name, got.code, got.body)
		}
	}
	told := strings.Split(w.refusals(), ", ")
	slices.Sort(told)
	if want := []string{"a IdentityMismatch", "a TokenInvalid", "a TokenInvalid", "b AwaitingAgent"}; !slices.Equal(told,
		want) {
		w.t.Errorf("reported %q, want %q", told, want)
	}
}

func testRecreated(w *world) {
	key := testkit.Key(w.t)
	former := w.join(w.cluster("member", asIs), key, memberUID)
	if err := w.Client.Delete(w.t.Context(),
		&v1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "member"}}); err != nil {
		w.t.Fatal(err)
	}
	w.cluster("member", asIs) // the former Cluster's Secrets are still there, because the garbage collector has not run
	w.want(w.connect(w.connectToken(key, former, asIs)), http.StatusForbidden, v1.ReasonIdentityMismatch)
	cluster := &v1.Cluster{}
	if err := w.Client.Get(w.t.Context(), w.name("member"), cluster); err != nil {
		w.t.Fatal(err)
	}
	w.want(w.connect(w.connectToken(key, former, func(c *protocol.ConnectClaims) { c.Cluster.UID = string(cluster.UID) })),
		http.StatusForbidden, v1.ReasonIdentityMismatch)
	if got := w.refusals(); got != "member IdentityMismatch, member IdentityMismatch" {
		w.t.Errorf("reported %q, want IdentityMismatch twice", got)
	}
}

// testAdopted: a restore creates another Cluster object with the same name, and its agent's Secret without an owner.
func testAdopted(w *world) {
	key, stranger := testkit.Key(w.t), testkit.Key(w.t)
	agent := registration.AgentSecret(w.name("member"))
	restore := func() *v1.Cluster {
		w.t.Helper()
		if err := w.Client.Delete(w.t.Context(),
			&v1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "member"}}); err != nil {
			w.t.Fatal(err)
		}
		w.cluster("member", asIs)
		cluster, secret := &v1.Cluster{}, &corev1.Secret{}
		if err := errors.Join(w.Client.Get(w.t.Context(), w.name("member"), cluster),
			w.Client.Get(w.t.Context(), agent, secret)); err != nil {
			w.t.Fatal(err)
		}
		secret.OwnerReferences = nil
		if err := w.Client.Update(w.t.Context(), secret); err != nil {
			w.t.Fatal(err)
		}
		return cluster
	}
	adopt := func(cluster *v1.Cluster) {
		w.t.Helper()
		secret := &corev1.Secret{}
		if err := w.Client.Get(w.t.Context(), agent, secret); err != nil {
			w.t.Fatal(err)
		}
		registration.WriteIdentity(secret, cluster, *registration.DecideAdoption(cluster, secret).Identity)
		if err := w.Client.Update(w.t.Context(), secret); err != nil {
			w.t.Fatal(err)
		}
		w.cached(agent, &corev1.Secret{}, func(o client.Object) bool {
			id, err := registration.ReadIdentity(o.(*corev1.Secret))
			return err == nil && id.OwnerUID == cluster.UID && id.FormerOwner != ""
		})
	}
	first := w.join(w.cluster("member", asIs), key, memberUID)
	for range 2 { // a hub may be restored twice
		cluster := restore()
		refused := w.connect(w.connectToken(key, first, asIs))
		w.want(refused, http.StatusForbidden, v1.ReasonIdentityMismatch)
		if !strings.Contains(refused.body, "kubectl drover adopt member -w "+w.namespace) {
			w.t.Errorf("got refusal %s, want it to say what to do", refused.body)
		}
		adopt(cluster)
		got := w.connect(w.connectToken(key, first, asIs))
		w.want(got, http.StatusOK, "")
		w.want(w.connect(w.connectToken(stranger, first, asIs)), http.StatusGone, v1.ReasonAwaitingAgent)
		w.want(w.connect(w.connectToken(key, first, func(c *protocol.ConnectClaims) { c.ClusterUID = "another" })),
			http.StatusForbidden, v1.ReasonIdentityMismatch)
		w.want(w.connect(w.connectToken(key, first, func(c *protocol.ConnectClaims) { c.Audience = "drover-hub:another" })),
			http.StatusUnauthorized, v1.ReasonTokenInvalid)
	}
	token := w.cluster("other", asIs)
	asks := request(stranger, token, memberUID)
	asks.Current = &protocol.CurrentCluster{Cluster: first.Cluster,
		Proof: ed25519.Sign(key, protocol.ProofPayload(token, memberUID))}
	w.want(w.register(token, asks), http.StatusForbidden, v1.ReasonAlreadyImported)
}

func testElsewhere(w *world) {
	key, next := testkit.Key(w.t), testkit.Key(w.t)
	response := w.join(w.cluster("first", asIs), key, memberUID)
	token := w.cluster("second", asIs)
	asks := func(prover ed25519.PrivateKey) protocol.RegisterRequest {
		r := request(next, token, memberUID)
		r.Current = &protocol.CurrentCluster{Cluster: response.Cluster,
			Proof: ed25519.Sign(prover, protocol.ProofPayload(token, memberUID))}
		return r
	}
	w.want(w.register(token, asks(key)), http.StatusForbidden, v1.ReasonAlreadyImported)
	if got := w.refusals(); got != "second AlreadyImported" {
		w.t.Errorf("reported %q, want AlreadyImported for the second", got)
	}
	w.want(w.connect(w.connectToken(key, response, asIs)), http.StatusOK, "")
	if err := w.Client.Delete(w.t.Context(),
		&v1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "first"}}); err != nil {
		w.t.Fatal(err)
	}
	w.want(w.register(token, asks(key)), http.StatusOK, "") // it has moved
}

func testRevoked(w *world) {
	key := testkit.Key(w.t)
	response := w.join(w.cluster("member", asIs), key, memberUID)
	w.want(w.connect(w.connectToken(key, response, asIs)), http.StatusOK, "")
	secret := &corev1.Secret{}
	name := registration.AgentSecret(w.name("member"))
	secret.Namespace, secret.Name = name.Namespace, name.Name
	if err := w.Client.Delete(w.t.Context(), secret); err != nil {
		w.t.Fatal(err)
	}
	testkit.Eventually(w.t, 10*time.Second, func(ctx context.Context) error {
		if err := w.cache.Get(ctx, name, &corev1.Secret{}); !apierrors.IsNotFound(err) {
			return errors.New("the cache still has the object")
		}
		return nil
	})
	revoked := w.connect(w.connectToken(key, response, asIs))
	w.want(revoked, http.StatusGone, v1.ReasonAwaitingAgent)
	if got := w.refusals(); got != "member AwaitingAgent" {
		w.t.Errorf("reported %q, want the revoked agent to be reported on its Cluster", got)
	}
	unknown := w.connect(w.connectToken(key, response, func(c *protocol.ConnectClaims) { c.Cluster.Name = "absent" }))
	if unknown.body != revoked.body {
		w.t.Errorf("the responses %s and %s disclose whether a Cluster exists, want them equal", unknown.body, revoked.body)
	}
}

// lagging is a cache that does not contain any agent yet.
type lagging struct{ client.Reader }

func (l lagging) Get(ctx context.Context, key client.ObjectKey, object client.Object, opts ...client.GetOption) error {
	if strings.HasSuffix(key.Name, v1.AgentSecretSuffix) {
		return apierrors.NewNotFound(schema.GroupResource{Resource: "secrets"}, key.Name)
	}
	return l.Reader.Get(ctx, key, object, opts...)
}

// counter counts reads.
type counter struct {
	client.Reader
	reads atomic.Int64
}

func (c *counter) Get(ctx context.Context, key client.ObjectKey, object client.Object, opts ...client.GetOption) error {
	c.reads.Add(1)
	return c.Reader.Get(ctx, key, object, opts...)
}

// counting counts, from now on, the server's reads from the API server.
func counting(w *world) *counter {
	c := &counter{Reader: w.server.Live}
	w.server.Live = c
	return c
}

func testCacheLag(w *world) {
	key := testkit.Key(w.t)
	response := w.join(w.cluster("member", asIs), key, memberUID)
	w.server.Cache = lagging{w.server.Cache}
	live := counting(w)
	w.want(w.connect(w.connectToken(key, response, asIs)), http.StatusOK, "")
	if live.reads.Load() == 0 {
		w.t.Error("the cache did not lag, so this test proves nothing")
	}
}

func testForgedTokens(w *world) {
	known, fresh := testkit.Key(w.t), testkit.Key(w.t)
	response := w.join(w.cluster("known", asIs), known, memberUID)
	freshResponse := w.join(w.cluster("fresh", asIs), fresh, memberUID)
	live := counting(w)
	forger := testkit.Key(w.t)
	before := live.reads.Load()
	w.want(w.connect(w.connectToken(forger, response, asIs)), http.StatusGone, v1.ReasonAwaitingAgent)
	exists := live.reads.Load() - before
	w.want(w.connect(w.connectToken(forger, response, func(c *protocol.ConnectClaims) { c.Cluster.Name = "absent" })),
		http.StatusGone, v1.ReasonAwaitingAgent)
	if absent := live.reads.Load() - before - exists; absent != exists {
		w.t.Errorf("an existing Cluster costs %d reads and a missing one %d, want the same number, so that the time "+
			"discloses nothing", exists, absent)
	}
	var last reply
	for i := range 300 {
		last = w.connect(w.connectToken(forger, response,
			func(c *protocol.ConnectClaims) { c.Cluster.Name = fmt.Sprintf("guess-%d", i) }))
	}
	if last.code != http.StatusServiceUnavailable || last.header.Get("Retry-After") == "" {
		w.t.Errorf("after 300 forged tokens: status %d, Retry-After %q, want to be told to retry", last.code,
			last.header.Get("Retry-After"))
	}
	if n := live.reads.Load(); n > 110 {
		w.t.Errorf("300 forged tokens caused %d reads from the API server, want few", n)
	}
	w.want(w.connect(w.connectToken(known, response, asIs)), http.StatusOK, "") // the cache knows it
	cached := w.server.Cache
	w.server.Cache = lagging{cached}
	// the first lookup after its join does not count
	w.want(w.connect(w.connectToken(fresh, freshResponse, asIs)), http.StatusOK, "")
	w.want(w.connect(w.connectToken(fresh, freshResponse, asIs)), http.StatusServiceUnavailable, "")
	w.clock.Advance(2 * time.Second) // the agent waited as it was told, and the attack has ended
	w.want(w.connect(w.connectToken(fresh, freshResponse, asIs)), http.StatusOK, "")
	for range 300 {
		w.connect(w.connectToken(forger, response, asIs))
	}
	w.server.Cache = cached // or the attack goes on, but the cache has caught up
	w.want(w.connect(w.connectToken(fresh, freshResponse, asIs)), http.StatusOK, "")
}

// down is an API server that does not respond.
type down struct{ client.Reader }

func (down) Get(_ context.Context, key client.ObjectKey, _ client.Object, _ ...client.GetOption) error {
	return fmt.Errorf("get %s: %w", key, errors.New("connection refused"))
}

func testUnavailable(w *world) {
	token, key := w.cluster("member", asIs), testkit.Key(w.t)
	w.server.Live = down{}
	got := w.register(token, request(key, token, memberUID))
	w.want(got, http.StatusServiceUnavailable, "")
	if got.header.Get("Retry-After") == "" || strings.Contains(got.body, "connection refused") {
		w.t.Errorf("response %s, Retry-After %q", got.body, got.header.Get("Retry-After"))
	}
}
