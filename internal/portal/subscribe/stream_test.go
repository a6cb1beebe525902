// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package subscribe

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gorilla/websocket"
	authenticationv1 "k8s.io/api/authentication/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/identity"
	"github.com/drover-dev/drover/internal/identity/refusal"
	"github.com/drover-dev/drover/internal/portal/catalog"
	"github.com/drover-dev/drover/test/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// hub is a replica that serves streams, with a real API server. The name of a user is the token.
type hub struct {
	*testkit.Env
	server *Server
	url    string
	tls    *tls.Config
	close  context.CancelFunc // stops the replica

	mu      sync.Mutex // guards the fields below
	revoked map[string]bool
	busy    int  // how often there was no time to check a token
	away    bool // the service that identifies users is not available
	// bound holds the Clusters that bindings let each user reach. unsure is set while bindings cannot be read.
	bound  map[string]map[types.NamespacedName]bool
	unsure bool
	ended  []string

	unled atomic.Bool // no manager leads
}

// lease is the Lease with which the managers elect their leader.
var lease = types.NamespacedName{Namespace: metav1.NamespaceDefault, Name: "drover-manager"}

// newHub starts one more replica.
func newHub(t *testing.T, env *testkit.Env) *hub {
	t.Helper()
	h := &hub{Env: env, revoked: map[string]bool{}, bound: map[string]map[types.NamespacedName]bool{}}
	informers, err := cache.New(env.Config,
		cache.Options{Scheme: testkit.Scheme(t), DefaultTransform: cache.TransformStripManagedFields()})
	if err != nil {
		t.Fatal(err)
	}
	clients, err := kubernetes.NewForConfig(env.Config)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { _ = informers.Start(ctx) })
	t.Cleanup(func() { cancel(); running.Wait() })
	access := identity.NewAccess(clients.AuthorizationV1().SubjectAccessReviews())
	h.server = New(Options{
		Authenticate: h.authenticate, Watch: access.Watch,
		Unmanaged: func(ctx context.Context, id identity.Identity) bool {
			sees, err := access.Lease(ctx, id, lease)
			return h.unled.Load() && sees && err == nil
		},
		Reach:     catalog.Ways{Workspaces: h.workspaces, Bound: h.isBound, Proxy: access.ClusterProxy},
		Informers: informers, Live: env.Client, Now: time.Now,
		Observer: Observer{Ended: func(why string) { h.mu.Lock(); defer h.mu.Unlock(); h.ended = append(h.ended, why) }},
	})
	h.server.every = 200 * time.Millisecond
	closing, stop := context.WithCancel(t.Context())
	h.close = stop
	mux := http.NewServeMux()
	h.server.Register(closing, mux)
	listener := httptest.NewTLSServer(mux)
	t.Cleanup(func() { stop(); listener.Close() })
	h.url, h.tls = listener.URL, listener.Client().Transport.(*http.Transport).TLSClientConfig
	return h
}

func (h *hub) authenticate(r *http.Request) (identity.Identity, error) {
	token, err := identity.Token(r)
	if err != nil {
		return identity.Identity{}, err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case token == "unavailable" || h.away:
		return identity.Identity{}, refusal.Unavailable("the API server is away")
	case h.busy > 0:
		h.busy--
		return identity.Identity{}, refusal.TooManyRequests("too many logins wait", time.Second)
	case h.revoked[token]:
		return identity.Identity{}, refusal.Unauthorized("the token was revoked")
	}
	return identity.Identity{User: token, Hub: authenticationv1.UserInfo{Username: token}}, nil
}

func (h *hub) dial(query string, header http.Header) (*websocket.Conn, *http.Response, error) {
	dialer := websocket.Dialer{TLSClientConfig: h.tls, Subprotocols: header["X-Protocols"]}
	header = header.Clone()
	header.Del("X-Protocols")
	return dialer.Dial("wss"+strings.TrimPrefix(h.url, "https")+Path+query, header)
}

// follower follows a stream according to the protocol.
type follower struct {
	t    *testing.T
	conn *websocket.Conn
	has  map[string]string // from kind/namespace/name to the label that is shown
	seen []message
	mark string // the last resume token
	news int    // number of messages since the start, except bookmarks
}

func (h *hub) follow(t *testing.T, user, query string) *follower {
	t.Helper()
	conn, response, err := h.dial(query, http.Header{"Authorization": {"Bearer " + user}})
	if err != nil {
		t.Fatalf("open a stream: %v %+v", err, response)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return &follower{t: t, conn: conn, has: map[string]string{}}
}

// read reads one message.
func (c *follower) read() error {
	_ = c.conn.SetReadDeadline(time.Now().Add(testkit.Patience * 10 * time.Second))
	_, data, err := c.conn.ReadMessage()
	if err != nil {
		return err
	}
	var m struct {
		message
		Object struct {
			APIVersion, Kind string
			Metadata         metav1.ObjectMeta
		} `json:"object"`
	}
	if err := json.Unmarshal(data, &m); err != nil {
		c.t.Fatalf("%s: %v", data, err)
	}
	m.message.Object = m.Object.Metadata.Name
	key := m.Kind + "/" + m.Object.Metadata.Namespace + "/" + m.Object.Metadata.Name
	c.seen = append(c.seen, m.message)
	switch m.Type {
	case typeReset:
		for key := range c.has {
			if strings.HasPrefix(key, m.Kind+"/") {
				delete(c.has, key)
			}
		}
	case typeChanged:
		if m.Object.APIVersion != "cluster.drover.dev/v1" || m.Object.Kind != "Cluster" ||
			len(m.Object.Metadata.ManagedFields)+len(m.Object.Metadata.Annotations) > 0 {
			c.t.Errorf("got the object %.300s", data)
		}
		c.has[key] = m.Object.Metadata.Labels["shown"]
	case typeDeleted:
		delete(c.has, key)
	case typeBookmark:
		c.mark = m.Resume
		return nil
	default:
		c.t.Errorf("got the unknown message %s", data)
	}
	c.news++
	return nil
}

// until reads until the client has the objects of a kind with exactly these names.
func (c *follower) until(kind string, want ...string) {
	c.t.Helper()
	for {
		var got []string
		for key, shown := range c.has {
			if rest, is := strings.CutPrefix(key, kind+"/"); is {
				got = append(got, strings.TrimPrefix(rest, "/")+shown)
			}
		}
		slices.Sort(got)
		slices.Sort(want)
		if slices.Equal(got, want) {
			return
		}
		if err := c.read(); err != nil {
			c.t.Fatalf("the client has %v, want %v: %v", got, want, err)
		}
	}
}

// bookmarked reads until the next bookmark.
func (c *follower) bookmarked() string {
	c.t.Helper()
	for n := len(c.seen); ; {
		if err := c.read(); err != nil {
			c.t.Fatal(err)
		}
		if len(c.seen) > n && c.seen[len(c.seen)-1].Type == typeBookmark {
			return c.mark
		}
	}
}

// code reads until the stream ends, and returns the close code.
func (c *follower) code() int {
	for {
		if err := c.read(); err != nil {
			var closed *websocket.CloseError
			if !errors.As(err, &closed) {
				c.t.Fatalf("the stream ended with %v", err)
			}
			return closed.Code
		}
	}
}

func (h *hub) cluster(t *testing.T, namespace, name, shown string) *v1.Cluster {
	t.Helper()
	c := &v1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name,
		Labels: map[string]string{"shown": shown}}}
	h.Apply(t, c)
	return c
}

// grant grants a user the right to watch Clusters in a workspace, or in all workspaces.
func (h *hub) grant(t *testing.T, user, namespace string) client.Object {
	t.Helper()
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "watch-clusters"},
		Rules: []rbacv1.PolicyRule{{APIGroups: []string{v1.Group}, Resources: []string{"clusters"},
			Verbs: []string{"watch"}}}}
	if err := h.Client.Create(t.Context(), role); client.IgnoreAlreadyExists(err) != nil {
		t.Fatal(err)
	}
	ref, who := rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole",
		Name: role.Name}, []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: user}}
	var o client.Object = &rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, GenerateName: "watch-"},
		RoleRef: ref, Subjects: who}
	if namespace == "" {
		o = &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{GenerateName: "watch-"}, RoleRef: ref, Subjects: who}
	}
	h.Apply(t, o)
	return o
}

// version returns the resource version of an object in the API server.
func (h *hub) version(t *testing.T, o client.Object) uint64 {
	t.Helper()
	if err := h.Client.Get(t.Context(), client.ObjectKeyFromObject(o), o); err != nil {
		t.Fatal(err)
	}
	version, err := strconv.ParseUint(o.GetResourceVersion(), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return version
}

func (h *hub) remove(t *testing.T, o client.Object) {
	t.Helper()
	if err := h.Client.Delete(t.Context(), o); err != nil {
		t.Fatal(err)
	}
}

func (h *hub) show(t *testing.T, c *v1.Cluster, shown string) {
	t.Helper()
	patch := client.RawPatch("application/merge-patch+json",
		[]byte(fmt.Sprintf(`{"metadata":{"labels":{"shown":%q}}}`, shown)))
	if err := h.Client.Patch(t.Context(), c, patch); err != nil {
		t.Fatal(err)
	}
}

func TestChangesReachUsersWhoMayWatch(t *testing.T) {
	t.Parallel()
	h := newHub(t, testkit.Shared(t))
	a, b := h.Workspace(t), h.Workspace(t)
	admin, alice := "admin-"+a, "alice-"+a
	h.grant(t, admin, "")
	h.grant(t, alice, a)
	one := h.cluster(t, a, "one", "")
	h.cluster(t, b, "hidden", "")
	query := "?kind=clusters&namespace=" + a + "&namespace=" + b

	all, some := h.follow(t, admin, query), h.follow(t, alice, query)
	all.until("clusters", a+"/one", b+"/hidden")
	some.until("clusters", a+"/one")
	t.Run("a change, a new object and a deletion", func(t *testing.T) {
		h.show(t, one, "v2")
		h.cluster(t, a, "two", "")
		some.until("clusters", a+"/onev2", a+"/two")
		h.remove(t, one)
		some.until("clusters", a+"/two")
		all.until("clusters", a+"/two", b+"/hidden")
	})
	t.Run("CVE-2024-52280: objects that a user may not watch are never sent, whatever the query", func(t *testing.T) {
		secret := h.cluster(t, b, "secret", "")
		h.show(t, secret, "v2")
		h.remove(t, secret)
		all.until("clusters", a+"/two", b+"/hidden")
		h.cluster(t, a, "after", "") // ensures that all earlier changes have been read
		some.until("clusters", a+"/two", a+"/after")
		one := h.follow(t, alice, "?kind=clusters&namespace="+b)
		one.bookmarked()
		nothing := h.follow(t, "stranger-"+a, "")
		nothing.bookmarked()
		for _, c := range []*follower{some, one, nothing} {
			for _, m := range c.seen {
				if text := fmt.Sprint(m.Object); strings.Contains(text, "hidden") || strings.Contains(text, "secret") {
					t.Errorf("a user without rights got %v, want nothing", m)
				}
			}
		}
		if len(one.has)+len(nothing.has) > 0 {
			t.Errorf("users without rights got %v and %v, want nothing", one.has, nothing.has)
		}
	})
	t.Run("a right is granted and revoked", func(t *testing.T) {
		right := h.grant(t, alice, b)
		some.until("clusters", a+"/two", a+"/after", b+"/hidden")
		h.remove(t, right)
		some.until("clusters", a+"/two", a+"/after")
	})
	t.Run("a workspace is added later", func(t *testing.T) {
		everywhere := h.follow(t, alice, "?kind=clusters")
		everywhere.until("clusters", a+"/two", a+"/after")
		later := h.Workspace(t)
		h.grant(t, alice, later)
		h.cluster(t, later, "late", "")
		everywhere.until("clusters", a+"/two", a+"/after", later+"/late")
	})
	t.Run("other kinds need other rights", func(t *testing.T) {
		h.Apply(t, &v1.Project{ObjectMeta: metav1.ObjectMeta{Namespace: a, Name: "shop"},
			Spec: v1.ProjectSpec{ClusterTarget: v1.ClusterTarget{ClusterName: "two"}}})
		both := h.follow(t, alice, "?namespace="+a)
		both.until("clusters", a+"/two", a+"/after")
		both.bookmarked()
		if len(both.has) != 2 {
			t.Errorf("a user who may only watch Clusters got %v", both.has)
		}
	})
}

func TestStreamIsResumedAtAnyReplica(t *testing.T) {
	t.Parallel()
	env := testkit.Shared(t)
	first, second := newHub(t, env), newHub(t, env)
	a := first.Workspace(t)
	alice, bob := "alice-"+a, "bob-"+a
	right := first.grant(t, alice, a)
	first.grant(t, bob, a)
	query := "?kind=clusters&namespace=" + a
	one := first.cluster(t, a, "one", "")
	first.cluster(t, a, "two", "")
	second.follow(t, alice, query).until("clusters", a+"/one", a+"/two") // from now on, the replica sees all deletions
	c := first.follow(t, alice, query)
	c.until("clusters", a+"/one", a+"/two")
	three := first.cluster(t, a, "three", "")
	c.until("clusters", a+"/one", a+"/two", a+"/three")
	var mark string
	// until the token is newer than the objects that are deleted below
	for round := 0; parse(mark).Versions["clusters"] < first.version(t, one); round++ {
		first.show(t, three, fmt.Sprint("v", round))
		mark = c.bookmarked()
	}
	_ = c.conn.Close()

	first.remove(t, one)
	first.cluster(t, a, "four", "")
	resumed := second.follow(t, alice, query+"&resume="+mark)
	resumed.has = c.has
	for resumed.has["clusters/"+a+"/four"] == "" && len(resumed.has) != 3 || resumed.mark == "" {
		if err := resumed.read(); err != nil {
			t.Fatal(err)
		}
	}
	for _, m := range resumed.seen {
		if text := fmt.Sprint(m); m.Type == typeReset || strings.Contains(text, "two") {
			t.Errorf("a resumed stream contains %s, which has not changed since", text)
		}
	}
	if _, there := resumed.has["clusters/"+a+"/one"]; there {
		t.Errorf("the client still has %v, want the deletions sent", resumed.has)
	}
	t.Run("objects that were deleted before a stream are not mentioned", func(t *testing.T) {
		c := first.follow(t, bob, query)
		c.bookmarked()
		for _, m := range c.seen {
			if m.Type == typeDeleted {
				t.Errorf("%+v", m)
			}
		}
	})
	for name, tt := range map[string]struct{ user, query string }{
		"another user":     {bob, query + "&resume=" + mark},
		"another query":    {alice, "?kind=clusters&resume=" + mark},
		"an invalid token": {alice, query + "&resume=" + mark[:len(mark)-4]},
		"an old token": {
			alice, query + "&resume=" + resume{Versions: map[string]uint64{"clusters": 1}, Rights: parse(mark).Rights}.String(),
		},
		"a token with other rights": {
			alice, query + "&resume=" + resume{Versions: parse(mark).Versions, Rights: []byte("x")}.String(),
		},
	} {
		t.Run(name+" starts from the beginning", func(t *testing.T) {
			c := second.follow(t, tt.user, tt.query)
			if err := c.read(); err != nil || c.seen[0].Type != typeReset {
				t.Errorf("the first message is %+v (%v), want a reset", c.seen, err)
			}
		})
	}
	t.Run("a stream whose right was revoked in the meantime starts from the beginning, with nothing", func(t *testing.T) {
		first.remove(t, right)
		for { // until the right is reviewed again
			c := second.follow(t, alice, query+"&resume="+mark)
			c.bookmarked()
			if c.seen[0].Type == typeReset && len(c.has) == 0 {
				return
			}
			_ = c.conn.Close()
		}
	})
}

func TestStreamEnds(t *testing.T) {
	t.Parallel()
	h := newHub(t, testkit.Shared(t))
	t.Run("a token is revoked", func(t *testing.T) {
		c := h.follow(t, "carol", "?kind=plans")
		c.bookmarked()
		h.mu.Lock()
		h.revoked["carol"] = true
		h.mu.Unlock()
		if code := c.code(); code != unauthorized {
			t.Errorf("the stream ended with %d", code)
		}
		if _, response, err := h.dial("", http.Header{"Authorization": {"Bearer carol"}}); err == nil ||
			response.StatusCode != http.StatusUnauthorized {
			t.Errorf("the next stream got %v, want 401", response)
		}
	})
	t.Run("a token that could not be checked in time does not end the stream", func(t *testing.T) {
		h := newHub(t, testkit.Shared(t))
		c := h.follow(t, "grace", "?kind=plans")
		c.bookmarked()
		h.mu.Lock()
		h.busy = 2
		h.mu.Unlock()
		testkit.Eventually(t, 10*time.Second, func(context.Context) error {
			h.mu.Lock()
			defer h.mu.Unlock()
			if h.busy > 0 {
				return errors.New("the hub has not identified the user again")
			}
			return nil
		})
		h.close()
		if code := c.code(); code != websocket.CloseServiceRestart {
			t.Errorf("the stream ended with %d before the replica stopped", code)
		}
	})
	t.Run("a client sends a message", func(t *testing.T) {
		for text, want := range map[string]int{"": websocket.CloseUnsupportedData, "x": websocket.CloseUnsupportedData,
			strings.Repeat("x", 1<<20): websocket.CloseMessageTooBig} {
			c := h.follow(t, "dave", "?kind=plans")
			_ = c.conn.WriteMessage(websocket.TextMessage, []byte(text))
			if code := c.code(); code != want {
				t.Errorf("after %d bytes the stream ended with %d, want %d", len(text), code, want)
			}
		}
	})
	t.Run("the number of a user's concurrent streams is limited", func(t *testing.T) {
		var open []*follower
		for range mostOfUser {
			open = append(open, h.follow(t, "erin", "?kind=plans"))
		}
		_, response, err := h.dial("?kind=plans", http.Header{"Authorization": {"Bearer erin"}})
		if err == nil || response.StatusCode != http.StatusTooManyRequests {
			t.Fatalf("one more stream got %v, want 429", response)
		}
		_ = open[0].conn.Close()
		for { // until the end of the other stream is noticed
			conn, _, err := h.dial("?kind=plans", http.Header{"Authorization": {"Bearer erin"}})
			if err == nil {
				_ = conn.Close()
				break
			}
		}
	})
	t.Run("the replica stops", func(t *testing.T) {
		c := h.follow(t, "frank", "?kind=plans")
		c.bookmarked()
		h.close()
		if code := c.code(); code != websocket.CloseServiceRestart {
			t.Errorf("the stream ended with %d", code)
		}
		if _, response, err := h.dial("", http.Header{"Authorization": {"Bearer frank"}}); err == nil ||
			response.StatusCode != http.StatusServiceUnavailable {
			t.Errorf("the next stream got %v, want 503", response)
		}
	})
}

func TestStreamNeedsAToken(t *testing.T) {
	h := newHub(t, testkit.Shared(t))
	token := "base64url.bearer.authorization.k8s.io." + base64.RawURLEncoding.EncodeToString([]byte("grace"))
	for name, tt := range map[string]struct {
		header http.Header
		want   int
	}{
		"with a token in a header":                         {http.Header{"Authorization": {"Bearer grace"}}, 101},
		"with a token as a subprotocol, as from a browser": {http.Header{"X-Protocols": {subprotocol, token}}, 101},
		"without a token":                                  {http.Header{}, 401},
		"with a token only in the query":                   {http.Header{"X-Query": {"?token=grace"}}, 401},
		"CVE-2019-13209: with a cookie of another page": {
			http.Header{"Cookie": {"R_SESS=token-grace:x; drover=grace"}, "Origin": {"https://evil.example"}}, 401,
		},
		"CVE-2019-13209: with a token that a proxy may have derived from another page's cookie": {
			http.Header{"Authorization": {"Bearer grace"}, "Cookie": {"a=b"}, "Origin": {"https://evil.example"}}, 403,
		},
		"with a token that another page has": {
			http.Header{"Authorization": {"Bearer grace"}, "Origin": {"https://evil.example"}}, 101,
		},
		"with a token of this page":          {http.Header{"Authorization": {"Bearer grace"}, "Origin": {h.url}}, 101},
		"when the user cannot be identified": {http.Header{"Authorization": {"Bearer unavailable"}}, 503},
	} {
		query := tt.header.Get("X-Query")
		tt.header.Del("X-Query")
		conn, response, err := h.dial(query, tt.header)
		if response == nil || response.StatusCode != tt.want {
			t.Errorf("%s: %v (%v)", name, response, err)
		}
		if conn == nil {
			continue
		}
		if protocols := tt.header["X-Protocols"]; protocols != nil &&
			response.Header.Get("Sec-WebSocket-Protocol") != subprotocol {
			t.Errorf("%s: the subprotocol is %q", name, response.Header.Get("Sec-WebSocket-Protocol"))
		}
		_ = conn.Close()
	}
	t.Run("without an upgrade, the response asks for an upgrade", func(t *testing.T) {
		client := &http.Client{Transport: &http.Transport{TLSClientConfig: h.tls}}
		request, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, h.url+Path, nil)
		request.Header.Set("Authorization", "Bearer grace")
		response, err := client.Do(request)
		if err != nil || response.StatusCode != http.StatusUpgradeRequired {
			t.Fatalf("%v %v", response, err)
		}
		_ = response.Body.Close()
	})
	t.Run("the check of Rancher's operators gets 101", func(t *testing.T) {
		at, _ := url.Parse(h.url)
		conn, err := tls.Dial("tcp", at.Host, h.tls)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		// This is the request of curl -i -N --http1.1 with the headers of Rancher's operators.
		_, _ = fmt.Fprintf(conn, "GET /v3/subscribe HTTP/1.1\r\nHost: rancher.yourdomain.com\r\nUser-Agent: "+
			"curl/8\r\nAccept: */*\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"+
			"Sec-WebSocket-Key: SGVsbG8sIHdvcmxkIQ==\r\nSec-WebSocket-Version: 13\r\nAuthorization: Bearer "+
			"token-xxxxx:string\r\n\r\n")
		_ = conn.SetDeadline(time.Now().Add(testkit.Patience * 10 * time.Second))
		line, err := bufio.NewReader(conn).ReadString('\n')
		if err != nil || !strings.HasPrefix(line, "HTTP/1.1 101") {
			t.Errorf("got %q (%v), want 101", line, err)
		}
	})
}

func TestSlowReaderMissesNoFinalState(t *testing.T) {
	h := newHub(t, testkit.Shared(t))
	a := h.Workspace(t)
	user := "slow-" + a
	h.grant(t, user, a)
	const clusters, rounds = 20, 300
	feed := h.server.feeds["clusters"]
	c := h.follow(t, user, "?kind=clusters&namespace="+a)
	c.bookmarked()
	long := strings.Repeat("x", 4<<10)
	for round := range rounds { // faster than an API server can write, as the informer would deliver them
		for i := range clusters {
			o := cluster(a, fmt.Sprint("c", i), 1<<50+round*clusters+i)
			o.Labels = map[string]string{"shown": fmt.Sprint("v", round)}
			o.Status.Version = long
			feed.see(h.server, o, false)
		}
	}
	var want []string
	for i := range clusters {
		want = append(want, fmt.Sprint(a, "/c", i, "v", rounds-1))
	}
	c.until("clusters", want...)
	if c.news > clusters*rounds/2 {
		t.Errorf("%d messages were sent for %d changes, want fewer", c.news, clusters*rounds)
	}
}
